"""A listen stream on an endpoint in this process, read while it is open."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from gatepost_authz.caller import TenantContext
from gatepost_authz.middleware import CALLER
from tests.support.mcp import META, VERSION, Client, message

SOON = 10.0
SUBSCRIPTION = META + "subscriptionId"
COMMENT = "comment"


class Listening:
    """What has arrived on one stream; `next` waits for more, never longer than ten seconds."""

    def __init__(self) -> None:
        self.start: Mapping[str, Any] = {}
        self.hung_up = asyncio.Event()
        self.reading = asyncio.Event()
        self.reading.set()
        self.is_waiting = False
        self._frames: asyncio.Queue[Any] = asyncio.Queue()

    async def send(self, message: Any) -> None:
        """ASGI's send; waits while the client reads nothing."""
        await self.reading.wait()
        if message["type"] == "http.response.start":
            self.start = message
            return
        for frame in message.get("body", b"").split(b"\n\n"):
            if frame:
                self._frames.put_nowait(_read(frame))
        if not message.get("more_body"):
            self._frames.put_nowait(None)

    async def receive(self) -> dict[str, Any]:
        """ASGI's receive."""
        self.is_waiting = True
        try:
            await self.hung_up.wait()
        finally:
            self.is_waiting = False
        return {"type": "http.disconnect"}

    async def next(self) -> Any:
        """The next message; COMMENT for a sign of life, None for the end of the stream."""
        return await asyncio.wait_for(self._frames.get(), SOON)

    async def acknowledged(self) -> Any:
        """The filter as it is honoured, which comes first."""
        first = await self.next()
        assert first["method"] == "notifications/subscriptions/acknowledged"
        return first["params"]["notifications"]

    @property
    def headers(self) -> dict[str, str]:
        """The fields of the answer."""
        return {name.decode(): value.decode() for name, value in self.start["headers"]}


def _read(frame: bytes) -> Any:
    if frame.startswith(b":"):
        return COMMENT
    event, data = frame.split(b"\n")
    assert event == b"event: message"
    return json.loads(data.removeprefix(b"data: "))


@asynccontextmanager
async def listening(
    client: Client,
    wanted: Mapping[str, Any],
    *,
    identity: Any = 7,
    caller: TenantContext | None = None,
    meta: Mapping[str, Any] | None = None,
) -> AsyncIterator[Listening]:
    """A stream for *wanted* (`params.notifications`); hung up at the end of the block."""
    known = {META + "protocolVersion": VERSION, META + "clientCapabilities": {}, **(meta or {})}
    body = message(
        "subscriptions/listen", {"notifications": wanted, "_meta": known}, identity=identity
    )
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "headers": [
            (b"content-type", b"application/json"),
            (b"accept", b"application/json, text/event-stream"),
            (b"mcp-protocol-version", VERSION.encode()),
            (b"mcp-method", b"subscriptions/listen"),
        ],
        CALLER: caller or client.caller,
        "gatepost.request_id": "request-1",
        "gatepost.body": body,
    }
    stream = Listening()
    task = asyncio.create_task(client.endpoint(scope, stream.receive, stream.send))
    try:
        yield stream
    finally:
        stream.hung_up.set()
        stream.reading.set()
        await asyncio.wait_for(task, SOON)
