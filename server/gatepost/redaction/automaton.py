"""One automaton for all that must not leave: what it finds in a text, and the text without it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from gatepost.redaction.encoding import marks_of, meant_by
from gatepost.redaction.layer import UNREAD, layers, readings
from gatepost.redaction.mark import Mark, Span
from gatepost.redaction.shape import shapes

PATIENCE = 20_000
"""
How much doubt one text may cause before tokens are taken by their beginnings alone: somebody made
it to keep the server busy, or to hide something among so many.
"""
EFFORT = 200_000
"""
What comparing hits may cost for one text, where each costs one and a little for its length. A text
that costs more repeats what secrets are made of, as nothing but an attack does: none of it is told.
"""
STEP_BYTES = 16_384
"""How much is searched at once: each byte may be a hit of several patterns, and each hit takes
memory."""


class TooMuch(Exception):
    """A text is made of hits; *mark* is one that was found in it."""

    def __init__(self, mark: Mark) -> None:
        super().__init__(mark.name)
        self.mark = mark


class Automaton:
    """
    Finds marks in bytes, in one pass however many there are (Aho and Corasick, 1975).

    Made once for a set of secrets. Building takes time for each secret, searching does not.
    """

    def __init__(self, marks: Iterable[Mark], *, fast: bool = False) -> None:
        by_window: dict[bytes, list[Mark]] = {}
        for mark in marks:
            by_window.setdefault(mark.window, []).append(mark)
        self._marks = list(by_window.values())
        # Four times as fast, and some megabytes more: for the one that most tenants share.
        form = Implementation.DFA if fast else Implementation.ContiguousNFA
        self._reach = max(map(len, by_window), default=1) - 1
        automaton = BytesAhoCorasick(by_window, matchkind=MatchKind.Standard, implementation=form)
        self.search = automaton.find_matches_as_indexes

    def finds(self, text: bytes) -> list[Span]:
        """Everything in *text* as it stands, in no order; parts may overlap. Raises TooMuch."""
        return [*self._checked(text)]

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

    def _checked(self, text: bytes) -> Iterator[Span]:
        until: dict[Mark, int] = {}
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
                    yield Span(start, end, mark.name, False)
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
    Takes the secrets of one tenant, and tokens of known forms, out of texts.

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
        """Whether it knows no secrets."""
        self._search: Callable[[bytes, bool], object] = self._automata[0].search

    def with_values(self, values: Iterable[tuple[str, str]]) -> "Redactor":
        """One that also takes out what a single call was given, by name and value."""
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
        both._search = _found
        return both

    def clear(self, text: bytes) -> bool:
        """Whether nothing is to be taken out; every call asks, and most answers are short."""
        return not (UNREAD(text) or self._search(text, True)) or not self.spans(text)

    def spans(self, text: bytes) -> list[Span]:
        """Where something is to be taken out: sorted, apart from each other."""
        try:
            return self._spans(text)
        except TooMuch as found:
            return [Span(0, len(text), found.mark.name, found.mark.doubt == 0)]

    def _spans(self, text: bytes) -> list[Span]:
        found: list[Span] = []
        ways = None
        for depth, layer in enumerate(layers(text)):
            for one in self._automata:
                for span in one.finds(layer):
                    if depth == 0:
                        found.append(span)
                        continue
                    ways = ways or readings(text)
                    start, end = ways[depth].source(span.start, span.end)
                    found.append(Span(start, end, span.name, span.secret))
        return merged(found) if found else found

    def clean(self, text: str) -> str:
        """*text* with `[REDACTED:NAME]` in place of each; the same object where there is none."""
        plain = text.encode(errors="surrogatepass")
        spans = self.spans(plain)
        return replaced(plain, spans).decode(errors="replace") if spans else text


def merged(spans: Iterable[Span]) -> list[Span]:
    """
    Spans that overlap made one, which has the name of the best of them.

    A known value is better than a shape, then the longer, then the one that begins first, then
    the name that sorts first: the same text always reads the same.
    """
    found: list[Span] = []
    best: list[Span] = []
    for span in sorted(spans):
        if not found or span.start >= found[-1].end:
            found.append(span)
            best.append(span)
            continue
        if _rank(span) < _rank(best[-1]):
            best[-1] = span
        last, name = found[-1], best[-1].name
        found[-1] = Span(last.start, max(last.end, span.end), name, last.secret or span.secret)
    return found


def replaced(text: bytes, spans: Iterable[Span]) -> bytes:
    """The text with a marker for each of these spans, which are as `merged` answers them."""
    pieces: list[bytes] = []
    position = 0
    for span in spans:
        pieces += text[position : span.start], marker(span.name)
        position = span.end
    return b"".join([*pieces, text[position:]])


def marker(name: str) -> bytes:
    """What stands in place of a secret."""
    return b"[REDACTED:%s]" % name.encode()


def _rank(span: Span) -> tuple[bool, int, int, str]:
    return not span.secret, span.start - span.end, span.start, span.name


def _found(text: bytes, overlapping: bool) -> bool:
    """Stands in for the search of several automata: they have to be asked one by one."""
    return True


@cache
def _shapes() -> tuple[Mark, ...]:
    return tuple(shapes())


@cache
def _plain() -> Automaton:
    return Automaton(_shapes(), fast=True)
