"""Read JSON strictly: no duplicate members, no unusual numbers, bounded depth."""

import json
import math
import re
from collections.abc import Callable

import msgspec

# A string is skipped as a whole, even if it is unterminated. Each start of a string is tried only
# once, so that text full of quotes takes time in proportion to its length.
BRACKET = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]|[\]}]', re.DOTALL)
SURROGATE = re.compile(rb"\\u[dD]")
MAX_DIGITS = 32
"""The maximum length of a number in characters."""
TO_ZEROS = bytes.maketrans(b"123456789", b"000000000")
MANY_DIGITS = b"0" * MAX_DIGITS
"""
A pattern that no shorter number matches. With a sign, a number with this many digits is already too
long.
"""


class StrictJsonError(ValueError):
    """Raised when a text is not strict JSON."""


def loads_object(data: bytes, *, max_depth: int = 8, max_bytes: int) -> dict[str, object]:
    """
    Parse the JSON object that *data* contains in UTF-8.

    StrictJsonError: more than *max_bytes* bytes, objects and lists nested deeper than *max_depth*,
    a member named twice (RFC 8725 section 2.8 tells of parsers that disagree which one counts),
    ``NaN`` or ``Infinity`` or a number that overflows into one, a number of more than 32
    characters, a lone surrogate, a byte order mark, or no object at all.
    """
    if len(data) > max_bytes:
        raise StrictJsonError("too large")
    # Brackets inside strings count here as well: an upper bound, and nearly always sufficient.
    if data.count(b"{") + data.count(b"[") > max_depth and depth(data, max_depth) > max_depth:
        raise StrictJsonError("too deep")
    if data.translate(TO_ZEROS).find(MANY_DIGITS) < 0:
        value = _compact(data)
        if isinstance(value, dict):
            return value
    return _read(data)


def _compact(data: bytes) -> object:
    """
    Return the value of JSON that is written as msgspec writes it; None for any other text.

    Then nothing was lost in reading: no second member of one name, no odd number or escape, no
    white space. Most issuers write their tokens this way, and the strict reader below takes twice
    as long.
    """
    try:
        value = _decode(data)
        return value if _encode(value) == data else None
    except (ValueError, RecursionError, OverflowError):
        return None


def _read(data: bytes) -> dict[str, object]:
    """Parse with every rule of `loads_object` but those of size and depth."""
    try:
        text = data.decode("utf-8").strip(" \t\r\n")
        value, end = SCAN(text, 0)
        # Only an escape can spell half a character; encoding it later would fail.
        if b"\\" in data and SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except StrictJsonError:
        raise
    except (ValueError, StopIteration, RecursionError, OverflowError):
        # Not chained, because the decoder's own error contains the whole text, a token's claims.
        raise StrictJsonError("not JSON") from None
    if end != len(text) or not isinstance(value, dict):
        raise StrictJsonError("not one object")
    return value


def depth(data: bytes, limit: int) -> int:
    """Return the nesting depth of *data*; stop counting just above *limit*."""
    deepest = level = 0
    for match in BRACKET.finditer(data):
        first = data[match.start()]
        if first in b"[{":
            level += 1
            if level > deepest:
                deepest = level
                if deepest > limit:
                    return deepest
        elif first in b"]}":
            level -= 1
    return deepest


def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object of *pairs*; refuse duplicate names."""
    value = dict(pairs)
    if len(value) != len(pairs):
        # Two parsers that keep different members would see different tokens under one signature.
        raise StrictJsonError("duplicate member")
    return value


def integer(digits: str) -> int:
    """Return an integer of bounded length; parsing digits takes quadratic time."""
    if len(digits) > MAX_DIGITS:
        raise StrictJsonError("number too long")
    return int(digits)


def fraction(digits: str) -> float:
    """Return a finite float; 1e400 would become infinity."""
    if len(digits) > MAX_DIGITS or not math.isfinite(number := float(digits)):
        raise StrictJsonError("number too long")
    return number


def constant(name: str) -> object:
    """Refuse NaN, Infinity and -Infinity, which are not JSON."""
    raise StrictJsonError(f"{name} is not JSON")


DECODER = json.JSONDecoder(
    object_pairs_hook=members, parse_int=integer, parse_float=fraction, parse_constant=constant
)
# A number like `1e308` takes msgspec a hundred times as long as Python.
_decode = msgspec.json.Decoder(float_hook=fraction).decode
_encode = msgspec.json.encode
# The function that `raw_decode` calls, written in C while the decoder is strict. It raises
# StopIteration if there is no value.
SCAN: Callable[[str, int], tuple[object, int]] = DECODER.scan_once  # type: ignore[attr-defined]
