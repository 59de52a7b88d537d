"""Finds and redacts secrets in texts with one automaton."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from gatepost.redaction.encoding import marks_of, meant_by
from gatepost.redaction.matching import SecretMatch, SecretSpan, shapes
from gatepost.redaction.readings import UNREAD, layers, readings

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


class Redactor:
    """
    Redacts the secrets of one tenant and well-known tokens in texts.

    *fast* is for few secrets that many tenants share.
    """

    def __init__(self, secrets: Mapping[str, str], *, fast: bool = False) -> None:
        marks = [
            mark
            for name in sorted(secrets)
            for meant in meant_by(secrets[name])
            for mark in marks_of(name, meant)
        ]
        self._automata: tuple[Automaton, ...] = (
            Automaton([*marks, *_shapes()], fast=fast) if marks else _plain(),
        )
        self.plain = not marks
        """Whether the tenant has no secrets."""
        self.of_caller = False
        """Whether some of the secrets are those of a single call."""
        self._search: Callable[[bytes, bool], object] = self._automata[0].search

    def with_values(self, values: Iterable[tuple[str, str]]) -> "Redactor":
        """Return a redactor that also redacts values of a single call, by name and value."""
        marks = [
            mark
            for name, value in values
            for meant in meant_by(value)
            for mark in marks_of(name, meant)
        ]
        if not marks:
            return self
        both = object.__new__(Redactor)
        both._automata, both.plain = (*self._automata, Automaton(marks)), False
        both.of_caller, both._search = True, _found
        return both

    def clear(self, text: bytes) -> bool:
        """Return whether the text contains nothing to redact; every call uses this."""
        return not (UNREAD(text) or self._search(text, True)) or not self.spans(text)

    def surely_clear(self, text: bytes) -> bool:
        """Return whether a search alone shows that there is nothing to redact."""
        return not (UNREAD(text) or self._search(text, True))

    def spans(self, text: bytes) -> list[SecretSpan]:
        """Return the spans to redact: sorted and disjoint."""
        return self._spans(text, Automaton.finds)

    def values(self, text: bytes) -> list[SecretSpan]:
        """
        Return the spans of known values only, for a text that was joined from several values.

        A token's form could reach from one value into the next.
        """
        if self.plain:
            return []
        if len(text) <= STEP_BYTES and not (UNREAD(text) or self._search(text, True)):
            return []  # nearly always
        return self._spans(text, Automaton.values)

    def _spans(
        self, text: bytes, find: Callable[[Automaton, bytes], list[SecretSpan]]
    ) -> list[SecretSpan]:
        try:
            return self._read(text, find)
        except TooMuch as found:
            return [SecretSpan(0, len(text), found.mark.name, found.mark.doubt == 0)]

    def _read(
        self, text: bytes, find: Callable[[Automaton, bytes], list[SecretSpan]]
    ) -> list[SecretSpan]:
        found: list[SecretSpan] = []
        ways = None
        for depth, layer in enumerate(layers(text)):
            for one in self._automata:
                for span in find(one, layer):
                    if depth == 0:
                        found.append(span)
                        continue
                    ways = ways or readings(text)
                    start, end = ways[depth].source(span.start, span.end)
                    found.append(SecretSpan(start, end, span.name, span.secret))
        return merged(found) if found else found

    def clean(self, text: str) -> str:
        """
        Return *text* with `[REDACTED:NAME]` for each span, or the same object if there is none.
        """
        plain = text.encode(errors="surrogatepass")
        spans = self.spans(plain)
        return replaced(plain, spans).decode(errors="replace") if spans else text


def merged(spans: Iterable[SecretSpan]) -> list[SecretSpan]:
    """
    Merge overlapping spans; the best of them gives the name.

    A known value is better than a shape, then the longer, then the one that begins first, then
    the name that sorts first: the same text always reads the same.
    """
    found: list[SecretSpan] = []
    best: list[SecretSpan] = []
    for span in sorted(spans):
        if not found or span.start >= found[-1].end:
            found.append(span)
            best.append(span)
            continue
        if _rank(span) < _rank(best[-1]):
            best[-1] = span
        last, name = found[-1], best[-1].name
        found[-1] = SecretSpan(
            last.start, max(last.end, span.end), name, last.secret or span.secret
        )
    return found


def replaced(text: bytes, spans: Iterable[SecretSpan]) -> bytes:
    """Return the text with a marker for each of these spans, as `merged` returns them."""
    pieces: list[bytes] = []
    position = 0
    for span in spans:
        pieces += text[position : span.start], marker(span.name)
        position = span.end
    return b"".join([*pieces, text[position:]])


def marker(name: str) -> bytes:
    """Return the marker that replaces a secret."""
    return b"[REDACTED:%s]" % name.encode()


def _rank(span: SecretSpan) -> tuple[bool, int, int, str]:
    return not span.secret, span.start - span.end, span.start, span.name


def _found(text: bytes, overlapping: bool) -> bool:
    """Search with several automata, one after another."""
    return True


@cache
def _shapes() -> tuple[SecretMatch, ...]:
    return tuple(shapes())


@cache
def _plain() -> Automaton:
    return Automaton(_shapes(), fast=True)
