"""Server-sent events: a POST's answer becomes a stream when there is something to say early."""

import asyncio
from functools import cached_property
from typing import Any

from starlette.types import Send

from gatepost.mcp.jsonrpc import notification

HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    # Proxies that collect a response before passing it on would hold back all progress.
    (b"x-accel-buffering", b"no"),
]
SIGN_OF_LIFE = b":\n\n"
"""A comment, which readers of event streams skip (HTML, Server-sent events)."""


class Stream:
    """
    One answer as events; nothing is sent before the first of them.

    Every event is awaited, so a tool that reports faster than its client reads is slowed down
    instead of filling memory.
    """

    # Most answers never become a stream, so they make nothing of what only streams need.
    started = False
    _ended = False

    def __init__(self, send: Send) -> None:
        self._send = send

    @cached_property
    def _turn(self) -> asyncio.Lock:
        return asyncio.Lock()

    async def notify(self, method: str, params: Any) -> None:
        """Send a notification; after the response, nothing."""
        async with self._turn:
            if not self._ended:
                await self._event(notification(method, params), more=True)

    async def sign(self) -> None:
        """Show that the request is under way, without a message; this may begin the stream."""
        async with self._turn:
            if not self._ended:
                await self._start()
                body = {"type": "http.response.body", "body": SIGN_OF_LIFE, "more_body": True}
                await self._send(body)

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
        body = frame(data)
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _start(self) -> None:
        if not self.started:
            self.started = True
            start = {"type": "http.response.start", "status": 200, "headers": HEADERS.copy()}
            await self._send(start)


def reads_events(accept: bytes) -> bool:
    """Whether a client can be answered with events; one that does not say so can."""
    return not accept or b"text/event-stream" in accept or b"*/*" in accept


def frame(data: bytes, event_id: str = "") -> bytes:
    """One message as one event: it has no line breaks, so it is one `data:` line."""
    named = b"id: %b\n" % event_id.encode() if event_id else b""
    return b"%bevent: message\ndata: %b\n\n" % (named, data)
