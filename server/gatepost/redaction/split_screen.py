"""Find out at several times the speed of a search that no value is split over quoted strings."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from gatepost.redaction.matching import Hex, KnownMatch
from gatepost.redaction.quoted_strings import SEPARATOR, own_strings
from gatepost.redaction.screen import PIECE_BYTES, PIECES_AT_ONCE, STEP_BYTES, has_pattern
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
from gatepost.redaction.split_windows import (
    NUMBER,
    QUOTATION_MARKS,
    SEPARATORS,
    WINDOW_BYTES,
    best_window,
    cases,
    covering_forms,
    rarity,
    written,
)

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
        if NUMBER.issuperset(self.pattern):
            return True
        after, end = position + len(self.pattern), self.at + len(self.pattern) - self.is_begun
        before = b"" if self.is_begun else text[max(position - COMPARED_BYTES, 0) : position]
        beginning = self.value[max(self.at - COMPARED_BYTES, 0) : self.at]
        following = text[after : after + COMPARED_BYTES]
        is_ended = self.pattern[-1] in QUOTATION_MARKS
        expected = b"" if is_ended else self.value[end : end + COMPARED_BYTES]
        if self.in_any_case:
            before, following = before.lower(), following.lower()
        return _agree(following, expected) and _agree(before[::-1], beginning[::-1])


class SplitScreen:
    """
    Knows short patterns, of which a text holds one if a value is split over its quoted strings.

    Of each value a window of eight bytes is looked for. However it is cut into strings, and into
    the numbers between them, the text holds one of the patterns of `covering_forms`, in whatever
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
        # A text has a separator in quotation marks wherever one follows the end of a string.
        self._separators = [byte for byte in self._single if byte[0] in SEPARATORS]
        sought = self._single.keys() - self._separators
        self._single_passes = {
            quote: [*_passes(quote + byte + quote for byte in sought)] for quote in _QUOTES
        }
        self._all_single = frozenset(self._single).union(
            b"%c" % byte
            for byte_groups in self._single.values()
            for others in byte_groups
            for group in others
            for byte in group
        )

    def is_unsplit(self, text: bytes, *, single_decoding: bool, is_paired: bool) -> bool:
        """
        Return True only if no value is split over the strings of a decoding of the text.

        *single_decoding* says that the text has no decoding but itself, as `has_layers` finds.
        *is_paired* says that each string of the text begins with an odd quotation mark of it.
        """
        if not self._is_usable:
            return False
        if single_decoding:
            return not self._finds(text, is_paired=is_paired)
        # With escapes, a value of too few bytes to be searched for may be written with enough.
        decodings = None if self._has_short else separate_decodings(text)
        return decodings is not None and not any(
            self._finds(layer, is_paired=is_paired and depth == 0)
            for depth, layer in enumerate(decodings)
        )

    def _finds(self, text: bytes, *, is_paired: bool) -> bool:
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
        is_plain = is_paired and BACKSLASH not in text
        return any(
            self._may_have_single(text, quote)
            and not (is_plain and quote == b'"' and self._has_no_single(text, quote))
            for quote in quotes
        )

    def _may_have_single(self, text: bytes, quote: bytes) -> bool:
        """
        Return whether a text has the strings of one byte that a value may be cut into.

        True also if a string seems to be one, because it is between the ends of two others.
        """
        view, strings = memoryview(text), set[bytes](self._separators)
        for step in range(0, len(text), STEP_BYTES):
            part = view[step : step + STEP_BYTES + PIECE_BYTES]
            for automaton in self._single_passes[quote]:
                hits = automaton.find_matches_as_indexes(part)
                if len(hits) > MAX_SINGLE:
                    return True
                for _, start, _ in hits:
                    # The mark that ends a string may also begin one, which is not found then.
                    strings.update(text[at : at + 1] for at in (step + start + 1, step + start + 3))
        if sum(len(self._single.get(string, ())) for string in strings) > MAX_HELD:
            return True
        return self._are_strings(strings, lambda byte: quote + byte + quote in text)

    def _has_no_single(self, text: bytes, quote: bytes) -> bool:
        """Return the contrary of the same exactly, which takes longer."""
        strings = own_strings(text, quote, self._all_single)
        return not self._are_strings(strings, strings.__contains__)

    def _are_strings(self, strings: Iterable[bytes], is_string: Callable[[bytes], bool]) -> bool:
        """Return whether all bytes that a value may be cut into are strings of their own."""
        return any(
            is_string(string)
            and all(any(is_string(b"%c" % byte) for byte in group) for group in byte_groups)
            for string in strings
            for byte_groups in self._single.get(string, ())
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
            at = best_window(value, in_any_case=is_hex)
            if at is None:
                return False
            self._add(value, at, in_any_case=is_hex)
            if len(self._suspects) > MAX_PATTERNS:
                return False
        return max(map(len, self._suspects.values()), default=0) <= MAX_ALIKE

    def _add(self, value: bytes, at: int, *, in_any_case: bool) -> None:
        window = value[at : at + WINDOW_BYTES]
        forms, singles = covering_forms(bytes(byte in NUMBER for byte in window))
        for form in forms:
            for quote in _QUOTES if form.is_begun or form.is_ended else (b"",):
                pattern = written(window, form, quote)
                suspect = SplitPiece(value, in_any_case, at + form.begin, pattern, form.is_begun)
                for spelling in cases(pattern) if in_any_case else (pattern,):
                    self._patterns[quote][spelling] = None
                    self._suspects.setdefault(spelling, []).append(suspect)
        for positions in singles:
            bytes_ = [window[position : position + 1] for position in positions]
            rarest, *other_bytes = sorted(bytes_, key=rarity)
            byte_groups = [byte + byte.upper() if in_any_case else byte for byte in other_bytes]
            for byte in cases(rarest) if in_any_case else (rarest,):
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
        if text_byte in QUOTATION_MARKS:
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
