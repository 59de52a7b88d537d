"""Find out at several times the speed of a search that no value is split over quoted strings."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import combinations, pairwise, product
from typing import NamedTuple

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from gatepost.redaction.matching import Hex, KnownMatch
from gatepost.redaction.quoted_strings import SEPARATOR
from gatepost.redaction.screen import (
    PIECE_BYTES,
    PIECES_AT_ONCE,
    STEP_BYTES,
    common_in,
    has_pattern,
)
from gatepost.redaction.secret_search import (
    AMPERSAND,
    BACKSLASH,
    BLANKS,
    DEEPEST,
    PERCENT,
    has_breaks,
    is_escaped,
    layers,
    unescaped,
    unwrapped,
)

WINDOW_BYTES = 2 * PIECE_BYTES
"""The part of each value that is looked for."""
TRIED_WINDOWS, MAX_TRIED = 16, 256
"""
How many parts of a value are compared to choose the one that is looked for; more if each of them
may be a number.
"""
MAX_PATTERNS = 2_048
"""
The patterns of some four secrets. To make them takes four milliseconds for each secret, once.
"""
MAX_VALUES, MAX_ALIKE = 128, 16
"""
Maximum number of values, which some five secrets have, and how many of them may have a pattern in
common.

A tenant may have a thousand secrets that end alike, and so few patterns: to choose those would take
seconds, and so would comparing all the values wherever a text has one of the patterns.
"""
MAX_TOGETHER = PIECES_AT_ONCE - 4
"""Maximum number of patterns that are searched for together."""
MAX_FOUND = 64
"""How many patterns in one step are looked at; a text with more of them may hold a value."""
MAX_SINGLE, MAX_HELD = 2_000, 16
"""
How many strings of one byte are looked at in one step, and of how many values the others are looked
for: a text with more of them may hold a value.
"""
COMPARED_BYTES = 32
"""How far on each side of a pattern the text is compared with the value."""

_QUOTES = (b'"', b"'")
_NOWHERE = [bytes((code,)) * 4 for code in range(1, 5)]
"""Patterns that no text has, but that begin with other bytes than a quotation mark."""
_MARKS = frozenset(b"\"'")
_NUMBER = frozenset(b"0123456789.eE+-")
"""The bytes that a number between the strings may have."""

_USUAL = _NUMBER | frozenset(b"abxy,:")
"""The bytes that are often strings of their own, as names of rows are, or seem to be."""

_BEGUN_ESCAPES = {
    PERCENT: re.compile(rb"%[0-9A-Fa-f]?[\"']"),
    AMPERSAND: re.compile(rb"&#?[A-Za-z0-9]{0,32}[\"']"),
    BACKSLASH: re.compile(
        rb"\\(?:x[0-9A-Fa-f]?|u[0-9A-Fa-f]{0,3}"
        rb"|u[dD][89abAB][0-9A-Fa-f]{2}(?:\\(?:u[0-9A-Fa-f]{0,3})?)?)[\"']"
    ),
}
"""The ends of strings that may be an escape together with the beginning of another string."""
_LONGEST = 36
"""The length of the longest match of these forms in bytes."""
_blank_behind = BytesAhoCorasick(
    [quote + bytes((blank,)) for quote in _QUOTES for blank in BLANKS], MatchKind.LeftmostFirst
)


class PieceForm(NamedTuple):
    """Bytes of a window that stand together, and on which sides there is a quotation mark."""

    begin: int
    end: int
    is_begun: bool = False
    is_ended: bool = False


HALVES = (PieceForm(0, PIECE_BYTES), PieceForm(PIECE_BYTES, WINDOW_BYTES))
"""The halves of a window."""


class SplitPiece(NamedTuple):
    """Bytes of a value, at *at* of it, as they are written in a text that may hold it split."""

    value: bytes
    in_any_case: bool
    at: int
    pattern: bytes
    is_begun: bool

    def is_at(self, text: bytes, position: int) -> bool:
        """
        Return whether the text around the pattern is the value's, as far as their string reaches.

        Of bytes that may be a part of a number, the ends of the number are not looked for.
        """
        if _NUMBER.issuperset(self.pattern):
            return True
        after, end = position + len(self.pattern), self.at + len(self.pattern) - self.is_begun
        before = b"" if self.is_begun else text[max(position - COMPARED_BYTES, 0) : position]
        beginning = self.value[max(self.at - COMPARED_BYTES, 0) : self.at]
        following = text[after : after + COMPARED_BYTES]
        expected = b"" if self.pattern[-1] in _MARKS else self.value[end : end + COMPARED_BYTES]
        if self.in_any_case:
            before, following = before.lower(), following.lower()
        return _agree(following, expected) and _agree(before[::-1], beginning[::-1])


class SplitScreen:
    """
    Knows short patterns, of which a text holds one if a value is split over its quoted strings.

    Of each value a window of eight bytes is looked for. However it is cut into strings, and into
    the numbers between them, the text holds one of the patterns that `_forms` chooses, in whatever
    order the strings are joined, and whichever quotation mark is the first one of a string.
    """

    def __init__(self, marks: Sequence[KnownMatch]) -> None:
        self._suspects: dict[bytes, list[SplitPiece]] = {}
        self._patterns: dict[bytes, dict[bytes, None]] = {
            b"": {},
            **{quote: {} for quote in _QUOTES},
        }
        self._single: dict[bytes, set[tuple[bytes, ...]]] = {}
        """For a byte, which bytes a text also has as a whole string each, in one case or other."""
        self._is_usable = self._fill(marks)
        self._has_short = self._is_usable and any(mark.length < WINDOW_BYTES for mark in marks)
        self._passes = {quote: [*_passes(patterns)] for quote, patterns in self._patterns.items()}
        self._single_passes = {
            quote: [*_passes(quote + byte + quote for byte in self._single)] for quote in _QUOTES
        }

    def is_unsplit(self, text: bytes, *, single_decoding: bool) -> bool:
        """
        Return True only if no value is split over the strings of a decoding of the text.

        *single_decoding* says that the text has no decoding but itself, as `has_layers` finds.
        """
        if not self._is_usable:
            return False
        if single_decoding:
            return not self._finds(text)
        # With escapes, a value of too few bytes to be searched for may be written with enough.
        decodings = None if self._has_short else separate_decodings(text)
        return decodings is not None and not any(map(self._finds, decodings))

    def _finds(self, text: bytes) -> bool:
        quotes = [quote for quote in _QUOTES if quote[0] in text]
        passes = [automaton for quote in (b"", *quotes) for automaton in self._passes[quote]]
        view = memoryview(text)
        for step in range(0, len(text), STEP_BYTES):
            part = view[step : step + STEP_BYTES + PIECE_BYTES]
            for automaton in passes:
                hits = automaton.find_matches_as_indexes(part)
                if len(hits) > MAX_FOUND:
                    return True
                if any(self._is_suspected(text, step + start) for _, start, _ in hits):
                    return True
        return any(self._finds_single(text, quote) for quote in quotes)

    def _finds_single(self, text: bytes, quote: bytes) -> bool:
        """Return whether a text has the strings of one byte that a value may be cut into."""
        view, strings = memoryview(text), set[bytes]()
        for step in range(0, len(text), STEP_BYTES):
            part = view[step : step + STEP_BYTES + PIECE_BYTES]
            for automaton in self._single_passes[quote]:
                hits = automaton.find_matches_as_indexes(part)
                if len(hits) > MAX_SINGLE:
                    return True
                for _, start, _ in hits:
                    # The mark that ends a string may also begin one, which is not found then.
                    strings.update(text[at : at + 1] for at in (step + start + 1, step + start + 3))
        others_of = [
            byte_groups for string in strings for byte_groups in self._single.get(string, ())
        ]
        return len(others_of) > MAX_HELD or any(
            all(
                any(quote + b"%c" % byte + quote in text for byte in group) for group in byte_groups
            )
            for byte_groups in others_of
        )

    def _is_suspected(self, text: bytes, position: int) -> bool:
        """Return whether a suspect begins at a pattern, or at one that this pattern hides."""
        return any(
            suspect.is_at(text, at)
            for at in range(position, position + PIECE_BYTES)
            for suspect in self._suspects.get(text[at : at + PIECE_BYTES], ())
        )

    def _fill(self, marks: Sequence[KnownMatch]) -> bool:
        """Choose the patterns of all values; return False if a value has none, or they are many."""
        values: dict[tuple[bytes, bool], None] = {}
        for mark in marks:
            if mark.length >= WINDOW_BYTES:
                values[mark.whole, isinstance(mark, Hex)] = None
            if len(values) > MAX_VALUES:
                return False
        for value, is_hex in values:
            at = _best_window(value, in_any_case=is_hex)
            if at is None:
                return False
            self._add(value, at, in_any_case=is_hex)
            if len(self._suspects) > MAX_PATTERNS:
                return False
        return max(map(len, self._suspects.values()), default=0) <= MAX_ALIKE

    def _add(self, value: bytes, at: int, *, in_any_case: bool) -> None:
        window = value[at : at + WINDOW_BYTES]
        forms, singles = _forms(bytes(byte in _NUMBER for byte in window))
        for form in forms:
            for quote in _QUOTES if form.is_begun or form.is_ended else (b"",):
                pattern = _written(window, form, quote)
                suspect = SplitPiece(value, in_any_case, at + form.begin, pattern, form.is_begun)
                for written in _cases(pattern) if in_any_case else (pattern,):
                    self._patterns[quote][written] = None
                    self._suspects.setdefault(written, []).append(suspect)
        for positions in singles:
            bytes_ = [window[position : position + 1] for position in positions]
            rarest, *other_bytes = sorted(bytes_, key=_rarity)
            byte_groups = [byte + byte.upper() if in_any_case else byte for byte in other_bytes]
            for byte in _cases(rarest) if in_any_case else (rarest,):
                self._single.setdefault(byte, set()).add(tuple(byte_groups))


def separate_decodings(text: bytes) -> list[bytes] | None:
    """
    Return the decodings of a text that may hold escapes and line breaks.

    Return None unless each string can be decoded apart from the strings it may be joined with: no
    escape may begin in one and end in another.
    """
    decodings = layers(text)
    is_wrapped = len(decodings) > 1 and has_breaks(decodings[-2]) and not has_breaks(decodings[-1])
    unescapings = decodings[:-1] if is_wrapped else decodings
    if len(unescapings) > DEEPEST:
        return None  # more escapes may be left
    if is_wrapped:
        last, outer = decodings[-2:]
        if has_pattern(_blank_behind, last):
            # Behind a string that ends with a line break, the first blanks are its indentation.
            indented = [last.replace(quote, quote + b"\n") for quote in _QUOTES if quote in last]
            decodings[-1] = SEPARATOR.join([outer, *map(unwrapped, indented)])
        if is_escaped(outer) and unescaped(outer) != outer:
            return None
    for depth, layer in enumerate(decodings):
        for escape, beginning in _BEGUN_ESCAPES.items():
            if escape in layer and _matches(beginning, layer):
                return None
        # At first it is an escaped quotation mark. Later it may also be a backslash that a string
        # ends with.
        if depth and len(unescapings) > 1 and any(b"\\" + quote in layer for quote in _QUOTES):
            return None
    return decodings


def _matches(form: re.Pattern[bytes], text: bytes) -> bool:
    """Return whether one of the forms above occurs in a text, of which each step is searched."""
    # No other thread runs during a search, and a text may consist of what nearly matches.
    return any(
        form.search(text, step, step + STEP_BYTES + _LONGEST)
        for step in range(0, len(text), STEP_BYTES)
    )


def _agree(text: bytes, value: bytes) -> bool:
    """Return whether both begin alike, up to the end of one of them or a quotation mark."""
    for text_byte, value_byte in zip(text, value, strict=False):
        if text_byte in _MARKS:
            return True
        if text_byte != value_byte:
            return False
    return True


def _passes(patterns: Iterable[bytes]) -> Iterator[BytesAhoCorasick]:
    """Yield what finds some of the patterns each."""
    # Each has patterns that begin with different bytes: if all began with a quotation mark, the
    # library would look for that alone, which is ten times as slow.
    ordered = sorted(patterns)
    passes = -(-len(ordered) // MAX_TOGETHER)
    for at in range(passes):
        # Nearly no byte gets past the vector instructions, so that the automaton behind them may be
        # the smallest: the usual one takes megabytes for each tenant.
        yield BytesAhoCorasick(
            [*ordered[at::passes], *_NOWHERE],
            matchkind=MatchKind.LeftmostFirst,
            implementation=Implementation.ContiguousNFA,
        )


def _written(window: bytes, form: PieceForm, quote: bytes) -> bytes:
    """Return the bytes of a window in that form."""
    return quote * form.is_begun + window[form.begin : form.end] + quote * form.is_ended


@cache
def _forms(numbers: bytes) -> tuple[Sequence[PieceForm], Sequence[Sequence[int]]]:
    """
    Return forms of pieces, and places of single bytes, so that each way to cut a window has one.

    *numbers* says for each byte whether it may be a part of a number. All bytes at the places of
    one list are strings of their own.
    """
    cuts = [cut for size in range(1, 8) for cut in combinations(range(1, WINDOW_BYTES), size)]
    uncovered = [_forms_of(cut, numbers) for cut in cuts]
    chosen_forms: list[PieceForm] = []
    singles: list[Sequence[int]] = []
    counts = Counter(HALVES)
    while uncovered:
        best = max(counts, key=lambda form: (form.end - form.begin > 1, counts[form]))
        covered = [cut_forms for cut_forms in uncovered if best in cut_forms]
        if best.end - best.begin > 1:
            chosen_forms.append(best)
        else:
            singles.append([form.begin for form in set.intersection(*covered)])
        uncovered = [cut_forms for cut_forms in uncovered if best not in cut_forms]
        counts = Counter(form for forms in uncovered for form in forms)
    return chosen_forms, singles


def _forms_of(cuts: Sequence[int], numbers: bytes) -> set[PieceForm]:
    """Return the forms of four bytes, or of one in quotation marks, of a window cut there."""
    forms: set[PieceForm] = set()
    for begin, end in pairwise((0, *cuts, WINDOW_BYTES)):
        forms.update(half for half in HALVES if begin <= half.begin and half.end <= end)
        if all(numbers[begin:end]):
            continue  # it may stand between the strings
        size = end - begin
        if begin and size >= PIECE_BYTES - 1:
            forms.add(PieceForm(begin, begin + PIECE_BYTES - 1, is_begun=True))
        if end < WINDOW_BYTES and size >= PIECE_BYTES - 1:
            forms.add(PieceForm(end - PIECE_BYTES + 1, end, is_ended=True))
        if begin and end < WINDOW_BYTES and size < PIECE_BYTES - 1:
            forms.add(PieceForm(begin, end, is_begun=True, is_ended=True))
    return forms


def _best_window(value: bytes, *, in_any_case: bool) -> int | None:
    """
    Return where the window of a value begins that costs least to look for; None if there is none.

    It is sought near the end, because keys of one service begin alike.
    """
    last = len(value) - WINDOW_BYTES
    near_start, far_start = max(last - TRIED_WINDOWS, 0), max(last - MAX_TRIED, 0)
    for positions, usual in (
        (range(near_start, last + 1), _USUAL),
        (range(far_start, near_start), _USUAL),
        (range(far_start, last + 1), _NUMBER),
    ):
        usable = [at for at in positions if not usual.issuperset(value[at + 2 : at + 6])]
        if usable:
            return min(usable, key=partial(_cost, value, in_any_case))
    return None


def _cost(value: bytes, in_any_case: bool, at: int) -> tuple[int, int]:
    window = value[at : at + WINDOW_BYTES]
    halves = window[:PIECE_BYTES], window[PIECE_BYTES:]
    numbers = sum(map(_NUMBER.issuperset, halves))
    if in_any_case:
        # Each letter doubles the patterns.
        return numbers, len(window.translate(None, b"0123456789: "))
    return numbers, sum(byte in _NUMBER for byte in window) + common_in(window)


def _cases(text: bytes) -> Iterator[bytes]:
    """Yield hexadecimal digits in each case of each letter."""
    for letters in product(*({byte, byte.upper()} for byte in map(bytes, zip(text, strict=True)))):
        yield b"".join(letters)


def _rarity(byte: bytes) -> tuple[bool, bool, bool, int]:
    """Return how rarely a byte is a string of its own in texts, or seems to be."""
    return byte in b",:", byte in b"abxy", byte.islower(), common_in(byte)
