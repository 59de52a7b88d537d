"""Cache the robots.txt of sites, and decide whether a page may be fetched (RFC 9309)."""

import re
import time
from collections.abc import Callable
from pathlib import Path

from gatepost_packs.child.process import ask

WORKER = Path(__file__).with_name("robots_worker.py")
PARSE_S = 10.0
LIMIT_BYTES = 512_000
"""Bytes that are read; RFC 9309 section 2.5 asks for at least 500 KiB."""
KEPT_S, KEPT_FAILED_S = 3_600.0, 300.0
CACHED_SITES, CACHED_CHARACTERS = 200, 10_000_000
"""Sites that are cached, and their rules' characters, for all tenants together."""
AGENT = re.compile(r"[a-zA-Z_-]+")

SiteKey = tuple[str, str]
"""Tenant and origin; tenants do not share entries."""


class RobotsCache:
    """The rules of sites: their text, or None while they cannot be fetched."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._sites: dict[SiteKey, tuple[float, str | None]] = {}
        self._characters = 0

    def get(self, key: SiteKey) -> tuple[bool, str | None]:
        """Return whether the site is cached, and its rules."""
        until, rules = self._sites.get(key, (0.0, None))
        return until > self._monotonic(), rules

    def put(self, key: SiteKey, rules: str | None) -> None:
        """Cache the rules for an hour, or for minutes if they may soon change."""
        self._remove(key)
        until = self._monotonic() + (KEPT_FAILED_S if rules is None else KEPT_S)
        self._sites[key] = until, rules
        self._characters += len(rules or "")
        while len(self._sites) > CACHED_SITES or self._characters > CACHED_CHARACTERS:
            self._remove(next(iter(self._sites)))

    def _remove(self, key: SiteKey) -> None:
        _, rules = self._sites.pop(key, (0.0, None))
        self._characters -= len(rules or "")


async def allows(rules: str, url: str, user_agent: str) -> bool:
    """
    Return whether *rules* allow the page at *url*; raises TimeoutError or WorkerFailed.

    In a child process: patterns of many stars keep a regular expression busy for long.
    """
    if not rules.strip():
        return True
    token = AGENT.match(user_agent)
    request = {"rules": rules, "url": url, "agent": token[0] if token else "gatepost"}
    return bool(await ask(WORKER, request, timeout_s=PARSE_S))
