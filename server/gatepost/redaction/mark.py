"""What a hit of the automaton is held against: a whole encoding of a secret, or a token's form."""

import base64
import binascii
import re
from typing import Protocol

import msgspec

WINDOW_BYTES = 12
"""How much of an encoding the automaton knows; a hit is compared with the rest."""
MOST_BASE64 = 65_536
"""How far from a hit a base64 text is decoded."""

_SEXTET = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_")
_BEHIND = re.compile(rb"[A-Za-z0-9+/_-]*=*")
_AHEAD = re.compile(rb"[A-Za-z0-9+/_-]*\Z")
_STANDARD = bytes.maketrans(b"-_", b"+/")


class Span(msgspec.Struct, frozen=True, order=True):
    """Where something stands that must not leave, in bytes, and what it is called."""

    start: int
    end: int
    name: str
    secret: bool = True
    """Whether it is a known value; a shape is only likely to be one."""


class Mark(Protocol):
    """One pattern of the automaton: `window` is what it searches for."""

    window: bytes
    name: str

    def at(self, text: bytes, position: int) -> Span | None:
        """What stands there, where the window was found at *position*; None: nothing of ours."""


class Literal:
    """One encoding of a secret, byte for byte."""

    __slots__ = ("_left", "_offset", "_right", "_whole", "name", "window")

    def __init__(self, name: str, whole: bytes, *, left: bool = False, right: bool = False) -> None:
        self.name = name
        self._whole = whole
        # Beside the hit is a base64 digit that holds bits of the secret and of its neighbour.
        self._left, self._right = left, right
        self._offset, self.window = _window(whole)

    def at(self, text: bytes, position: int) -> Span | None:
        """See `Mark`."""
        start = position - self._offset
        if start < 0 or not text.startswith(self._whole, start):
            return None
        end = start + len(self._whole)
        if self._left and start and text[start - 1] in _SEXTET:
            start -= 1
        if self._right and end < len(text) and text[end] in _SEXTET:
            end += 1
        if self._right:
            while end < len(text) and text[end : end + 1] == b"=":
                end += 1
        return Span(start, end, self.name)


class Hex:
    """A secret in hexadecimal digits of any case, with *between* after each pair."""

    __slots__ = ("_offset", "_whole", "name", "window")

    def __init__(self, name: str, whole: bytes, offset: int, window: bytes) -> None:
        self.name = name
        self._whole, self._offset, self.window = whole, offset, window

    def at(self, text: bytes, position: int) -> Span | None:
        """See `Mark`."""
        start = position - self._offset
        end = start + len(self._whole)
        if start < 0 or text[start:end].lower() != self._whole:
            return None
        return Span(start, end, self.name)


class Shape:
    """A token of a well-known form, found by how it begins; *form* may have a group for it."""

    __slots__ = ("_match", "name", "window")

    def __init__(self, name: str, window: bytes, form: re.Pattern[bytes]) -> None:
        self.name, self.window = name, window
        self._match = form.match

    def at(self, text: bytes, position: int) -> Span | None:
        """See `Mark`."""
        found = self._match(text, position)
        if found is None:
            return None
        start, end = found.span(found.lastindex or 0)
        return Span(start, end, self.name, False)


class Enclosed:
    """A token of that form within a base64 text, *lead* bytes after where three bytes begin."""

    __slots__ = ("_lead", "_match", "name", "window")

    def __init__(self, name: str, opening: bytes, lead: int, form: re.Pattern[bytes]) -> None:
        self.name = name
        self._lead = lead
        self._match = form.match
        self.window = base64_core(opening, lead)[0]

    def at(self, text: bytes, position: int) -> Span | None:
        """See `Mark`."""
        ahead = _AHEAD.search(text, max(0, position - MOST_BASE64), position)
        behind = _BEHIND.match(text, position, position + MOST_BASE64)
        if ahead is None or behind is None:
            return None
        # Whole quads before the one that the token begins in.
        quad = position - (self._lead and self._lead + 1)
        begin = quad - (quad - ahead.start()) // 4 * 4
        digits = text[begin : behind.end()].rstrip(b"=")
        digits = digits[: len(digits) - (len(digits) % 4 == 1)].translate(_STANDARD)
        if begin < 0:
            return None
        try:
            plain = base64.b64decode(digits + b"=" * (-len(digits) % 4))
        except binascii.Error:
            return None
        found = self._match(plain, (quad - begin) // 4 * 3 + self._lead)
        if found is None:
            return None
        first, last = found.span(found.lastindex or 0)
        end = begin + -(-last * 4 // 3)
        if behind.end() - end <= 2:
            end = behind.end()
        return Span(begin + first * 4 // 3, end, self.name, False)


def base64_core(plain: bytes, lead: int) -> tuple[bytes, bool, bool]:
    """
    The digits that *plain* has in base64 whatever stands around it, *lead* bytes into a group of 3,
    and whether the digit before and the one behind hold bits of it as well.
    """
    digits = base64.b64encode(b"\0" * lead + plain)
    first, bits = lead and lead + 1, (lead + len(plain)) * 8
    return digits[first : bits // 6], lead > 0, bits % 6 > 0


def _window(whole: bytes) -> tuple[int, bytes]:
    """The part to search for: of the end and the middle the one that says more."""
    if len(whole) <= WINDOW_BYTES:
        return 0, whole
    # Not the beginning: keys of one service begin alike, and each would be compared at each hit.
    ends, middle = len(whole) - WINDOW_BYTES, (len(whole) - WINDOW_BYTES) // 2
    last, amid = whole[ends:], whole[middle : middle + WINDOW_BYTES]
    return (ends, last) if len(set(last)) >= len(set(amid)) else (middle, amid)
