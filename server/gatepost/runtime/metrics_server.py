"""Serve `/metrics` in its own thread, so that it answers while the event loop is blocked."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from operator import attrgetter

import uvicorn
from starlette.types import ASGIApp

from gatepost.http.deadlines import Deadlines
from gatepost.http.httptools_protocol import HttptoolsProtocol
from gatepost.runtime.http_server import accepting, listen_config

DEADLINES = Deadlines(head_s=5.0, keep_alive_s=75, drain_s=4, max_head_bytes=8_192)
"""Collectors scrape every 15 to 60 seconds on a kept connection."""
READ_WITHIN_S = 0.5
"""How long a stop waits for a running response."""
STOP_S = 5.0
MAX_CONNECTIONS = 100
"""`/metrics` has no authentication, so it must not use up the file descriptors."""
REQUEST_NUMBERS = count()


class Connection(HttptoolsProtocol):
    """
    A connection. Beyond the maximum the oldest one is ended, so that no client can block the
    others.
    """

    number = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.number = next(REQUEST_NUMBERS)
        if len(self.connections) > MAX_CONNECTIONS:
            oldest = min(self.connections, key=attrgetter("number"))
            # At once, because more connections may arrive before its loss is reported.
            self.connections.discard(oldest)
            oldest.transport.abort()


class MetricsServer(uvicorn.Server):
    """uvicorn's server in a thread; the main thread handles signals."""

    def __init__(self, app: ASGIApp, sock: socket.socket) -> None:
        super().__init__(listen_config(app, DEADLINES, protocol=Connection))
        self._thread = threading.Thread(
            target=self.run, kwargs={"sockets": [sock]}, name="metrics", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        # A reserved share of descriptors: metrics matter most when the endpoint is full.
        self.servers = accepting(self, sockets or [], share=4)  # type: ignore[assignment]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(READ_WITHIN_S, self._give_up)
        await super().shutdown(sockets)

    def _give_up(self) -> None:
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()

    def stop(self) -> None:
        """Stop within seconds, after running answers are finished."""
        self.should_exit = True
        self._thread.join(STOP_S)


@contextmanager
def scraped(app: ASGIApp, sock: socket.socket | None) -> Iterator[None]:
    """Serve the app at this socket during a block; None: do not serve."""
    if sock is None:
        yield
        return
    listener = MetricsServer(app, sock)
    listener.start()
    try:
        yield
    finally:
        listener.stop()
