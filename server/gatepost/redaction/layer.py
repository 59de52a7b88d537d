"""A text as those read it who undo its escapes: each reading, and where it stands in the text."""

import html
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate, repeat

import msgspec

DEEPEST = 4
"""How often escapes within escapes are undone."""

ESCAPE = re.compile(
    rb"(%[0-9A-Fa-f]{2}"
    rb"|\\(?:u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}"
    rb"|x[0-9A-Fa-f]{2}|[\"'\\/bfnrt])"
    rb"|&(?:\#[0-9]{1,7}|\#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});?)"
)
"""Of URLs, of strings in JSON and programs, and of HTML."""
WRAP = re.compile(rb"([\r\n]+[ \t\x0b\f]*)")
"""A line break with the indentation that follows; base64 is often wrapped."""
UNREAD = re.compile(rb"[\\%&\r\n]").search
"""Finds that a text has more than one reading."""
MOST_REMEMBERED = 4096
AT_ONCE = 50_000
"""Matches that are looked for in one go, during which no other thread runs."""

_NAMED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


class _Escapes(dict[bytes, bytes]):
    """What each escape stands for, found out once; what a text chose must not fill the memory."""

    def __missing__(self, escape: bytes) -> bytes:
        if len(self) >= MOST_REMEMBERED:
            self.clear()
        self[escape] = plain = _undone(escape)
        return plain


_escapes = _Escapes()


def layers(text: bytes) -> list[bytes]:
    """The text itself, then each further reading of it."""
    found = [text]
    if b"\\" in text or b"%" in text or b"&" in text:
        for _ in range(DEEPEST):
            undone = unescaped(found[-1])
            if undone == found[-1]:
                break
            found.append(undone)
    if b"\n" in found[-1] or b"\r" in found[-1]:
        found.append(unwrapped(found[-1]))
    return found


def parted(form: re.Pattern[bytes], text: bytes) -> list[bytes]:
    """What stands between the matches of *form*, and each of them between its neighbours."""
    found: list[bytes] = []
    while len(pieces := form.split(text, AT_ONCE)) > 2 * AT_ONCE:
        text = pieces.pop()
        found += pieces
    return found + pieces


def unescaped(text: bytes) -> bytes:
    """The text with each escape undone once; all of it in C, since texts may be long."""
    pieces = parted(ESCAPE, text)
    pieces[1::2] = map(_escapes.__getitem__, pieces[1::2])
    return b"".join(pieces)


def unwrapped(text: bytes) -> bytes:
    """The text on one line."""
    if text.count(b"\n") + text.count(b"\r") > AT_ONCE:
        return b"".join(parted(WRAP, text)[::2])
    first, *others = text.splitlines() or [b""]
    return first + b"".join(map(bytes.lstrip, others))


def settled(text: bytes) -> list[bytes]:
    """What a value may have become in the last of the layers, where it holds escapes or breaks."""
    found = layers(text)
    return found[1:] + [unwrapped(each) for each in found]


class Trace:
    """How one reading came of another: which bytes come from which."""

    def __init__(self, pieces: list[bytes], rewritten: Iterable[bytes]) -> None:
        # Every other piece is an escape. Plain numbers: a text may be nothing but escapes.
        self._from = array("q", accumulate(map(len, pieces), initial=0))
        plain = pieces[:]
        plain[1::2] = rewritten
        self._same = bytearray(map(bytes.__eq__, pieces, plain))
        self._at = array("q", accumulate(map(len, plain), initial=0))
        self.text = b"".join(plain)

    def start(self, position: int) -> int:
        """Where the byte at *position* begins in the text before."""
        piece = bisect_right(self._at, position) - 1
        if piece == len(self._same):
            return self._from[piece]
        inside = position - self._at[piece] if self._same[piece] else 0
        return self._from[piece] + inside

    def end(self, position: int) -> int:
        """Where what ends before *position* ends in the text before."""
        piece = bisect_right(self._at, position - 1) - 1
        if self._same[piece]:
            return self._from[piece] + position - self._at[piece]
        return self._from[piece + 1]


class Reading(msgspec.Struct, frozen=True):
    """One layer with the way back to the text."""

    text: bytes
    traces: tuple[Trace, ...] = ()

    def source(self, start: int, end: int) -> tuple[int, int]:
        """Where a part of this layer stands in the text."""
        for trace in reversed(self.traces):
            start, end = trace.start(start), trace.end(end)
        return start, end


def readings(text: bytes) -> list[Reading]:
    """The same as `layers`, each with the way back."""
    found = [Reading(text)]
    for below in layers(text)[1:]:
        last = found[-1]
        pieces = parted(ESCAPE, last.text)
        trace = Trace(pieces, map(_escapes.__getitem__, pieces[1::2]))
        if trace.text != below:
            pieces = parted(WRAP, last.text)
            trace = Trace(pieces, repeat(b"", len(pieces) // 2))
        found.append(Reading(trace.text, (*last.traces, trace)))
    return found


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
