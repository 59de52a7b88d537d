"""The messages in an answer of the endpoint, whichever form it has."""

from collections.abc import Awaitable, Callable

from starlette.types import Message as Event

from gatepost.mcp.jsonrpc import read_part
from gatepost.mcp.session import SESSION_HEADER

EVENTS = b"text/event-stream"

Take = Callable[[bytes], Awaitable[None]]


class Frames:
    """
    An ASGI `send` that hands on messages: a JSON body as one, each event's data as one.

    ``paused`` when a stream that was to bring the response to *identity* ended without it, with a
    time after which to come back for the rest.
    """

    def __init__(self, take: Take, identity: bytes | None = None) -> None:
        self._take = take
        self._identity = identity
        self._events = False
        self._begun = b""
        self._answered = False
        self._wants_back = False
        self.status = 0
        self.session: bytes | None = None
        self.last_event = b""
        self.retry_s = 0.0
        self.paused = False

    async def send(self, event: Event) -> None:
        """See ASGI."""
        if event["type"] == "http.response.start":
            headers = dict(event["headers"])
            self.status = event["status"]
            self.session = headers.get(SESSION_HEADER, self.session)
            self._events = headers.get(b"content-type") == EVENTS
            return
        body: bytes = event.get("body", b"")
        over = not event.get("more_body", False)
        if self._events:
            await self._cut(body)
            self.paused = over and self._wants_back and not self._answered
        elif body:
            await self._take(body)

    async def _cut(self, body: bytes) -> None:
        *frames, self._begun = (self._begun + body).split(b"\n\n")
        for frame in frames:
            for line in frame.split(b"\n"):
                name, _, value = line.partition(b": ")
                if name == b"id":
                    self.last_event = value
                elif name == b"retry":
                    self.retry_s, self._wants_back = int(value) / 1000, True
                elif name == b"data" and value:
                    await self._message(value)

    async def _message(self, data: bytes) -> None:
        if self._identity is not None:
            message = read_part(data)
            is_response = message.method is None and message.id == self._identity
            self._answered = self._answered or is_response
        await self._take(data)
