"""
Count the values, levels and digits of JSON in its bytes, before it is decoded.

The module uses whole-body operations of `bytes`. For a large body, a loop over tokens in Python
would cost more than all else together, and all other calls would wait for it.
"""

from collections.abc import Callable, Iterator, Mapping
from math import isinf
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

T = TypeVar("T")

NESTING = 64
"""The deepest nesting of objects and lists in a body."""
MAX_VALUES = 40_000
"""
Maximum number of values in a body unless a setting says otherwise. Decoding each costs up to a
microsecond, in C and without interruption.
"""
MAX_DIGITS = 320
"""
Maximum number of digits of one number: the time to read it grows with their square, and a double
has 309.
"""

COUNTED_BYTES = 2_048
"""Up to this size of a body, counting costs less than finding."""

FIRST_STRINGS, EMPTIED_STRINGS = 16, 64
"""
The number of strings that are left out when the values of a body are counted, and that are emptied
before a long body is checked: the members of a request around its arguments have about twenty.
"""
TEXT_BYTES, SOUGHT_BYTES = 1_024, 64
"""
The size from which leaving out a string pays, and how many of its bytes are searched to find its
place.
"""
BACKSLASH, QUOTE = b'\\"'

SHALLOW = 3
_NOT_MARKS = bytes(set(range(256)) - set(b'[]{}"'))
_SQUARE = bytes.maketrans(b"{}", b"[]")
_BEFORE_VALUES = (b",", b"[", b"{")
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * (MAX_DIGITS + 1)
_DIGITS_AND_EXPONENTS = bytes.maketrans(b"123456789E", b"000000000e")
_OVERFLOWING = b"0" * 309
"""A number of fewer digits is finite, unless it has an exponent."""


def decoded(body: bytes) -> Any:
    """
    Decode JSON to Python values; raises DecodeError, ValueError or RecursionError.

    msgspec's own way to read a number like `1e308` takes a hundred times as long as Python's.
    """
    return _decode(body)


def decoded_within(body: bytes, max_values: int) -> Any:
    """
    Decode JSON to Python values, of which it may have *max_values*.

    Raises DecodeError, ValueError also for too many values or too long a number, or RecursionError.
    """
    if too_much := excess(body, max_values):
        raise ValueError(too_much)
    return _decode(body)


def decoder_of(kind: type[T]) -> Callable[[bytes], T]:
    """Return a decoder of JSON as *kind* that reads the numbers of `Any` as `decoded` does."""
    return msgspec.json.Decoder(kind, float_hook=_float).decode


def levels_of(value: Any) -> Iterator[list[Any]]:
    """Yield the values of a decoded document by level of nesting; the first level is *value*."""
    level = [value]
    while level:
        yield level
        inner: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                inner.extend(node.values())
            elif isinstance(node, list):
                inner.extend(node)
        level = inner


def objects_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """
    Yield every object in a decoded document or a schema, each once.

    A schema of pydantic's may contain itself.
    """
    unvisited, visited = [value], set()
    while unvisited:
        node = unvisited.pop()
        if isinstance(node, Mapping):
            if id(node) not in visited:
                visited.add(id(node))
                yield node
                unvisited.extend(node.values())
        elif isinstance(node, list | tuple):
            unvisited.extend(node)


def outside_strings(body: bytes) -> bytes:
    """Return the parts of well-formed JSON outside of its strings."""
    return _outside_strings(_bare(body))


def with_emptied_strings(body: bytes) -> bytes:
    """
    Return well-formed JSON of the same shape whose first strings are empty.

    These are most of a usual long body, so that `excess` and `too_deep` need not look at them, each
    several times.
    """
    pieces, at, is_bare = list[bytes](), 0, False
    for _ in range(EMPTIED_STRINGS):
        begin = body.find(b'"', at)
        end = body.find(b'"', begin + 1) if begin >= 0 else -1
        if end < 0:
            break
        if body[end - 1] == BACKSLASH and not is_bare:
            # From here on once: there may be thousands of escaped marks in each string.
            pieces.append(body[at:begin])
            body, at, is_bare = _bare(body[begin:]), 0, True
            continue
        pieces += (body[at:begin], b'""')
        at = end + 1
    return b"".join([*pieces, body[at:]])


def values_bound(body: bytes, *, within_texts: bool = False) -> int:
    """
    Return an upper bound for the number of values in well-formed JSON.

    *within_texts*: with those of the JSON that its strings may hold.
    """
    if len(body) > COUNTED_BYTES and not within_texts:
        body = _without_strings(body)
    marks_found = 0
    for mark in _BEFORE_VALUES:
        at = body.find(mark)
        if at >= 0 and body.find(mark, at + 1) >= 0:
            # One pass for all of them; a body that is one long text has each once at most.
            return 1 + len(body) - len(body.translate(None, b"".join(_BEFORE_VALUES)))
        marks_found += at >= 0
    return 1 + marks_found


def count(body: bytes, mark: bytes) -> int:
    """
    Return how often a byte occurs.

    A body that is one long text has each of the bytes above once at most. To find that out takes
    a thirtieth of what Python takes to count.
    """
    at = body.find(mark)
    if at < 0:
        return 0
    second = body.find(mark, at + 1)
    return 1 if second < 0 else 1 + body.count(mark, second)


def holds_many(body: bytes) -> bool:
    """Return whether more than `NESTING` arrays and objects may begin in a body."""
    remaining = NESTING
    for opening in (b"{", b"["):
        at = body.find(opening)  # `find` runs at the speed of memory, and `count` does not
        while at >= 0:
            if remaining == 0:
                return True
            remaining -= 1
            at = body.find(opening, at + 1)
    return False


def is_deep(body: bytes, arguments: Raw | UnsetType) -> bool:
    """
    Return whether well-formed JSON is nested deeper than allowed.

    *arguments* are an object in it, whose texts may hold any number of brackets.
    """
    if not holds_many(body):
        return False
    inner = b"" if arguments is UNSET else bytes(arguments)
    at = _position(body, memoryview(inner)) if inner else -1
    if at >= 0:
        # What is left out may stand at another place as well, so this shows only their number.
        without_long_texts = without_texts(inner)
        if len(without_long_texts) < len(inner):
            fewer = b"".join((body[:at], without_long_texts, body[at + len(inner) :]))
            if not holds_many(fewer):
                return False
    return too_deep(body)


def without_texts(body: bytes) -> bytes:
    """
    Return the bytes of a JSON object without its members that are long strings.

    If a string is not found at once, it and the strings behind it stay. If the body is no object,
    it is returned unchanged.
    """
    try:
        members = _decode_members(body)
    except (msgspec.DecodeError, RecursionError):
        return body
    # Each search begins behind the last find: thousands of strings must not cost a search and a
    # copy of the whole body each.
    pieces, at = list[bytes](), 0
    for value in members.values():
        view = memoryview(value)
        if len(view) > TEXT_BYTES and view[0] == QUOTE:
            begin = _position(body, view, at)
            if begin < 0:
                break
            pieces.append(body[at:begin])
            at = begin + len(view)
    return b"".join([*pieces, body[at:]])


def _position(body: bytes, value: memoryview, start: int = 0) -> int:
    """Return where a part of a body begins; -1 if that is not found at once."""
    at = body.find(value[:SOUGHT_BYTES], start)
    # Not with `==`, which compares a memoryview one item after another.
    return at if at >= 0 and body.startswith(value, at) else -1


def excess(body: bytes, max_values: int, *, size: int = 0) -> str | None:
    """
    Say what well-formed JSON has more of than allowed: values (*max_values*) or digits.

    *size*: the bytes of the body before its strings were emptied.
    """
    if max(len(body), size) <= 2 * max_values:
        return None  # a value takes two bytes or more, and few digits take no time
    may_exceed = values_bound(body) > max_values
    if not may_exceed and not _has_long_number(body):
        return None  # even with the content of strings
    body = _bare(body)
    if may_exceed and body.count(b'"') > 4 * max_values:
        # A value is at most one string, and has at most one name.
        return _too_many(max_values)
    body = _outside_strings(body)
    if values_bound(body) > max_values:
        return _too_many(max_values)
    if _has_long_number(body):
        return f"The body holds a number of more than {MAX_DIGITS} digits"
    return None


def may_overflow(body: bytes) -> bool:
    """
    Return whether JSON may hold a number that is infinite as a double; False is certain.

    Some libraries take `Infinity` and `NaN` for JSON.
    """
    digits = body.translate(_DIGITS_AND_EXPONENTS)
    return b"0e" in digits or _OVERFLOWING in digits or b"Infinity" in body or b"NaN" in body


def too_deep(body: bytes, max_depth: int = NESTING) -> bool:
    """Return whether well-formed JSON is nested deeper than *max_depth* levels."""
    if count(body, b"{") + count(body, b"[") <= max_depth:
        return False
    marks = _bare(body).translate(_SQUARE, _NOT_MARKS)
    # If no string holds a bracket, the marks around each are neighbours now, and all are removed.
    # Otherwise the mark before the first bracket in a string is the last one of an odd number.
    brackets = marks.replace(b'""', b"")
    if QUOTE in brackets:
        brackets = _outside_strings(marks)
    for _ in range(SHALLOW):
        # Remove the innermost pairs: every level decreases by one, and the loop below gets few
        # pieces.
        brackets = brackets.replace(b"[]", b"")
    level = 0
    for segment in brackets.split(b"]["):
        closed = len(segment.rstrip(b"]"))
        if level + closed > max_depth - SHALLOW:
            return True
        level += 2 * closed - len(segment)
    return False


def _without_strings(body: bytes) -> bytes:
    """
    Remove the first strings, or those members that are long strings if one has escaped marks.

    Most long bodies are a few strings, and to find the ends of these takes a tenth of what it takes
    to count the commas in them.
    """
    pieces: list[bytes] = []
    at = 0
    for _ in range(FIRST_STRINGS):
        begin = body.find(b'"', at)
        end = body.find(b'"', begin + 1) if begin >= 0 else -1
        if end < 0:
            break
        if body[end - 1] == BACKSLASH:
            return without_texts(body)
        pieces.append(body[at:begin])
        at = end + 1
    return b"".join([*pieces, body[at:]])


def _bare(body: bytes) -> bytes:
    """Remove escaped quotation marks and backslashes, which occur only in strings."""
    if b"\\" not in body:
        return body
    return body.replace(rb"\\", b"").replace(rb"\"", b"")


def _outside_strings(bare: bytes) -> bytes:
    # Of the pieces between quotation marks, every other one is outside of strings.
    return b"".join(bare.split(b'"')[::2])


def _float(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise ValueError("a number is out of range")
    return value


_decode = msgspec.json.Decoder(float_hook=_float).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode


def _has_long_number(body: bytes) -> bool:
    return _LONG_NUMBER in body.translate(_ZEROS)


def _too_many(max_values: int) -> str:
    return f"The body holds more than {max_values} values (`limits.max_body_values`)"
