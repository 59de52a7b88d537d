"""The socket: uvicorn's fast parts, a deadline for request heads, a shutdown that drains."""

import asyncio
import contextlib
import gc
import re
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, cast

import h11
import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Room above the configured header limit for one credential that the gate refuses itself; what
# never ends its head is cut off here, before it fills the memory.
HEAD_ALLOWANCE = 96 * 1024
TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)
# Whichever comes first: a continued line, or the empty line behind the head.
HEAD_OR_FOLD = re.compile(rb"\n(?:[ \t]|\r?\n)")
NO_TUNNELS = b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


# A header continued on the next line (RFC 9112 section 5.2) is refused: httptools does so, h11
# would join it, and who stands in front may have read the first line only.
FOLDED = re.compile(rb"\n[ \t]")
END_OF_HEAD = re.compile(rb"\r?\n\r?\n")


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """How long a connection may take; seconds and bytes."""

    head_s: float = 10.0
    """From the connection, or the first byte after the last answer, to the end of the head."""
    keep_alive_s: int = 65
    """How long an idle connection stays open: longer than load balancers keep theirs (60 s), or
    they send a request into a connection that is just being closed."""
    drain_s: int = 30
    """How long running requests may take to finish when the server stops."""
    max_head_bytes: int = 32_768


class ListenConfig(uvicorn.Config):
    """uvicorn's configuration with our deadlines, which our protocols read from it."""

    deadlines = Deadlines()


class HeadWatch:
    """
    The deadline of one connection's request heads, and of bodies nobody reads any more.

    uvicorn starts no timer before the first byte of an answer, so a client that sends a byte a
    minute would hold a connection for ever. Most heads arrive whole: then no timer is made.
    """

    __slots__ = ("_config", "_loop", "_protocol", "received", "timer")

    def __init__(self, protocol: Any, config: ListenConfig, loop: asyncio.AbstractEventLoop):
        self._protocol = protocol
        self._config = config
        self._loop = loop
        self.timer: asyncio.TimerHandle | None = None
        self.received = 0

    def arm(self) -> None:
        if self.timer is None:
            self.timer = self._loop.call_later(self._config.deadlines.head_s, self._late)

    def disarm(self) -> None:
        self.received = 0
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def count(self, size: int) -> None:
        """Bytes arrived and the head is still not whole."""
        self.received += size
        if self.received > self._config.deadlines.max_head_bytes + HEAD_ALLOWANCE:
            self._end(TOO_LARGE)
        else:
            self.arm()

    def stray(self, size: int) -> None:
        """Bytes arrived that are neither head nor body: the fields behind a chunked body."""
        self.received += size
        if self.received > self._config.deadlines.max_head_bytes + HEAD_ALLOWANCE:
            self._end(b"")

    def _late(self) -> None:
        self.timer = None
        cycle = self._protocol.cycle
        if cycle is None or cycle.response_complete:
            # Nothing was asked yet by a silent client, and an answered one has its answer.
            silent = self.received == 0 or (cycle is not None and cycle.more_body)
            self._end(b"" if silent else TOO_LATE)

    def _end(self, answer: bytes) -> None:
        transport = self._protocol.transport
        if transport is not None and not transport.is_closing():
            if answer:
                transport.write(answer)
            transport.close()


class FastProtocol(HttpToolsProtocol):
    """httptools, with the deadline."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._watch = HeadWatch(self, cast("ListenConfig", self.config), self.loop)
        self._in_head = True
        self._in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch.arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.timeout_keep_alive_task is not None:
            # The connection was idle. Bytes that begin no message (line ends are skipped) would
            # otherwise end the idle timer and start nothing.
            self._in_head = True
        self._in_body = False
        super().data_received(data)
        if self._in_head:
            self._watch.count(len(data))
        elif not self._in_body and self._is_waiting():
            # The parser gathers a trailer's value without end, copying it for every packet.
            self._watch.stray(len(data))

    def _is_waiting(self) -> bool:
        # uvicorn declares it as always there; where a first head was refused it is None.
        cycle = cast("Any", self.cycle)
        return cycle is not None and cycle.more_body

    def on_body(self, body: bytes) -> None:
        self._in_body = True
        super().on_body(body)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # A field behind a chunked body would join those of the head: a token, or an address that
        # a proxy never saw, after the checks or before them, as the packets fall (RFC 9110 6.5.1).
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._watch.disarm()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if not self._in_head:
            self._watch.disarm()
        # uvicorn leaves this alone once the answer is out; the watch needs to know.
        self.cycle.more_body = False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body:
            # Refused before the body came: it is thrown away, but not for ever.
            self._watch.arm()

    def send_400_response(self, msg: str) -> None:
        if self.parser.get_method() == b"CONNECT":
            self.transport.write(NO_TUNNELS)
            self.transport.close()
            return
        super().send_400_response(msg)

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing: an Upgrade header is a client's choice and no news to the operator."""


def is_folded(data: bytes) -> bool:
    """Whether the request head at the beginning of *data* has a line that continues another."""
    end = HEAD_OR_FOLD.search(data)
    return end is not None and end[0][-1:] in b" \t"


class PlainProtocol(H11Protocol):
    """h11, with the same deadline."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._watch = HeadWatch(self, cast("ListenConfig", self.config), self.loop)
        self._head = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch.arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is h11.IDLE:
            self._head = END_OF_HEAD.split(self._head + data, 1)[0]
            if FOLDED.search(self._head):
                self._head = b""
                self.send_400_response("Invalid HTTP request received.")
                return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._head = b""
        if self.conn.their_state is h11.IDLE:
            self._watch.count(len(data))
        elif not self._body_is_unwanted():
            self._watch.disarm()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._body_is_unwanted():
            self._watch.arm()

    def handle_events(self) -> None:
        if self.conn.their_state is h11.IDLE and is_folded(self.conn.trailing_data[0]):
            # h11 joins the lines, and a proxy in front may have read another value: RFC 9112
            # section 5.2 lets a server refuse, as httptools does.
            self.send_400_response("Invalid HTTP request received.")
            return
        super().handle_events()

    def _body_is_unwanted(self) -> bool:
        # uvicorn declares it as always there; before the first request it is None.
        cycle = cast("Any", self.cycle)
        return (
            cycle is not None and cycle.response_complete and self.conn.their_state is h11.SEND_BODY
        )

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing, as above."""


class Server(uvicorn.Server):
    """
    uvicorn's server, told when it accepts and when it should stop.

    SIGTERM and SIGINT drain and end normally, so that an orchestrator sees exit code 0; a second
    SIGINT does not wait. SIGHUP calls *reload*.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        on_ready: Callable[[], object],
        reload: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._reload = reload

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What lives now lives until the end: keep the collector from walking it again and again.
        gc.collect()
        gc.freeze()
        self._on_ready()

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
        self.should_exit = True


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """TLS 1.2 or newer; raises OSError or ssl.SSLError when the files cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context


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
