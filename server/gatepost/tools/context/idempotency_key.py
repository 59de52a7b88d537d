"""Read the idempotency key and the correlation id of a call from its headers."""

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

IDEMPOTENCY = b"idempotency-key"
CORRELATION = b"x-octopus-correlation-id"

KEY = re.compile(r"[!-~]{1,255}", re.ASCII)


class IdempotencyKey(msgspec.Struct, frozen=True):
    """
    The marks by which a client identifies a call as the same one again.

    An ``idempotency`` key belongs to one call for a day. A ``correlation`` id counts only while the
    first call runs and shortly after.
    """

    kind: Literal["idempotency", "correlation"]
    key: str


class BadKey(Exception):
    """An idempotency key is invalid; the message may be shown to the caller."""


def idempotency_key_of(
    headers: Mapping[bytes, bytes], meta_key: str | None = None
) -> IdempotencyKey | None:
    """
    Return the idempotency key of a call, which marks a retry; None if it has none.

    It is `Idempotency-Key`, else `X-Octopus-Correlation-Id`. *headers* have lower-case names;
    *meta_key* is an idempotency key in the call itself. A key is opaque: 1 to 255 visible ASCII
    characters, quotes included. Raises BadKey if a key is invalid, or if header and call have
    different keys.
    """
    if IDEMPOTENCY in headers:
        key = _checked("Idempotency-Key", headers[IDEMPOTENCY].decode("latin-1").strip(" \t"))
        if meta_key is not None and meta_key != key:
            # A proxy that reads the header and one that reads the call would see different calls.
            raise BadKey("The call and its Idempotency-Key header name different keys")
        return IdempotencyKey("idempotency", key)
    if meta_key is not None:
        return IdempotencyKey("idempotency", _checked("The idempotency key", meta_key))
    if CORRELATION in headers:
        value = headers[CORRELATION].decode("latin-1").strip(" \t")
        return IdempotencyKey("correlation", _checked("X-Octopus-Correlation-Id", value))
    return None


def correlation_of(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the correlation id for logs and further calls, or None; raises BadKey."""
    if CORRELATION not in headers:
        return None
    marked = idempotency_key_of({CORRELATION: headers[CORRELATION]})
    return None if marked is None else marked.key


def _checked(subject: str, key: str) -> str:
    if not KEY.fullmatch(key):
        raise BadKey(f"{subject} must be 1 to 255 visible ASCII characters")
    return key
