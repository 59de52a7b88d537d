"""Take the one credential out of the raw headers of a request (RFC 6750 section 2.1)."""

import re
from collections.abc import Iterable

from gatepost_authz.errors import MalformedCredentials, MissingToken

MAX_TOKEN = 16 * 1024
"""The longest token looked at, in bytes; nothing longer is even split."""

MAX_VALUE = MAX_TOKEN + len(b"Bearer ")
B64TOKEN = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/"
CREDENTIAL = re.compile(rb"bearer +([A-Za-z0-9\-._~+/]+=*)", re.IGNORECASE)
SCHEME = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+)(?= |\Z)")


def bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """
    The Bearer token among raw ASGI *headers* (names in lower case).

    Raises MissingToken without credentials or with another scheme, MalformedCredentials for
    everything else that is not exactly one header field with one ``b64token``. A token in the
    query or in a form is never looked for (MCP: access tokens must not stand in the URI).
    """
    found = None
    for name, value in headers:
        if name == b"authorization":
            if found is not None:
                # Whoever stands before us may have judged the other one.
                raise MalformedCredentials("repeated_header")
            found = value
    if found is None:
        raise MissingToken
    if len(found) > MAX_VALUE:
        raise MalformedCredentials("too_long")
    # What remains without the token's alphabet is the one space after the scheme: this says the
    # same as CREDENTIAL at a third of its cost.
    if found.startswith(b"Bearer ") and found.translate(None, B64TOKEN) == b" ":
        token = found[7:]
        if token:
            return token.decode("ascii")
    return _unusual(found)


def _unusual(value: bytes) -> str:
    # White space around a field value is no part of it (RFC 9110 section 5.5). h11 takes it away
    # and httptools does not, so without this the same request would fare differently.
    value = value.strip(b" \t")
    match = CREDENTIAL.fullmatch(value)
    if match is not None:
        return match[1].decode("ascii")
    scheme = SCHEME.match(value)
    if scheme is None or scheme[1].lower() == b"bearer":
        raise MalformedCredentials("malformed_credentials")
    raise MissingToken("other_scheme")
