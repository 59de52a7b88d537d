"""A real uvicorn in a thread of this process, for servers that a test wants to look inside."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp


class AsgiServer:
    """
    Serves an ASGI app on loopback until `stop`; *http* is `httptools` or `h11`.

    *options* are uvicorn's; `port` is a free one by default. Starting and stopping
    are bounded by ten seconds.
    """

    def __init__(self, app: Any, *, http: str | type = "httptools", **options: Any) -> None:
        settings = {
            "port": 0,
            "log_level": "error",
            "lifespan": "off",
            "access_log": False,
            "interface": "asgi3",
        } | options
        config = uvicorn.Config(app, host="127.0.0.1", http=http, **settings)
        self._server = uvicorn.Server(config)
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        startup = self._server.startup

        async def announce(sockets: Any = None) -> None:
            await startup(sockets)
            self._started.set()

        self._server.startup = announce  # type: ignore[method-assign]

    def _run(self) -> None:
        self._server.run()

    def start(self) -> "AsgiServer":
        self._thread.start()
        assert self._started.wait(10), "the server did not start within ten seconds"
        return self

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive(), "the server did not stop within ten seconds"

    @property
    def port(self) -> int:
        port: int = self._server.servers[0].sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def serving(app: ASGIApp, *, port: int = 0, **options: Any) -> Iterator[str]:
    """Serve *app* behind a real uvicorn in a thread; yields its origin. *options* are Server's."""
    server = AsgiServer(app, port=port, timeout_graceful_shutdown=3, **options)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()
