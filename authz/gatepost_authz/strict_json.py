"""JSON without duplicate members, odd numbers or unbounded depth: what strangers may send us."""

import json
import math
import re
from collections.abc import Callable

# A string is skipped whole, also an unterminated one: each start of one is tried only once, so
# that text full of quotes costs no more than its length.
BRACKET = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]|[\]}]', re.DOTALL)
SURROGATE = re.compile(rb"\\u[dD]")
MAX_DIGITS = 32
"""Characters of one number: claims are times and versions, not cryptography."""


class StrictJsonError(ValueError):
    """The text is not JSON as this server reads it."""


def loads_object(data: bytes, *, max_depth: int = 8, max_bytes: int) -> dict[str, object]:
    """
    The members of the JSON object that *data* spells in UTF-8.

    StrictJsonError: more than *max_bytes* bytes, objects and lists nested deeper than *max_depth*,
    a member named twice (RFC 8725 section 2.8 tells of parsers that disagree which one counts),
    ``NaN`` or ``Infinity`` or a number that overflows into one, a number of more than 32
    characters, a lone surrogate, a byte order mark, or no object at all.
    """
    if len(data) > max_bytes:
        raise StrictJsonError("too large")
    # Brackets inside strings count here too: an upper bound, and nearly always enough.
    if data.count(b"{") + data.count(b"[") > max_depth and depth(data, max_depth) > max_depth:
        raise StrictJsonError("too deep")
    try:
        text = data.decode("utf-8").strip(" \t\r\n")
        value, end = SCAN(text, 0)
        # Only an escape can spell half a character; it would break whoever encodes it later.
        if b"\\" in data and SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except StrictJsonError:
        raise
    except (ValueError, StopIteration, RecursionError, OverflowError):
        # Not chained: the decoder's own error carries the whole text, a token's claims.
        raise StrictJsonError("not JSON") from None
    if end != len(text) or not isinstance(value, dict):
        raise StrictJsonError("not one object")
    return value


def depth(data: bytes, limit: int) -> int:
    """How deep *data* nests objects and lists; stops counting just above *limit*."""
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
    """An object of *pairs*, each name once."""
    value = dict(pairs)
    if len(value) != len(pairs):
        # Two parsers that keep different ones would see different tokens under one signature.
        raise StrictJsonError("duplicate member")
    return value


def integer(digits: str) -> int:
    """A whole number of bounded length: turning digits into a number takes quadratic time."""
    if len(digits) > MAX_DIGITS:
        raise StrictJsonError("number too long")
    return int(digits)


def fraction(digits: str) -> float:
    """A finite number: 1e400 reads as infinity, which compares with everything."""
    if len(digits) > MAX_DIGITS or not math.isfinite(number := float(digits)):
        raise StrictJsonError("number too long")
    return number


def constant(name: str) -> object:
    """NaN, Infinity and -Infinity are no JSON, and NaN defeats every comparison."""
    raise StrictJsonError(f"{name} is not JSON")


DECODER = json.JSONDecoder(
    object_pairs_hook=members, parse_int=integer, parse_float=fraction, parse_constant=constant
)
# What `raw_decode` calls: written in C as long as the decoder stays strict. It ends with
# StopIteration where a value should begin.
SCAN: Callable[[str, int], tuple[object, int]] = DECODER.scan_once  # type: ignore[attr-defined]
