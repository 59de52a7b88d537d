"""What a site asks programs to leave alone (RFC 9309), and for how long it is remembered."""

import re
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

LIMIT_BYTES = 512_000
"""RFC 9309 section 2.5 asks for at least 500 KiB."""
RULES = 1_000
PATTERN_CHARACTERS = 500
KEPT_S, KEPT_FAILED_S = 3_600.0, 300.0
KEPT = 200
"""Sites that are remembered, of all tenants together."""
LINE = re.compile(r"[ \t]*(user-agent|allow|disallow)[ \t]*:[ \t]*([^#]*)", re.IGNORECASE)
KEPT_ENCODED = re.compile(r"%(?:2[345AFaf]|3[Ff])")
AGENT = re.compile(r"[a-zA-Z_-]+")


class Rule(NamedTuple):
    """Whether paths that match the pattern may be asked for."""

    allow: bool
    pattern: str


class Robots:
    """The rules that a site has for one agent; *agent* is its product token."""

    def __init__(self, text: str, agent: str) -> None:
        found = list(groups(text))
        ours = [rules for agents, rules in found if agent.lower() in agents]
        others = [rules for agents, rules in found if "*" in agents]
        self._rules = [rule for rules in ours or others for rule in rules][:RULES]

    def allow(self, path: str) -> bool:
        """
        Whether *path* (with its query) may be asked for: the longest rule that matches decides,
        and of two as long the one that allows (RFC 9309 section 2.2.2).
        """
        path = normal(path)
        longest, allowed = -1, True
        for rule in self._rules:
            size = len(rule.pattern)
            if (size > longest or (size == longest and rule.allow)) and matches(rule.pattern, path):
                longest, allowed = size, rule.allow
        return allowed


def groups(text: str) -> Iterator[tuple[frozenset[str], list[Rule]]]:
    """Groups of agents, in lower case, and their rules."""
    agents: set[str] = set()
    rules: list[Rule] = []
    heading = True
    for line in text.splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        key, value = match[1].lower(), match[2].strip()
        if key == "user-agent":
            if not heading:
                yield frozenset(agents), rules
                agents, rules, heading = set(), [], True
            token = AGENT.match(value)
            agents.add("*" if value.startswith("*") else token[0].lower() if token else "")
        else:
            heading = False
            if value and len(value) <= PATTERN_CHARACTERS and len(rules) < RULES:
                rules.append(Rule(key == "allow", normal(value)))
    yield frozenset(agents), rules


def matches(pattern: str, path: str) -> bool:
    """
    Whether *path* begins like *pattern*, in which `*` is anything and a last `$` the end.

    No regular expression: a few dozen stars in one would keep it busy for ever.
    """
    ends = pattern.endswith("$")
    first, *parts = pattern.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    at = len(first)
    last = parts.pop() if parts and ends else None
    for part in parts:
        # The first place is as good as any: what follows may only be further on.
        found = path.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    if last is not None:
        return len(path) - len(last) >= at and path.endswith(last)
    return not ends or at == len(path)


def normal(path: str) -> str:
    """*path* with everything percent-encoded that need be, in one spelling (section 2.2.2)."""
    pieces: list[str] = []
    at = 0
    for match in KEPT_ENCODED.finditer(path):
        pieces += [_encoded(path[at : match.start()]), match[0].upper()]
        at = match.end()
    return "".join([*pieces, _encoded(path[at:])])


def _encoded(text: str) -> str:
    return quote(unquote_to_bytes(text), safe="/?:@!$&'()*+,;=-._~[]|^\\")


class Remembered:
    """Rules by tenant and site; what one tenant's server answered is not told to another."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._kept: dict[tuple[str, str, str], tuple[float, Robots | None]] = {}

    def get(self, key: tuple[str, str, str]) -> tuple[bool, Robots | None]:
        """Whether it is known, and what: None where the site's rules cannot be had."""
        until, robots = self._kept.get(key, (0.0, None))
        return until > self._monotonic(), robots

    def put(self, key: tuple[str, str, str], robots: Robots | None) -> None:
        """Remember for an hour, or for minutes what may soon be different."""
        if len(self._kept) >= KEPT:
            del self._kept[next(iter(self._kept))]
        until = self._monotonic() + (KEPT_FAILED_S if robots is None else KEPT_S)
        self._kept[key] = until, robots
