"""Finds secrets in bytes with one automaton."""

from collections.abc import Iterable, Iterator
from functools import cache

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from gatepost.redaction.matching import SecretMatch, SecretSpan, shapes

PATIENCE = 20_000
"""
The maximum number of doubtful hits in one text, after which token prefixes alone are redacted.
"""
EFFORT = 200_000
"""
The maximum cost of comparing hits in one text.

A text that costs more repeats parts of secrets, which only an attack does; it is redacted as a
whole.
"""
STEP_BYTES = 16_384
"""
The bytes that are searched at once; each byte may be a hit of several patterns, which takes memory.
"""


class TooMuch(Exception):
    """Raised when a text consists of hits; *mark* is one of them."""

    def __init__(self, mark: SecretMatch) -> None:
        super().__init__(mark.name)
        self.mark = mark


class Automaton:
    """
    Finds marks in bytes in one pass, regardless of their number (Aho and Corasick, 1975).

    Made once for a set of secrets. Building takes time for each secret, searching does not.
    """

    def __init__(self, marks: Iterable[SecretMatch], *, fast: bool = False) -> None:
        by_window: dict[bytes, list[SecretMatch]] = {}
        for mark in marks:
            by_window.setdefault(mark.window, []).append(mark)
        self._marks = list(by_window.values())
        # Four times as fast, and some megabytes more: for the one that most tenants share.
        form = Implementation.DFA if fast else Implementation.ContiguousNFA
        self._reach = max(map(len, by_window), default=1) - 1
        automaton = BytesAhoCorasick(by_window, matchkind=MatchKind.Standard, implementation=form)
        self.search = automaton.find_matches_as_indexes

    def finds(self, text: bytes) -> list[SecretSpan]:
        """Return all matches in *text*, unordered; they may overlap. Raises TooMuch."""
        return [*self._checked(text)]

    def values(self, text: bytes) -> list[SecretSpan]:
        """Return the matches of known values only."""
        found: list[SecretSpan] = []
        effort = EFFORT
        for which, start, _ in self._hits(text):
            for mark in self._marks[which]:
                if mark.doubt:
                    continue
                effort -= mark.effort
                if effort < 0:
                    raise TooMuch(mark)
                if (span := mark.exact(text, start)) is not None:
                    found.append(span)
        return found

    def _hits(self, text: bytes) -> Iterator[tuple[int, int, int]]:
        # Overlapping: one that ends first, or begins first, must not hide another.
        if len(text) <= STEP_BYTES:
            yield from self.search(text, overlapping=True)
            return
        for step in range(0, len(text), STEP_BYTES):
            part = text[step : step + STEP_BYTES + self._reach]
            for which, start, end in self.search(part, overlapping=True):
                if start < STEP_BYTES:  # else the next step finds it as well
                    yield which, step + start, step + end

    def _checked(self, text: bytes) -> Iterator[SecretSpan]:
        until: dict[SecretMatch, int] = {}
        patience, effort = PATIENCE, EFFORT
        for which, start, end in self._hits(text):
            for mark in self._marks[which]:
                effort -= mark.effort
                if effort < 0:
                    raise TooMuch(mark)
                # What begins within a token of its own form is a part of it.
                if start < until.get(mark, 0):
                    continue
                if patience < mark.doubt:
                    yield SecretSpan(start, end, mark.name, False)
                    continue
                span = mark.at(text, start)
                if span is None:
                    patience -= mark.doubt
                    continue
                if not span.secret:
                    until[mark] = span.end
                yield span


@cache
def token_shapes() -> tuple[SecretMatch, ...]:
    """Return what recognizes tokens by their form."""
    return tuple(shapes())


@cache
def plain_automaton() -> Automaton:
    """Return the automaton that finds tokens only."""
    return Automaton(token_shapes(), fast=True)
