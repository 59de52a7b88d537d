"""A text as those read it who undo its escapes: each reading, and where it stands in the text."""

import html
import re
from bisect import bisect_right
from collections.abc import Callable

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
WRAP = re.compile(rb"[\r\n]+[ \t\x0b\f]*")
"""A line break with the indentation that follows; base64 is often wrapped."""
UNREAD = re.compile(rb"[\\%&\r\n]").search
"""Finds that a text has more than one reading."""
MOST_REMEMBERED = 4096

_NAMED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}

Rewrite = Callable[["re.Match[bytes]"], bytes]


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


def unescaped(text: bytes) -> bytes:
    """The text with each escape undone once; all of it in C, since texts may be long."""
    pieces = ESCAPE.split(text)
    pieces[1::2] = map(_escapes.__getitem__, pieces[1::2])
    return b"".join(pieces)


def unwrapped(text: bytes) -> bytes:
    """The text on one line."""
    first, *others = text.splitlines() or [b""]
    return first + b"".join(map(bytes.lstrip, others))


def settled(text: bytes) -> list[bytes]:
    """What a value may have become in the last of the layers, where it holds escapes or breaks."""
    found = layers(text)
    return found[1:] + [unwrapped(each) for each in found]


class Trace:
    """How one reading came of another: which bytes come from which."""

    def __init__(self, text: bytes, form: re.Pattern[bytes], rewrite: Rewrite) -> None:
        self._at: list[int] = []
        self._from: list[tuple[int, int, bool]] = []
        pieces: list[bytes] = []
        position = written = 0
        for found in form.finditer(text):
            for piece, start, end, whole in (
                (text[position : found.start()], position, found.start(), False),
                (rewrite(found), found.start(), found.end(), True),
            ):
                if piece:
                    self._at.append(written)
                    self._from.append((start, end, whole and piece != text[start:end]))
                    pieces.append(piece)
                    written += len(piece)
            position = found.end()
        self._at.append(written)
        self._from.append((position, len(text), False))
        self.text = b"".join([*pieces, text[position:]])

    def start(self, position: int) -> int:
        """Where the byte at *position* begins in the text before."""
        piece = bisect_right(self._at, position) - 1
        start, _, whole = self._from[piece]
        return start if whole else start + position - self._at[piece]

    def end(self, position: int) -> int:
        """Where what ends before *position* ends in the text before."""
        piece = bisect_right(self._at, position - 1) - 1
        start, end, whole = self._from[piece]
        return end if whole else start + position - self._at[piece]


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
        trace = Trace(last.text, ESCAPE, _plain)
        if trace.text != below:
            trace = Trace(last.text, WRAP, lambda _: b"")
        found.append(Reading(trace.text, (*last.traces, trace)))
    return found


def _plain(found: "re.Match[bytes]") -> bytes:
    return _escapes[found[0]]


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
