"""Check what authors give as encoded JSON, and convert their values to Python's own types."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gatepost.documents.json_shape import decoded, may_overflow

_SCALARS = frozenset({str, int, float, bool, type(None)})
_SHORT = 512
"""Shorter JSON is decoded and encoded again, in less time than it takes to search it."""
_UNUSUAL = (b"\n", b"\r", b"\\u")
"""Line breaks between values, and escapes, of which msgspec writes only those of controls."""

_encode = msgspec.json.encode
_skim = msgspec.json.Decoder(msgspec.Raw).decode


def is_plain(value: Any) -> bool:
    """Return whether a value consists of Python's own types, which are always encoded as JSON."""
    kind = type(value)
    if kind is dict:
        return all(map(is_plain, value.values()))
    return kind in _SCALARS or (kind in (list, tuple) and all(map(is_plain, value)))


def plain_value(value: Any) -> Any:
    """
    Return a value in Python's own types; the same object if it has no others.

    A `Raw` becomes what its JSON says. Raises TypeError, ValueError or RecursionError for a value
    without valid JSON.
    """
    return value if is_plain(value) else decoded(_encode(value))


def plain_blocks(blocks: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return blocks in Python's own types; raises as `plain_value` does."""
    return tuple(map(plain_value, blocks))


def checked_json(encoded: bytes) -> bytes:
    """
    Return the JSON of a value as msgspec writes it; raises DecodeError or ValueError.

    A `Raw` in the value is written as it is: it may be no JSON, end the value around it, or hold
    line breaks, infinity or half characters. A secret in what is no JSON would not be redacted.
    """
    if len(encoded) >= _SHORT:
        _skim(encoded)
        if not (any(map(encoded.__contains__, _UNUSUAL)) or _is_odd(encoded)):
            return encoded
    return _encode(decoded(encoded))


def finite_json(encoded: bytes) -> bytes:
    """Return JSON of pydantic; raises DecodeError if it has the constants of Python for a float."""
    if may_overflow(encoded):
        decoded(encoded)
    return encoded


def _is_odd(encoded: bytes) -> bool:
    """Return whether JSON may hold infinity, or is not UTF-8."""
    try:
        return may_overflow(encoded) or not (encoded.isascii() or encoded.decode())
    except UnicodeDecodeError:
        return True
