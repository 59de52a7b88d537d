"""The keys that we add to the ASGI scope; the caller's is the gate's own (`gatepost_authz`)."""

from collections.abc import Awaitable
from typing import Any, Protocol

from starlette.types import Scope, Send

import gatepost_authz.middleware

Field = tuple[bytes, bytes]
NO_CONTENT = 204

REQUEST_ID = "gatepost.request_id"
"""By Edge: the request's id, a string of letters, digits and `-`."""

FOLDED = "gatepost.headers"
"""By Edge: the request's headers by name, each with its last value."""

HEAD_AT_MOST = "gatepost.head_at_most"
"""By the connection: how many bytes the request's head cannot exceed."""

WHOLE_BODY = "gatepost.body"
"""By the connection: a body that was there before anybody waited for it."""

SAME_HEAD = gatepost_authz.middleware.SAME_HEAD
"""
By the connection: a dictionary that requests share whose heads were the same bytes but for the
digits of Content-Length. Whoever judges heads may keep there, under itself, what follows from all
the rest of one; `headers` is the same list where the length was the same, too.
"""

HELD = "gatepost.held"
"""
By a connection that can hold an answer back: None, in whose place whoever answers may put a
`Pledge`. The answer leaves once that is kept.
"""

INSTEAD = "gatepost.instead"
"""By whoever answers: makes what is said instead of an answer whose `Pledge` was broken."""


def peer_of(scope: Scope) -> str:
    """The address that a request comes from, as Edge has settled it; empty where nobody knows."""
    client = scope.get("client")
    return client[0] if client else ""


class WholeSend(Protocol):
    """
    ASGI's `send`, as the connection and Edge hand it on: an answer that is whole may go by a
    shorter way, in one step instead of two messages.
    """

    def __call__(self, message: Any) -> Awaitable[None]: ...

    def whole(
        self, status: int, fields: tuple[Field, ...], body: bytes, stamp: bytes = b""
    ) -> bool:
        """
        Send the answer; False: it has to go as messages.

        *fields* say nothing of length, coding or connection, which are added. *stamp* is a line of
        the head as it is written, which stands behind them.
        """


async def tell(send: Send, status: int, fields: tuple[Field, ...], body: bytes) -> None:
    """Send an answer that is whole, by the shortest way there is; its length is added."""
    whole = getattr(send, "whole", None)
    if whole is None or not whole(status, fields, body):
        if status != NO_CONTENT:  # has no body, and says nothing of one (RFC 9110 section 8.6)
            fields = (*fields, (b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": [*fields]})
        await send({"type": "http.response.body", "body": body})
