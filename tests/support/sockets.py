"""Real sockets for tests: free ports, and an ASGI app behind a real uvicorn in a thread."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp

STARTED_WITHIN_S = 20


def free_port() -> int:
    """A loopback port that was free a moment ago, for programs that must be told their port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.settled.set()

    def run_until_told(self, listener: socket.socket) -> None:
        try:
            self.run(sockets=[listener])
        finally:
            self.settled.set()


@contextlib.contextmanager
def serving(
    app: ASGIApp,
    *,
    http: Literal["httptools", "h11"] | type[Any] = "httptools",
    port: int = 0,
    lifespan: Literal["on", "off", "auto"] = "auto",
) -> Iterator[str]:
    """
    Serve *app* on loopback with the given HTTP parser; yields its origin, `http://127.0.0.1:PORT`.

    The whole stack is as in production: only the process is ours, so that a test can look inside.
    """
    with contextlib.closing(socket.socket()) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        config = uvicorn.Config(
            app,
            http=http,
            lifespan=lifespan,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=3,
        )
        server = _Server(config)
        thread = threading.Thread(target=server.run_until_told, args=(listener,), daemon=True)
        thread.start()
        try:
            assert server.settled.wait(STARTED_WITHIN_S), "uvicorn did not start in time"
            assert server.started, "uvicorn ended instead of starting"
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(STARTED_WITHIN_S)
            assert not thread.is_alive(), "uvicorn did not stop in time"
