"""Serves `/metrics` in a thread of its own: it answers also while the event loop is stuck."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from gatepost.listen import listen_config
from gatepost.wire.deadlines import Deadlines

DEADLINES = Deadlines(head_s=5.0, keep_alive_s=75, drain_s=1, max_head_bytes=8_192)
"""Collectors ask every fifteen seconds to a minute, on a connection that they keep."""
STOP_S = 5.0


class Listener(uvicorn.Server):
    """uvicorn's server in a thread; signals are the main thread's."""

    def __init__(self, app: ASGIApp, sock: socket.socket) -> None:
        super().__init__(listen_config(app, DEADLINES))
        self._thread = threading.Thread(
            target=self.run, kwargs={"sockets": [sock]}, name="metrics", daemon=True
        )

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

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
