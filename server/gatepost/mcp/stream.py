"""Server-sent events: a POST's answer becomes a stream when there is something to say early."""

import asyncio
import math
from typing import Any

from msgspec import UNSET, Raw
from starlette.types import Send

from gatepost.mcp.jsonrpc import notification, read_id
from gatepost.mcp.params import Meta

HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    # Proxies that collect a response before passing it on would hold back all progress.
    (b"x-accel-buffering", b"no"),
]


class Stream:
    """
    One answer as events; nothing is sent before the first of them.

    Every event is awaited, so a tool that reports faster than its client reads is slowed down
    instead of filling memory.
    """

    def __init__(self, send: Send, token: Raw) -> None:
        self._send = send
        self._token = token
        self._reported = -math.inf
        self._ended = False
        self._turn = asyncio.Lock()
        self.started = False

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Send `notifications/progress`; a report that does not grow is dropped (PR-01)."""
        if self._ended or not progress > self._reported or math.isinf(progress):
            return
        self._reported = progress
        params: dict[str, Any] = {"progressToken": self._token, "progress": progress}
        if total is not None and math.isfinite(total):
            params["total"] = total
        if message is not None:
            params["message"] = message
        async with self._turn:
            if not self._ended:
                await self._event(notification("notifications/progress", params), more=True)

    async def finish(self, body: bytes | None) -> None:
        """Send the response, if there is to be one, and end the stream."""
        self._ended = True
        async with self._turn:
            if body is not None:
                await self._event(body, more=False)
                return
            await self._start()
            await self._send({"type": "http.response.body", "body": b": cancelled\n\n"})

    async def _event(self, data: bytes, *, more: bool) -> None:
        await self._start()
        # JSON written without line breaks is one `data:` line, as line-wise readers need it.
        frame = b"event: message\ndata: " + data + b"\n\n"
        await self._send({"type": "http.response.body", "body": frame, "more_body": more})

    async def _start(self) -> None:
        if not self.started:
            self.started = True
            start = {"type": "http.response.start", "status": 200, "headers": HEADERS.copy()}
            await self._send(start)


def wanted_stream(send: Send, meta: Meta, accept: bytes) -> Stream | None:
    """A stream, when the request asks to be told of progress and its client reads events."""
    token = meta.progress_token
    if token is UNSET or (accept and b"text/event-stream" not in accept and b"*/*" not in accept):
        return None
    identity = read_id(token)
    return None if identity is None else Stream(send, Raw(identity))
