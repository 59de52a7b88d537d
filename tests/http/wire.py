"""A server on a socket, and a connection on which a test writes bytes."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from starlette.types import ASGIApp

from gatepost.http.deadlines import Deadlines
from gatepost.http.unread_responses import UnreadLimits
from gatepost.runtime.server import GatepostServer, bind, listen_config

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


class Wire:
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
async def connected(port: int, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Wire]:
    """A connection to the server; with *tls* an encrypted one."""
    name = None if tls is None else "localhost"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
    yield Wire(reader, writer)
    writer.close()
    if tls is not None:
        with suppress(OSError, ssl.SSLError):
            await asyncio.wait_for(writer.wait_closed(), SOON)
