"""The HTTP server: uvicorn with TLS, signals, and a shutdown that drains."""

import asyncio
import contextlib
import errno
import faulthandler
import math
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FrameType
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from gatepost.http.acceptor import QUEUE, Acceptor
from gatepost.http.deadlines import HEAD_LINES_BYTES, Deadlines, ListenConfig
from gatepost.http.file_descriptors import DescriptorLimits
from gatepost.http.httptools_protocol import HttptoolsProtocol
from gatepost.runtime import interpreter
from gatepost.runtime.signals import RepeatedSignals, is_ignored, is_pending

SUITES = ":".join(
    (
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-RSA-AES128-GCM-SHA256",
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        "ECDHE-RSA-CHACHA20-POLY1305",
    )
)
"""
The suites of TLS 1.2 in Mozilla's intermediate configuration, without those that need
Diffie-Hellman parameters, which this server has none of. Those of TLS 1.3 are the library's.
"""
UNSENT_BYTES = 32 * 1024
"""Unsent bytes that the system buffers for a connection."""
LOOK_AGAIN_S = 0.1
HARD_END_S = 15
"""How long closing may take after the drain before the process exits anyway."""


class GatepostServer(uvicorn.Server):
    """
    uvicorn's server, told when it accepts and when it should stop.

    SIGTERM and SIGINT drain and end normally, so that an orchestrator sees exit code 0. Before a
    drain that SIGTERM begins, *on_leave* is called and the server goes on for *leave_s*: balancers
    see that it is not ready and send elsewhere. Each further signal skips the wait of the one
    before. *on_drain* ends requests that would not end by themselves. *reload_signal* calls
    *reload*; if it is another signal than SIGHUP, SIGHUP ends the server like SIGINT, unless the
    process ignores it.

    A stop always ends. A tool's thread, a disk or a driver may hang, and Python would wait for them
    forever. After `drain_s` and `HARD_END_S` the process logs where it hangs and exits 1.
    """

    config: ListenConfig

    def __init__(  # noqa: PLR0913  # each hook by name
        self,
        config: ListenConfig,
        *,
        on_ready: Callable[[], object],
        on_leave: Callable[[], object] | None = None,
        leave_s: float = 0.0,
        on_drain: Callable[[], object] | None = None,
        reload: Callable[[], object] | None = None,
        reload_signal: signal.Signals = signal.SIGHUP,
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._on_leave = on_leave
        self._leave_s = leave_s
        self._on_drain = on_drain
        self._reload, self._reload_signal = reload, reload_signal
        self._signals = RepeatedSignals()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Without uvicorn's own sockets: it allows a TLS handshake a minute, and the header deadline
        # does not cover handshakes.
        await super().startup([])
        for sock in sockets or []:
            listen(sock)
        self.servers = accepting(self, sockets or [])  # type: ignore[assignment]
        interpreter.configure()
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for server in self.servers:
            # Accepted sockets have become connections and are closed like all others.
            await server.wait_closed()
        # Before the connections close, so that endless answers end properly.
        if self._on_drain is not None:
            self._on_drain()
        await self._finish()
        await super().shutdown(sockets)

    async def _finish(self) -> None:
        """
        Finish running requests, and answer new ones on open connections meanwhile.

        Idle connections close afterwards, because a load balancer may be sending on one.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + (self.config.timeout_graceful_shutdown or 0)
        connections = self.server_state.connections
        for connection in tuple(connections):
            cast("HttptoolsProtocol", connection).finish()
        if connections:
            # Requests may be on their way, on idle connections and on those that were accepted
            # last.
            await asyncio.sleep(LOOK_AGAIN_S)
        while (  # noqa: ASYNC110  # a signal ends it as well, and none is missed
            any(cast("HttptoolsProtocol", connection).is_busy() for connection in connections)
            and not self.force_exit
            and loop.time() < ends_at
        ):
            await asyncio.sleep(LOOK_AGAIN_S)
        self.config.timeout_graceful_shutdown = max(0, math.ceil(ends_at - loop.time()))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = self._loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[int, FrameType | None], None]] = {
            signal.SIGTERM: self.handle_exit,
            signal.SIGINT: self.handle_exit,
        }
        if self._reload_signal != signal.SIGHUP and not is_ignored(signal.SIGHUP):
            handlers[signal.SIGHUP] = self.handle_exit
        if (reload := self._reload) is not None:

            def on_reload(*_: object) -> None:
                loop.call_soon_threadsafe(reload)

            handlers[self._reload_signal] = on_reload
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        if reload is not None and is_pending(before[self._reload_signal]):
            on_reload()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        first = self._signals.last_at is None
        if self._signals.is_repeated():
            return
        within_s: float = (self.config.timeout_graceful_shutdown or 0) + HARD_END_S
        if first and self._on_leave is not None:
            self._on_leave()
        if first and sig == signal.SIGTERM and self._leave_s > 0:
            within_s += self._leave_s
            self._loop.call_soon_threadsafe(self._loop.call_later, self._leave_s, self._exit)
        elif not self.should_exit:
            self._exit()
        else:
            self.force_exit = True
            within_s = HARD_END_S
        # Runs in a C thread, which needs neither the event loop nor the interpreter's lock.
        faulthandler.dump_traceback_later(within_s, exit=True, file=2)

    def _exit(self) -> None:
        self.should_exit = True


def accepting(
    server: uvicorn.Server, sockets: Iterable[socket.socket], *, share: int = 2
) -> list[Acceptor]:
    """Accept the connections of these sockets; *share* as in `DescriptorLimits`."""
    config = cast("ListenConfig", server.config)
    protocol = partial(
        cast("type[HttptoolsProtocol]", config.http_protocol_class),
        config=config,
        server_state=server.server_state,
        app_state=server.lifespan.state,
    )
    return [
        Acceptor(
            sock,
            protocol,
            server.server_state.connections,
            descriptors=DescriptorLimits.of_process(share=share),
            tls=config.ssl,
            handshake_s=config.deadlines.head_s if config.ssl else None,
        )
        for sock in sockets
    ]


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """
    Return a context for TLS 1.2 or newer; raises OSError or ssl.SSLError if a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(SUITES)
    context.load_cert_chain(certificate, key)
    return context


class Certificate:
    """The TLS certificate of the server; a renewed one applies from the next handshake on."""

    def __init__(self, certificate: str, key: str) -> None:
        self.context = tls_context(certificate, key)
        self._renewed = self.context

    def renew(self, certificate: str, key: str) -> None:
        """Use this certificate; if `tls_context` raises, the previous one stays."""
        self._renewed = tls_context(certificate, key)
        # A new context: a chain and a key that do not match would break the one in use. The
        # callback runs in each handshake, also without SNI.
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._renewed


def listen_config(
    app: ASGIApp,
    deadlines: Deadlines,
    *,
    tls: ssl.SSLContext | None = None,
    protocol: type[asyncio.Protocol] = HttptoolsProtocol,
) -> ListenConfig:
    """
    Return the uvicorn configuration: uvloop, httptools, and no access log of uvicorn.

    Only `TrustedProxies` evaluates forwarded headers; uvicorn would trust any loopback peer.
    """
    return ListenConfig(
        app,
        deadlines,
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
        h11_max_incomplete_event_size=deadlines.max_head_bytes + HEAD_LINES_BYTES,
        ssl_context_factory=(lambda *_: tls) if tls is not None else None,
    )


class ListenError(Exception):
    """An address cannot be listened on; the text names it, its setting and the reason."""


def bind(
    host: str, port: int, setting: str = "listen.port", *, listens: bool = True
) -> socket.socket:
    """
    Return a socket with this address; raises ListenError (port in use, no such address).

    If *listens* is false, the system refuses connections until `listen` is called.
    """
    try:
        sock = _bound(host, port)
    except UnicodeError:
        raise ListenError(f"cannot listen on {host} ({setting}): it is no host name") from None
    except OSError as error:
        raise _not_listening(host, port, setting, error) from None
    if listens:
        listen(sock, setting)
    return sock


def listen(sock: socket.socket, setting: str = "listen.port") -> None:
    """Let clients connect to a bound socket; raises ListenError if another server was faster."""
    host, port = sock.getsockname()[:2]
    try:
        sock.listen(QUEUE)
    except OSError as error:
        sock.close()
        raise _not_listening(host, port, setting, error) from None


def _not_listening(host: str, port: int, setting: str, error: OSError) -> ListenError:
    hint = " Is another server running there?" if error.errno == errno.EADDRINUSE else ""
    return ListenError(f"cannot listen on {host} port {port} ({setting}): {error.strerror}.{hint}")


def _bound(host: str, port: int) -> socket.socket:
    family, kind, proto, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if (lowat := getattr(socket, "TCP_NOTSENT_LOWAT", None)) is not None:
            # Accepted connections inherit it. Unread answers then stay in the process and are
            # counted; the system would buffer megabytes of each and hide slow readers.
            sock.setsockopt(socket.IPPROTO_TCP, lowat, UNSENT_BYTES)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock
