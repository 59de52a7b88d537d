"""Sends a whole response, in one step where the server can."""

from collections.abc import Awaitable
from typing import Any

from starlette.types import Send

Field = tuple[bytes, bytes]
NO_CONTENT = 204


class OneStepSend:
    """
    ASGI's `send` of a server that has a shorter way for an answer that is whole: one step instead
    of two messages. A server's class inherits from it to say so.
    """

    __slots__ = ()

    def __call__(self, message: Any) -> Awaitable[None]:
        """ASGI's `send`."""
        raise NotImplementedError

    def send_whole(
        self, status: int, fields: tuple[Field, ...], body: bytes, encoded: bytes = b""
    ) -> bool:
        """
        Send the answer; False: it has to go as messages.

        *fields* say nothing of length, coding or connection, which are added. *encoded* are
        further header lines, each with its line end.
        """
        raise NotImplementedError


async def send_response(send: Send, status: int, fields: tuple[Field, ...], body: bytes) -> None:
    """Send an answer that is whole, by the shortest way there is; its length is added."""
    if not isinstance(send, OneStepSend) or not send.send_whole(status, fields, body):
        if status != NO_CONTENT:  # has no body, and says nothing of one (RFC 9110 section 8.6)
            fields = (*fields, (b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": [*fields]})
        await send({"type": "http.response.body", "body": body})
