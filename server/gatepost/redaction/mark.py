"""What a hit of the automaton is held against: a whole encoding of a secret, or a token's form."""

import base64
import binascii
import re
from typing import Protocol

import msgspec

WINDOW_BYTES = 12
"""How much of an encoding the automaton knows; a hit is compared with the rest."""
COMPARED_BYTES = 1_024
"""So many are compared in the time that it takes to begin."""
USUAL_DIGITS, MOST_DIGITS = 256, 4_096
"""
How many base64 digits from a hit on are decoded: a text may consist of hits. The second where a
token may be long.
"""

_DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_"
_SEXTET = frozenset(_DIGITS)
_BEHIND = re.compile(rb"[A-Za-z0-9+/_-]*=*")
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
    doubt: int
    """What a hit costs that is none; 0 where a hit by chance is unlikely."""
    effort: int
    """What looking at any hit costs."""

    def at(self, text: bytes, position: int) -> Span | None:
        """What stands there, where the window was found at *position*; None: nothing of ours."""


class Literal:
    """One encoding of a secret, byte for byte."""

    doubt = 0
    __slots__ = ("_left", "_offset", "_right", "_whole", "effort", "name", "window")

    def __init__(self, name: str, whole: bytes, *, left: bool = False, right: bool = False) -> None:
        self.name = name
        self._whole = whole
        self.effort = _effort(whole)
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
    """A secret in hexadecimal digits of any case; *window* is what is at *offset* of *whole*."""

    doubt = 0
    __slots__ = ("_offset", "_whole", "effort", "name", "window")

    def __init__(self, name: str, whole: bytes, offset: int, window: bytes) -> None:
        self.name = name
        self._whole, self._offset, self.window = whole, offset, window
        self.effort = _effort(whole)

    def at(self, text: bytes, position: int) -> Span | None:
        """See `Mark`."""
        start = position - self._offset
        end = start + len(self._whole)
        if start < 0 or text[start:end].lower() != self._whole:
            return None
        return Span(start, end, self.name)


class Shape:
    """A token of a well-known form, found by how it begins; *form* may have a group for it."""

    doubt, effort = 1, 1
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


class Credentials(Shape):
    """A name and a password as HTTP's Basic scheme writes them, which must be both."""

    __slots__ = ()

    def at(self, text: bytes, position: int) -> Span | None:
        """See `Mark`."""
        span = super().at(text, position)
        if span is None:
            return None
        try:
            plain = base64.b64decode(text[span.start : span.end], validate=True).decode()
        except ValueError:
            return None
        return span if ":" in plain and plain.isprintable() else None


class Enclosed:
    """A token of that form within a base64 text, *lead* bytes after where three bytes begin."""

    doubt, effort = 20, 1
    __slots__ = ("_lead", "_match", "_most", "name", "window")

    def __init__(
        self, name: str, opening: bytes, lead: int, form: re.Pattern[bytes], *, long: bool
    ) -> None:
        self.name = name
        self._lead, self._most = lead, MOST_DIGITS if long else USUAL_DIGITS
        self._match = form.match
        self.window = base64_core(opening, lead)[0]

    def at(self, text: bytes, position: int) -> Span | None:
        """See `Mark`."""
        begin = position - (self._lead and self._lead + 1)
        found = None if begin < 0 else _BEHIND.match(text, begin, begin + self._most)
        if found is None:
            return None
        digits = found[0].rstrip(b"=")
        digits = digits[: len(digits) - (len(digits) % 4 == 1)].translate(_STANDARD)
        try:
            plain = base64.b64decode(digits + b"=" * (-len(digits) % 4))
        except binascii.Error:
            return None
        found = self._match(plain, self._lead)
        if found is None:
            return None
        first, last = found.span(found.lastindex or 0)
        end = begin + -(-last * 4 // 3)
        if last + 2 >= len(plain) and (rest := _BEHIND.match(text, end)):
            end = rest.end()
        return Span(begin + first * 4 // 3, end, self.name, False)


def base64_core(plain: bytes, lead: int) -> tuple[bytes, bool, bool]:
    """
    The digits that *plain* has in base64 whatever stands around it, *lead* bytes into a group of 3,
    and whether the digit before and the one behind hold bits of it as well.
    """
    digits = base64.b64encode(b"\0" * lead + plain)
    first, bits = lead and lead + 1, (lead + len(plain)) * 8
    return digits[first : bits // 6], lead > 0, bits % 6 > 0


def _effort(whole: bytes) -> int:
    return 1 + len(whole) // COMPARED_BYTES


def _window(whole: bytes) -> tuple[int, bytes]:
    """The part to search for: of the end and the middle the one that says more."""
    if len(whole) <= WINDOW_BYTES:
        return 0, whole
    # Not the beginning: keys of one service begin alike, and each would be compared at each hit.
    ends, middle = len(whole) - WINDOW_BYTES, (len(whole) - WINDOW_BYTES) // 2
    last, amid = whole[ends:], whole[middle : middle + WINDOW_BYTES]
    return (ends, last) if len(set(last)) >= len(set(amid)) else (middle, amid)
