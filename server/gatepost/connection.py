"""One connection: its requests parsed, deadlines for their heads, bodies and idle times."""

import asyncio
import re
import urllib.parse
from typing import Any, cast

import h11
import httptools
import msgspec
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gatepost.cycle import Cycle, Flow
from gatepost.edge.limits import HEAD_AT_MOST

# Room above the configured header limit for one credential that the gate refuses itself; what
# never ends its head is cut off here, before it fills the memory.
HEAD_ALLOWANCE = 96 * 1024
# A request of a few bytes takes kilobytes while it waits, and a packet holds thousands.
MOST_PIPELINED = 1000
TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)
# Whichever comes first: a continued line, or the empty line behind the head.
HEAD_OR_FOLD = re.compile(rb"\n(?:[ \t]|\r?\n)")
UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
NO_TUNNELS = b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


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


class Unservable(Exception):
    """A request that the parser is to answer with 400, closing the connection."""


class HeadWatch:
    """
    The deadline of one connection's request heads, and of bodies nobody reads any more.

    uvicorn starts no timer before the first byte of an answer, so a client that sends a byte a
    minute would hold a connection for ever. Most heads arrive whole: then no timer is made.
    """

    __slots__ = ("_config", "_loop", "_protocol", "armed", "received", "timer")

    def __init__(self, protocol: Any, config: ListenConfig, loop: asyncio.AbstractEventLoop):
        self._protocol = protocol
        self._config = config
        self._loop = loop
        self.timer: asyncio.TimerHandle | None = None
        self.received = 0
        self.armed = False
        """Whether there is anything to disarm."""

    def arm(self) -> None:
        self.armed = True
        if self.timer is None:
            self.timer = self._loop.call_later(self._config.deadlines.head_s, self._late)

    def disarm(self) -> None:
        self.armed = False
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


class IdleWatch:
    """
    Closes a connection on which nothing was asked for too long.

    One timer looks when it may be time and goes back to sleep if not: a timer for each answer
    would cost as much as parsing its request.
    """

    __slots__ = ("_limit_s", "_loop", "_protocol", "_timer", "since")

    def __init__(self, protocol: Any, limit_s: float, loop: asyncio.AbstractEventLoop) -> None:
        self._protocol = protocol
        self._limit_s = limit_s
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self.since: float | None = None
        """The loop's time when the last answer was out; None while a request is under way."""

    def begin(self) -> None:
        """The answer is out and no request waits."""
        self.since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._limit_s, self._look)

    def end(self) -> None:
        """The connection is lost."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self.since is None:
            return
        left = self.since + self._limit_s - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._protocol.flow.close()


class FastProtocol(HttpToolsProtocol):
    """
    httptools, with the deadlines, and without what uvicorn does for servers unlike this one:
    WebSockets, lifespan state, a root path, a limit of concurrency (`listen_config` sets none).
    """

    cycle: Cycle
    _packet = 0
    _ahead: Cycle | None = None
    """The request that pipelined ones wait for."""
    _url = b""
    _target: tuple[str, bytes, bytes] = ("", b"", b"")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._watch = HeadWatch(self, cast("ListenConfig", self.config), self.loop)
        self._idle = IdleWatch(self, self.timeout_keep_alive, self.loop)
        self._in_head = True
        self._in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport, self.timeout_keep_alive)
        self._every_scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": "",
        }
        self._watch.arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.disarm()
        self._idle.end()
        super().connection_lost(exc)
        for cycle in (self._ahead, self.cycle):
            # uvicorn tells the newest request only, and one ahead of it may be under way.
            if cycle is not None and not cycle.response_complete:
                cycle.abandon()

    def data_received(self, data: bytes) -> None:
        if self._idle.since is not None:
            # The connection was idle. Bytes that begin no message (line ends are skipped) would
            # otherwise end the idle time and start nothing.
            self._idle.since = None
            self._in_head = True
        if self._in_head and (b"pgrade:" in data or b"PGRADE:" in data):
            data = without_upgrade(data)
        self._in_body = False
        self._packet = len(data)
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

    def on_header(self, name: bytes, value: bytes) -> None:
        # A field behind a chunked body would join those of the head: a token, or an address that
        # a proxy never saw, after the checks or before them, as the packets fall (RFC 9110 6.5.1).
        if self._in_head:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_message_begin(self) -> None:
        self._in_head = True
        self._idle.since = None
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        self._in_head = False
        scope: Any = self._every_scope.copy()
        # What came before this packet since the last head was whole, and all of this packet.
        scope[HEAD_AT_MOST] = self._watch.received + self._packet
        if self._watch.armed or self._watch.received:
            self._watch.disarm()
        parser = self.parser
        if parser.should_upgrade():
            # Spelt or split so that it was overlooked: the parser would take what is left of this
            # message for the next one.
            raise Unservable
        version = parser.get_http_version()
        if version != "1.1":
            scope["http_version"] = version
        scope["method"] = parser.get_method().decode("ascii")
        if self.url != self._url:
            # A client asks for the same thing again and again.
            self._target = target_of(self.url)
            self._url = self.url
        scope["path"], scope["raw_path"], scope["query_string"] = self._target
        scope["headers"] = self.headers
        self.scope = scope
        before: Cycle | None = self.cycle
        self.cycle = Cycle(
            scope,
            self.transport,
            self.flow,
            self.server_state.default_headers,
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            # Pipelined: it waits for its turn.
            if not self.pipeline:
                self._ahead = before
            elif len(self.pipeline) >= MOST_PIPELINED:
                raise Unservable
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def on_body(self, body: bytes) -> None:
        self._in_body = True
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.wake()

    def on_message_complete(self) -> None:
        cycle = self.cycle
        # Also once the answer is out, where uvicorn leaves it alone: the watch needs to know.
        cycle.more_body = False
        if cycle.response_complete:
            self._watch.disarm()
            self._idle.begin()
        else:
            cycle.complete()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            waiting = self.pipeline.pop()
            self._ahead = cast("Cycle", waiting[0])
            self._start_asgi_task(*waiting)
        elif self.cycle.more_body:
            # Refused before the body came: it is thrown away, but not for ever. The connection is
            # idle only behind it: taken for the next head, it would be counted and rewritten.
            self._watch.arm()
        else:
            self._idle.begin()

    def send_400_response(self, msg: str) -> None:
        if self.parser.get_method() == b"CONNECT":
            self.transport.write(NO_TUNNELS)
            self.transport.close()
            return
        super().send_400_response(msg)

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing: an Upgrade header is a client's choice and no news to the operator."""


def without_upgrade(data: bytes) -> bytes:
    """
    A request head whose offer to speak another protocol is not heard (RFC 9110 section 7.8).

    The parser would stop at the head and lose the body, and Java's HTTP client makes the offer
    with every call over plain HTTP.
    """
    head, gap, rest = data.partition(b"\r\n\r\n")
    return UPGRADE.sub(b"\r\nx-upgrade:", head) + gap + rest


def target_of(url: bytes) -> tuple[str, bytes, bytes]:
    """Path as decoded, path as sent, query; raises what makes the parser answer 400."""
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    return urllib.parse.unquote(path) if "%" in path else path, parsed.path, parsed.query or b""


def is_folded(data: bytes) -> bool:
    """Whether the request head at the beginning of *data* has a line that continues another."""
    end = HEAD_OR_FOLD.search(data)
    return end is not None and end[0][-1:] in b" \t"


class PlainProtocol(H11Protocol):
    """h11, with the same deadline."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._watch = HeadWatch(self, cast("ListenConfig", self.config), self.loop)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch.arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            # The rest of a refused request's body may have come in the same packet.
            self._watch.received = 0
            self._watch.count(len(self.conn.trailing_data[0]))
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
