"""Real sockets for tests: free ports, and an ASGI app on one of them for the time of a block."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from starlette.types import ASGIApp

from tests.support.serving import Server


def free_port() -> int:
    """A loopback port that was free a moment ago, for programs that must be told their port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(app: ASGIApp, *, port: int = 0, **options: Any) -> Iterator[str]:
    """Serve *app* behind a real uvicorn in a thread; yields its origin. *options* are Server's."""
    server = Server(app, port=port, timeout_graceful_shutdown=3, **options)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()
