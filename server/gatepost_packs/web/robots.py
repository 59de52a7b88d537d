"""Cache the robots.txt of sites, and decide whether a page may be fetched (RFC 9309)."""

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path

from gatepost_packs.child.process import ask
from gatepost_packs.web import robots_worker

WORKER = Path(robots_worker.__file__)
PARSE_S = 10.0
LIMIT_BYTES = 512_000
"""Bytes that are read; RFC 9309 section 2.5 asks for at least 500 KiB."""
READ_CHARACTERS = 10_000
"""The longest robots.txt that is read in the server process; it has a few hundred rules."""
READ_RULES = 10_000
"""
How many rules may be read in the server process: each program of a group has all its rules. To read
so many takes some ten milliseconds of a thread.
"""
COMPARED_CHARACTERS = 1_000_000
"""
How many characters are compared in the server process for one URL, at most: a millisecond. That is
the length of the URL times that of all lines with stars, if these are made to take long.
"""
RULE_CHARACTERS = 400
"""About the memory of one rule."""
KEPT_S, KEPT_FAILED_S = 3_600.0, 300.0
CACHED_SITES, CACHED_CHARACTERS = 200, 10_000_000
"""Sites that are cached, and their rules' characters, for all tenants together."""
AGENT = re.compile(r"[a-zA-Z_-]+")
DEFAULT_AGENT = "gatepost"

SiteKey = tuple[str, str, str]
"""Tenant, origin and program (`program_of`); tenants do not share entries."""


class SiteRules:
    """What a robots.txt says to one program."""

    def __init__(self, text: str, program: str) -> None:
        self._text, self._program = text, program
        lines = text.splitlines()
        rules = len(lines) * max(1, text.lower().count("agent"))
        is_small = len(text) <= READ_CHARACTERS and rules <= READ_RULES
        self._rules = robots_worker.rules_of(text, program) if is_small else None
        """None if the text is not read in this process."""
        self.weight = len(text) + (RULE_CHARACTERS * rules if is_small else 0)
        """About its memory, in characters."""
        self._with_stars = sum(len(line) for line in lines if "*" in line)

    def verdict(self, url: str) -> bool | None:
        """Return whether the page at *url* may be fetched; None if that may take long to decide."""
        if self._rules is None or self._with_stars * len(url) > COMPARED_CHARACTERS:
            return None
        return bool(self._rules.can_fetch(url, self._program))

    async def worker_verdict(self, url: str) -> bool:
        """Return the same from a child process; raises TimeoutError or WorkerFailed."""
        request = {"rules": self._text, "url": url, "agent": self._program}
        return bool(await ask(WORKER, request, timeout_s=PARSE_S))


async def read(text: str, program: str) -> SiteRules:
    """Return the rules in a robots.txt, read in a thread."""
    return await asyncio.to_thread(SiteRules, text, program)


def program_of(user_agent: str) -> str:
    """Return the name by which a robots.txt names the program with this `User-Agent`."""
    token = AGENT.match(user_agent)
    return token[0] if token else DEFAULT_AGENT


class RobotsCache:
    """The rules of sites; None while they cannot be fetched."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._sites: dict[SiteKey, tuple[float, SiteRules | None]] = {}
        self._characters = 0

    def get(self, key: SiteKey) -> tuple[bool, SiteRules | None]:
        """Return whether the site is cached, and its rules."""
        until, rules = self._sites.get(key, (0.0, None))
        return until > self._monotonic(), rules

    def put(self, key: SiteKey, rules: SiteRules | None) -> None:
        """Cache the rules for an hour, or for minutes if they may soon change."""
        self._remove(key)
        until = self._monotonic() + (KEPT_FAILED_S if rules is None else KEPT_S)
        self._sites[key] = until, rules
        self._characters += rules.weight if rules is not None else 0
        while len(self._sites) > CACHED_SITES or self._characters > CACHED_CHARACTERS:
            self._remove(next(iter(self._sites)))

    def _remove(self, key: SiteKey) -> None:
        _, rules = self._sites.pop(key, (0.0, None))
        self._characters -= rules.weight if rules is not None else 0
