"""How a client marks a call as the same one again: header fields that every protocol reads."""

import re
from collections.abc import Mapping

from gatepost.tools.api import Retry

IDEMPOTENCY = b"idempotency-key"
CORRELATION = b"x-octopus-correlation-id"

KEY = re.compile(r"[!-~]{1,255}", re.ASCII)


class BadKey(Exception):
    """A retry key cannot be used; the message may be shown to the caller."""


def retry_of(headers: Mapping[bytes, bytes], named: str | None = None) -> Retry | None:
    """
    The retry key of a call: `Idempotency-Key`, else `X-Octopus-Correlation-Id`, else None.

    *headers* by their names in lower case; *named* is an idempotency key that came with the call
    itself. A key is opaque: 1 to 255 visible ASCII characters, quotes included. BadKey when one is
    not, or when header and call name different keys.
    """
    if IDEMPOTENCY in headers:
        key = _checked("Idempotency-Key", headers[IDEMPOTENCY].decode("latin-1").strip(" \t"))
        if named is not None and named != key:
            # Whoever watches the header and whoever reads the call would see different calls.
            raise BadKey("The call and its Idempotency-Key header name different keys")
        return Retry("idempotency", key)
    if named is not None:
        return Retry("idempotency", _checked("The idempotency key", named))
    if CORRELATION in headers:
        value = headers[CORRELATION].decode("latin-1").strip(" \t")
        return Retry("correlation", _checked("X-Octopus-Correlation-Id", value))
    return None


def correlation_of(headers: Mapping[bytes, bytes]) -> str | None:
    """The id for logs and calls further on, also where another key marks the retry; BadKey."""
    if CORRELATION not in headers:
        return None
    marked = retry_of({CORRELATION: headers[CORRELATION]})
    return None if marked is None else marked.key


def _checked(what: str, key: str) -> str:
    if not KEY.fullmatch(key):
        raise BadKey(f"{what} must be 1 to 255 visible ASCII characters")
    return key
