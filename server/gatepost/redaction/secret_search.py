"""Search a text for secrets: each of its decodings, with one automaton."""

import html
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import accumulate

import msgspec
from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from gatepost.redaction.matching import SecretMatch, SecretSpan, Shape, max_misses_of, token_forms
from gatepost.redaction.screen import has_pattern, screen_of

DEEPEST = 4
"""The maximum depth of nested escapes."""

ESCAPE = re.compile(
    rb"(%[0-9A-Fa-f]{2}"
    rb"|\\(?:u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}"
    rb"|x[0-9A-Fa-f]{2}|[\"'\\/bfnrt])"
    rb"|&(?:\#[0-9]{1,7}|\#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});?)"
)
"""The escapes of URLs, of strings in JSON and programs, and of HTML."""
LONGEST = 34
"""The length of the longest escape in bytes."""
WINDOW_BYTES = 65_536
"""The number of bytes that are searched for escapes at once."""
HEAD_BYTES, BYTES_PER_MARK = 512, 64
"""
The pattern of escapes is tried at each byte of a text's beginning, and of texts where the first
characters of escapes are more frequent.
"""
_ONE_MARK = bytes.maketrans(b"%&", b"\\\\")
WRAP = re.compile(rb"([\r\n]+[ \t\x0b\f]*)")
"""A line break with the following indentation; base64 is often wrapped."""
BACKSLASH, PERCENT, AMPERSAND, NEWLINE, CARRIAGE_RETURN = b"\\%&\n\r"
LINE_BREAKS, BLANKS = frozenset(b"\r\n"), frozenset(b" \t\x0b\f")
MAX_REMEMBERED = 4096
MATCHES_AT_ONCE = 50_000
"""The number of matches processed at once, while no other thread runs."""

MAX_DOUBT = 20_000
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
SCREENED_BYTES = 1_024
"""Texts below this size are searched at once, which takes less than a microsecond for each."""

_NO_TEXT = (b"\xc0\xc0", b"\xfe\xfe", b"\xff\xff")
"""
Bytes that are in no text. Of patterns with at most three first bytes, the library looks for those
bytes alone and stops at each line; of these and others, it compares both bytes at once.
"""
_INDENTED = BytesAhoCorasick(
    [*(b"\n" + bytes((blank,)) for blank in BLANKS), *_NO_TEXT], MatchKind.LeftmostFirst
)
_NAMED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


class _Escapes(dict[bytes, bytes]):
    """The cached decoding of each escape, with bounded memory."""

    def __missing__(self, escape: bytes) -> bytes:
        if len(self) >= MAX_REMEMBERED:
            self.clear()
        self[escape] = unescaped_byte = _undone(escape)
        return unescaped_byte


_escapes = _Escapes()


def is_escaped(text: bytes) -> bool:
    """Return whether a text has an escape."""
    # One after another: each search runs at the speed of memory, but a pattern of all of them does
    # not. The bytes are given as numbers, because Python tries a number first, and a failure costs
    # ten times as much.
    if not (BACKSLASH in text or PERCENT in text or AMPERSAND in text):
        return False
    # A text with any usually has one near its beginning.
    return ESCAPE.search(text, 0, HEAD_BYTES) is not None or any(
        len(_split_escapes(text[start : start + WINDOW_BYTES + LONGEST])) > 1
        for start in range(0, len(text), WINDOW_BYTES)
    )


def has_breaks(text: bytes) -> bool:
    """Return whether a text has line breaks."""
    return NEWLINE in text or CARRIAGE_RETURN in text


def layers(text: bytes) -> list[bytes]:
    """Yield the text itself, then each further decoding."""
    decoded = [text]
    if BACKSLASH in text or PERCENT in text or AMPERSAND in text:
        for _ in range(DEEPEST):
            inner = unescaped(decoded[-1])
            if inner == decoded[-1]:
                break
            decoded.append(inner)
    if has_breaks(decoded[-1]):
        decoded.append(unwrapped(decoded[-1]))
    return decoded


def portions(form: re.Pattern[bytes], text: bytes) -> Iterator[list[bytes]]:
    """
    Yield the results of `form.split` on *text* in portions.

    What is made of each portion in C holds up the other threads only that long: a text may consist
    of millions of matches.
    """
    if form is ESCAPE:
        yield from _windows(text)
        return
    while len(pieces := form.split(text, MATCHES_AT_ONCE)) > (form.groups + 1) * MATCHES_AT_ONCE:
        text = pieces.pop()
        yield pieces
    yield pieces


def _windows(text: bytes) -> Iterator[list[bytes]]:
    """
    Yield the same for escapes in windows of bytes, because a text may have millions of near
    matches.
    """
    start = 0
    while len(text) - start > WINDOW_BYTES:
        pieces = _split_escapes(text[start : start + WINDOW_BYTES])
        carried_bytes = 0
        # An escape that begins this close to the end may become another one with the next part.
        while carried_bytes + len(pieces[-1]) < LONGEST:
            carried_bytes += len(pieces.pop())
        if len(pieces) % 2:
            pieces[-1] = pieces[-1][: carried_bytes - LONGEST]
            carried_bytes = LONGEST
        yield pieces
        start += WINDOW_BYTES - carried_bytes
    yield _split_escapes(text[start:])


def _split_escapes(text: bytes) -> list[bytes]:
    """Return the result of `ESCAPE.split`, a few times faster for the usual text."""
    marks = text.count(b"\\") + text.count(b"%") + text.count(b"&")
    if marks * BYTES_PER_MARK > len(text):
        return ESCAPE.split(text)
    # The pattern looks at each byte; here it is only tried where an escape may begin.
    pieces: list[bytes] = []
    begin = at = 0
    for segment in text.translate(_ONE_MARK).split(b"\\", marks)[:-1]:
        at += len(segment)
        if at >= begin and (match := ESCAPE.match(text, at)):
            pieces += text[begin:at], match[0]
            begin = match.end()
        at += 1
    pieces.append(text[begin:])
    return pieces


def unescaped(text: bytes) -> bytes:
    """Return the text with each escape decoded once."""
    parts: list[bytes] = []
    for pieces in portions(ESCAPE, text):
        pieces[1::2] = map(_escapes.__getitem__, pieces[1::2])
        parts.append(b"".join(pieces))
    return b"".join(parts)


def unwrapped(text: bytes) -> bytes:
    """Return the text without line breaks and the indentation behind them."""
    if CARRIAGE_RETURN not in text and not has_pattern(_INDENTED, text):
        return text.replace(b"\n", b"")  # true for most documents, at a quarter of the cost
    if len(text) > 2 * MATCHES_AT_ONCE and text.count(b"\n") + text.count(b"\r") > MATCHES_AT_ONCE:
        return b"".join([b"".join(pieces[::2]) for pieces in portions(WRAP, text)])
    first, *later_lines = text.splitlines() or [b""]
    return first + b"".join(map(bytes.lstrip, later_lines))


def decoded_forms(text: bytes) -> list[bytes]:
    """Return the decoded forms of a value with escapes or line breaks."""
    layer_texts = layers(text)
    return layer_texts[1:] + [unwrapped(layer) for layer in layer_texts]


class Trace:
    """Maps the bytes of one decoding to the bytes of the previous one."""

    def __init__(
        self, form: re.Pattern[bytes], text: bytes, rewritten: Callable[[bytes], bytes]
    ) -> None:
        # Every other piece is an escape. The offsets are plain numbers, because a text may consist
        # of escapes.
        self._from, self._at, self._same = array("q", [0]), array("q", [0]), bytearray()
        parts: list[bytes] = []
        for pieces in portions(form, text):
            rewritten_pieces = pieces[:]
            rewritten_pieces[1::2] = map(rewritten, pieces[1::2])
            self._from.extend(accumulate(map(len, pieces), initial=self._from.pop()))
            self._at.extend(accumulate(map(len, rewritten_pieces), initial=self._at.pop()))
            self._same.extend(map(bytes.__eq__, pieces, rewritten_pieces))
            parts.append(b"".join(rewritten_pieces))
        self.text = b"".join(parts)

    def start(self, position: int) -> int:
        """Return the start of the byte at *position* in the previous text."""
        piece = bisect_right(self._at, position) - 1
        if piece == len(self._same):
            return self._from[piece]
        offset = position - self._at[piece] if self._same[piece] else 0
        return self._from[piece] + offset

    def end(self, position: int) -> int:
        """Return the end of the bytes before *position* in the previous text."""
        piece = bisect_right(self._at, position - 1) - 1
        if self._same[piece]:
            return self._from[piece] + position - self._at[piece]
        return self._from[piece + 1]


class LayerReading(msgspec.Struct, frozen=True):
    """One decoding with its mapping to the text."""

    text: bytes
    traces: tuple[Trace, ...] = ()

    def source(self, start: int, end: int) -> tuple[int, int]:
        """Return the place of a part of this decoding in the text."""
        for trace in reversed(self.traces):
            start, end = trace.start(start), trace.end(end)
        return start, end


def readings(text: bytes) -> list[LayerReading]:
    """Yield the layers, each with its mapping to the text."""
    layer_readings = [LayerReading(text)]
    for layer in layers(text)[1:]:
        last = layer_readings[-1]
        trace = Trace(ESCAPE, last.text, _escapes.__getitem__)
        if trace.text != layer:
            trace = Trace(WRAP, last.text, _nothing)
        layer_readings.append(LayerReading(trace.text, (*last.traces, trace)))
    return layer_readings


def _nothing(_: bytes) -> bytes:
    return b""


def _undone(escape: bytes) -> bytes:
    if escape[:1] == b"%":
        return bytes.fromhex(escape[1:].decode())
    if escape[:1] == b"&":
        return html.unescape(escape.decode()).encode(errors="replace")
    letter, digits = escape[1:2], escape[2:]
    if letter == b"u" and len(digits) == 4:
        return chr(int(digits, 16)).encode(errors="surrogatepass")
    if letter == b"u":
        high, low = int(digits[:4], 16), int(digits[6:], 16)
        return chr(0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF)).encode()
    if letter == b"x":
        return bytes.fromhex(digits.decode())
    return _NAMED.get(letter, letter)


class TooMuch(Exception):
    """A text consists of hits; *mark* is one of them."""

    def __init__(self, mark: SecretMatch) -> None:
        super().__init__(mark.name)
        self.mark = mark


class Automaton:
    """
    Finds marks in bytes in one pass, regardless of their number (Aho and Corasick, 1975).

    Building takes time for each secret, but searching does not. *of_call* says that it is built for
    the secrets of one call, which has too few long texts to need a screen.
    """

    def __init__(
        self, marks: Iterable[SecretMatch], *, fast: bool = False, of_call: bool = False
    ) -> None:
        by_window: dict[bytes, list[SecretMatch]] = {}
        for mark in marks:
            by_window.setdefault(mark.window, []).append(mark)
        self._marks = list(by_window.values())
        # Four times as fast, with some megabytes more: for the automaton that most tenants share.
        form = Implementation.DFA if fast else Implementation.ContiguousNFA
        self._overlap = max(map(len, by_window), default=1) - 1
        self._outlasts_breaks = all(
            BLANKS.isdisjoint(window[:1]) and LINE_BREAKS.isdisjoint(window) for window in by_window
        )
        automaton = BytesAhoCorasick(by_window, matchkind=MatchKind.Standard, implementation=form)
        self.search = automaton.find_matches_as_indexes
        self._screen = None if of_call else screen_of(by_window)

    def surely_clear(self, text: bytes) -> bool:
        """Return whether no decoding of the text has a hit; False also for texts with escapes."""
        if is_escaped(text):
            return False
        if has_breaks(text):
            unwrapped_text = unwrapped(text)
            if self._hit(unwrapped_text):
                return False
            if self._outlasts_breaks:
                return True  # each hit of the text would be one of the text without line breaks
        return not self._hit(text)

    def has_no_hit(self, text: bytes) -> bool:
        """Return whether no decoding of the text has a hit."""
        return self.surely_clear(text) or not any(map(self._hit, layers(text)))

    def _hit(self, text: bytes) -> bool:
        """Return whether the text has a hit, without a list of all of them."""
        if len(text) <= SCREENED_BYTES:
            return bool(self.search(text, True))
        return next(self._hits(text), None) is not None

    def finds(self, text: bytes) -> list[SecretSpan]:
        """Return all matches in *text*, unordered; they may overlap. Raises TooMuch."""
        return [*self._checked(text)]

    def values(self, text: bytes) -> list[SecretSpan]:
        """Return the matches of known values only."""
        spans: list[SecretSpan] = []
        effort = EFFORT
        for index, start, _ in self._hits(text):
            for mark in self._marks[index]:
                if mark.doubt:
                    continue
                effort -= mark.effort
                if effort < 0:
                    raise TooMuch(mark)
                if (span := mark.exact(text, start)) is not None:
                    spans.append(span)
        return spans

    def _hits(self, text: bytes) -> Iterator[tuple[int, int, int]]:
        # Overlapping, because a hit that begins or ends first must not hide another one.
        if len(text) <= SCREENED_BYTES:
            yield from self.search(text, overlapping=True)
            return
        areas = [(0, len(text))] if self._screen is None else self._screen.search_areas(text)
        for begin, end_of_place in areas:
            for step in range(begin, end_of_place, STEP_BYTES):
                part = text[step : min(step + STEP_BYTES + self._overlap, end_of_place)]
                for index, start, end in self.search(part, overlapping=True):
                    if start < STEP_BYTES:  # else the next step finds it as well
                        yield index, step + start, step + end

    def _checked(self, text: bytes) -> Iterator[SecretSpan]:
        until: dict[SecretMatch, int] = {}
        misses: dict[SecretMatch, int] = {}
        max_misses = max_misses_of(len(text))
        doubt_left, effort = MAX_DOUBT, EFFORT
        for index, start, end in self._hits(text):
            for mark in self._marks[index]:
                effort -= mark.effort
                if effort < 0:
                    raise TooMuch(mark)
                # A hit within a token of its own form is a part of that token.
                if start < until.get(mark, 0):
                    continue
                if doubt_left < mark.doubt:
                    yield SecretSpan(start, end, mark.name, False)
                    continue
                span = mark.match_at(text, start)
                if span is None:
                    doubt_left -= mark.doubt
                    misses[mark] = missed = misses.get(mark, 0) + 1
                    if missed > max_misses and isinstance(mark, Shape):
                        until[mark] = mark.next_start(text, start + 1)
                    continue
                if not span.secret:
                    until[mark] = span.end
                yield span


@cache
def plain_automaton() -> Automaton:
    """Return the automaton that finds tokens only."""
    return Automaton(token_forms(), fast=True)
