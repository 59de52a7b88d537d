"""The socket: uvicorn's fast parts, TLS, signals, and a shutdown that drains."""

import asyncio
import contextlib
import faulthandler
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from gatepost import collector
from gatepost.wire.deadlines import HEAD_ALLOWANCE, Deadlines, ListenConfig
from gatepost.wire.fast import FastProtocol

HARD_END_S = 15
"""After the drain, how long closing may take before the process ends without it."""


class Server(uvicorn.Server):
    """
    uvicorn's server, told when it accepts and when it should stop.

    SIGTERM and SIGINT drain and end normally, so that an orchestrator sees exit code 0; a second
    SIGINT does not wait. *on_drain* ends what would not end by itself. SIGHUP calls *reload*.

    A stop always ends. A tool's thread, a disk or a driver may hang, and Python would wait for
    them for ever; after `drain_s` and `HARD_END_S` the process says where it hangs and exits 1.
    """

    config: ListenConfig

    def __init__(
        self,
        config: ListenConfig,
        *,
        on_ready: Callable[[], object],
        on_drain: Callable[[], object] | None = None,
        reload: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._on_drain = on_drain
        self._reload = reload

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Without any socket of its own: uvicorn leaves a TLS handshake a minute, of which the
        # deadline of heads knows nothing.
        await super().startup([])
        await self._listen(sockets or [])
        collector.settle()
        self._on_ready()

    async def _listen(self, sockets: list[socket.socket]) -> None:
        config = self.config
        handshake_s = config.deadlines.head_s if config.ssl else None
        protocol = partial(
            cast("type[FastProtocol]", config.http_protocol_class),
            config=config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        loop = asyncio.get_running_loop()
        for sock in sockets:
            self.servers.append(
                await loop.create_server(
                    protocol,
                    sock=sock,
                    ssl=config.ssl,
                    backlog=config.backlog,
                    ssl_handshake_timeout=handshake_s,
                )
            )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Before the connections are told: whoever waits for an answer without end gets its end.
        if self._on_drain is not None:
            self._on_drain()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[int, FrameType | None], None]] = {
            signal.SIGTERM: self.handle_exit,
            signal.SIGINT: self.handle_exit,
        }
        if (reload := self._reload) is not None:

            def on_hangup(*_: object) -> None:
                loop.call_soon_threadsafe(reload)

            handlers[signal.SIGHUP] = on_hangup
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        if not self.should_exit:
            within_s = (self.config.timeout_graceful_shutdown or 0) + HARD_END_S
            # Its thread is not Python's: it needs neither the loop nor the interpreter's lock.
            faulthandler.dump_traceback_later(within_s, exit=True, file=2)
        self.should_exit = True


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """TLS 1.2 or newer; raises OSError or ssl.SSLError when the files cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context


class Certificate:
    """What the server shows to whoever connects; another one counts from the next handshake on."""

    def __init__(self, certificate: str, key: str) -> None:
        self.context = tls_context(certificate, key)
        self._renewed = self.context

    def renew(self, certificate: str, key: str) -> None:
        """Show this one; raises as `tls_context` does, and then the one before stays."""
        self._renewed = tls_context(certificate, key)
        # Loaded into the context in use, a chain and a key that do not fit would leave it with
        # neither. This is called in each handshake, also where no name was sent.
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._renewed


def listen_config(
    app: ASGIApp,
    deadlines: Deadlines,
    *,
    tls: ssl.SSLContext | None = None,
    protocol: type[asyncio.Protocol] = FastProtocol,
) -> ListenConfig:
    """
    The fast parts: uvloop, httptools, no access log of uvicorn's (ours is written in batches).

    Forwarded headers are judged by the Transport check alone; uvicorn would believe any loopback
    peer.
    """
    config = ListenConfig(
        cast("Any", app),
        loop="uvloop",
        http=protocol,
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=deadlines.keep_alive_s,
        timeout_graceful_shutdown=deadlines.drain_s,
        h11_max_incomplete_event_size=deadlines.max_head_bytes + HEAD_ALLOWANCE,
        ssl_context_factory=(lambda *_: tls) if tls is not None else None,
    )
    config.deadlines = deadlines
    return config


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises OSError (port in use, no such address)."""
    family, kind, proto, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(2048)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock
