"""Digest definitions in canonical JSON (RFC 8785), so that a change of any part is seen."""

import hashlib
from collections.abc import Mapping
from typing import Any

import rfc8785

from gatepost.upstreams.cleaning import Unusable

EXACT = 2**53 - 1
"""The largest integer that JSON numbers are exact for (RFC 7493)."""


def canonical(value: Mapping[str, Any]) -> bytes:
    """Return a value as canonical JSON; raises Unusable if JSON cannot say it."""
    try:
        return rfc8785.dumps(_doubles(value, []))
    except (rfc8785.CanonicalizationError, UnicodeError, OverflowError, RecursionError):
        raise Unusable("it holds a number or text that JSON has no canonical form for") from None


def digest_of(value: Mapping[str, Any]) -> str:
    """
    Return the SHA-256 of the canonical JSON, in hexadecimal; raises Unusable.

    RFC 8785 rounds integers above 2^53. The exact ones are hashed behind the text, so that a
    change of the last digit is still a change.
    """
    large: list[int] = []
    hashed = hashlib.sha256(canonical(value))
    _doubles(value, large)
    if large:
        hashed.update(b"\0" + ",".join(map(str, large)).encode())
    return hashed.hexdigest()


def _doubles(value: Any, large: list[int]) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > EXACT:
        large.append(value)
        return float(value)
    if isinstance(value, Mapping):
        return {key: _doubles(value[key], large) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_doubles(inner, large) for inner in value]
    return value
