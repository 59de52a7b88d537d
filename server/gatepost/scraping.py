"""Serves `/metrics` in a thread of its own: it answers also while the event loop is stuck."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from operator import attrgetter

import uvicorn
from starlette.types import ASGIApp

from gatepost.listen import listen_config
from gatepost.wire.deadlines import Deadlines
from gatepost.wire.fast import FastProtocol

DEADLINES = Deadlines(head_s=5.0, keep_alive_s=75, drain_s=4, max_head_bytes=8_192)
"""Collectors ask every fifteen seconds to a minute, on a connection that they keep."""
READ_WITHIN_S = 0.5
"""Of a stop: what is not read by then is nobody's loss."""
STOP_S = 5.0
MOST_CONNECTIONS = 100
"""There is no gate here, and what the system allows to be open is for clients of the endpoint."""
ORDER = count()


class Connection(FastProtocol):
    """One of so many at most: one more ends the oldest, so that who holds them locks none out."""

    number = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.number = next(ORDER)
        if len(self.connections) > MOST_CONNECTIONS:
            oldest = min(self.connections, key=attrgetter("number"))
            # At once: many may come before it is told that its connection is lost.
            self.connections.discard(oldest)
            oldest.transport.abort()


class Listener(uvicorn.Server):
    """uvicorn's server in a thread; signals are the main thread's."""

    def __init__(self, app: ASGIApp, sock: socket.socket) -> None:
        super().__init__(listen_config(app, DEADLINES, protocol=Connection))
        self._thread = threading.Thread(
            target=self.run, kwargs={"sockets": [sock]}, name="metrics", daemon=True
        )

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(READ_WITHIN_S, self._give_up)
        await super().shutdown(sockets)

    def _give_up(self) -> None:
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()

    def stop(self) -> None:
        """End within seconds; what is being answered is finished."""
        self.should_exit = True
        self._thread.join(STOP_S)


@contextmanager
def scraped(app: ASGIApp, sock: socket.socket | None) -> Iterator[None]:
    """Serve the app at this socket for the time of a block; None: nowhere."""
    if sock is None:
        yield
        return
    listener = Listener(app, sock)
    listener.start()
    try:
        yield
    finally:
        listener.stop()
