"""HTTP applications under test: an edge as production builds it, and connections to it."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gatepost.http.checks import HeadChecks, HeadRules
from gatepost.http.deadlines import Deadlines
from gatepost.http.edge import Edge, respond
from gatepost.http.flow_control import UnreadLimits
from gatepost.runtime.http_server import GatepostServer, bind, listen_config
from gatepost.telemetry.access import AccessLog

HOST = (b"host", b"mcp.example.com")
NOTHING: Mapping[str, Any] = {}
Pairs = tuple[tuple[bytes, bytes], ...]


class WireAnswer(NamedTuple):
    """What came back."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name.encode(), b"").decode() or None

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


async def ask(
    app: ASGIApp,
    path: str = "/mcp",
    *,
    method: str = "POST",
    headers: Pairs = (HOST,),
    scheme: str = "https",
    peer: str = "198.51.100.7",
    more: Mapping[str, Any] = NOTHING,
) -> WireAnswer:
    """Send one request without a body; *more* of its scope."""
    sent: list[Message] = []
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": list(headers),
        "scheme": scheme,
        "client": (peer, 4711),
        "server": ("127.0.0.1", 8000),
        "http_version": "1.1",
        **more,
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return WireAnswer(sent[0]["status"], sent[0]["headers"], body)


SOON = 20.0
"""Seconds after which a test gives up; the deadlines under test are far shorter."""
HASTY = Deadlines(
    head_s=0.3,
    keep_alive_s=1,
    drain_s=1,
    max_head_bytes=2000,
    unread=UnreadLimits(bytes_per_s=1000, window_s=0.5),
)


@asynccontextmanager
async def serving(
    app: ASGIApp,
    protocol: type[asyncio.Protocol],
    *,
    deadlines: Deadlines = HASTY,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """The port of a running server."""
    sock = bind("127.0.0.1", 0)
    ready = asyncio.Event()
    config = listen_config(app, deadlines, tls=tls, protocol=protocol)
    server = GatepostServer(config, on_ready=ready.set)
    running = asyncio.create_task(server.serve(sockets=[sock]))
    await asyncio.wait_for(ready.wait(), SOON)
    yield sock.getsockname()[1]
    server.should_exit = True
    await asyncio.wait_for(running, SOON)


class WireConnection:
    """A connection on which a test writes bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until(self, end: bytes) -> bytes:
        """All up to *end*."""
        return await asyncio.wait_for(self.reader.readuntil(end), SOON)

    async def rest(self) -> bytes:
        """All until the server closes."""
        try:
            return await asyncio.wait_for(self.reader.read(), SOON)
        except ConnectionResetError:
            return b""

    async def drip(self, data: bytes, count: int) -> bytes:
        """Send *data* again and again until the server answers or closes."""
        for _ in range(count):
            try:
                await self.send(data)
                return await asyncio.wait_for(self.reader.read(), 0.05)
            except TimeoutError:
                continue
            except ConnectionError:
                return b""
        raise AssertionError("the server waited for ever")


@asynccontextmanager
async def connected(
    port: int, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[WireConnection]:
    """A connection to the server; with *tls* an encrypted one."""
    name = None if tls is None else "localhost"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
    yield WireConnection(reader, writer)
    writer.close()
    if tls is not None:
        with suppress(OSError, ssl.SSLError):
            await asyncio.wait_for(writer.wait_closed(), SOON)


PAGE = b"https://app.example.com"
RULES = HeadRules(
    origin="https://mcp.example.com",
    development=False,
    max_header_bytes=2000,
    max_body_bytes=1000,
    allowed_origins=(PAGE.decode(),),
    trusted_proxies=("10.0.0.0/8",),
)


async def healthy() -> tuple[int, bytes]:
    """A probe's answer."""
    return 200, b'{"status":"ok"}'


class Inner:
    """Stands where the application stands: counts, remembers the scope, answers 200."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.raises: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        if self.raises is not None:
            raise self.raises
        if scope["path"] == "/breaks":
            raise KeyError("Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.c2ln")
        await respond(send, 200, b"{}")


class Front:
    """An edge as production builds it, and what it wrote and let through."""

    def __init__(self, rules: HeadRules = RULES) -> None:
        self.inner = Inner()
        self.written: list[bytes] = []
        self.log = AccessLog("json", self.written.append)
        self.checks = HeadChecks(rules)
        self.edge = Edge(
            self.inner,
            checks=self.checks,
            log=self.log,
            probes={"/health": healthy},
            is_endpoint=lambda path: path == "/mcp",
        )

    @property
    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for batch in self.written for line in batch.splitlines()]
