"""httptools as it must be in front of this server: the deadlines, and little work per request."""

import asyncio
import contextvars
import os
import re
import socket
import urllib.parse
from contextlib import suppress
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gatepost.scope import HEAD_AT_MOST, HELD, SAME_HEAD, WHOLE_BODY
from gatepost.wire.cycle import Cycle, Flow
from gatepost.wire.deadlines import HeadWatch, IdleWatch, ListenConfig
from gatepost.wire.known import KnownHead, known

# A request of a few bytes takes kilobytes while it waits, and a packet holds thousands.
MOST_PIPELINED = 1000
# A client whose heads never come again (another token with each) is not learnt from each time.
LEARNT_IN_VAIN, LEARN_AGAIN = 8, 64
LOOK_AGAIN_S = 0.1
UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
NO_TUNNELS = b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Unservable(Exception):
    """A request that the parser is to answer with 400, closing the connection."""


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
    _known: KnownHead | None = None
    _in_vain = 0
    """Heads learnt since one came again."""
    _messages = 0
    """Requests that have begun in the present packet."""
    _stopping = False

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
            HELD: None,
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
        # The watches lead in a circle: until the collector came by, a body would stay with it.
        self._known = self._ahead = None
        self.cycle = cast("Any", None)

    def data_received(self, data: bytes) -> None:
        is_idle = self._idle.since is not None
        # A part of the next head may have come behind the last request, before that was answered.
        is_between = is_idle and not self._in_head
        if is_between:
            known_head = self._known
            if known_head is not None and (scope := known_head.scope_of(data)) is not None:
                self._again(scope)
                return
        if is_idle:
            # The connection was idle. Bytes that begin no message (line ends are skipped) would
            # otherwise end the idle time and start nothing.
            self._idle.since = None
            self._in_head = True
        packet = data
        if self._in_head and (b"pgrade:" in data or b"PGRADE:" in data):
            data = without_upgrade(data)
        self._in_body = False
        self._messages = 0
        self._packet = len(data)
        super().data_received(data)
        if is_between and data is packet and self._messages == 1:
            self._learn(data)
        if self._in_head:
            self._watch.count(len(data))
        elif not self._in_body and self._is_waiting():
            # The parser gathers a trailer's value without end, copying it for every packet.
            self._watch.stray(len(data))

    def _again(self, scope: dict[str, Any]) -> None:
        """Serve a request whose head is known, and whose body came with it."""
        self._idle.since = None
        self._in_vain = 0
        self.cycle = Cycle(scope, self, keep_alive=True)
        self.cycle.more_body = False
        self.cycle.body = scope[WHOLE_BODY]
        self._start_asgi_task(self.cycle, self.app)

    def _learn(self, data: bytes) -> None:
        """Keep the head of the request that this packet was, if it was one whole request."""
        cycle = self.cycle
        if not cycle.keep_alive or WHOLE_BODY not in cycle.scope:
            return
        self._in_vain += 1
        if self._in_vain <= LEARNT_IN_VAIN or self._in_vain % LEARN_AGAIN == 0:
            self._known = known(data, cycle.scope)
            if self._known is not None:
                cycle.scope[SAME_HEAD] = self._known.scope[SAME_HEAD]

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        task = self.loop.create_task(cycle.run_asgi(app))
        self.tasks.add(task)
        task.add_done_callback(cycle.over)

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
        self._messages += 1
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
        before: Cycle | None = self.cycle
        keep_alive = version != "1.0" and parser.should_keep_alive()
        self.cycle = Cycle(scope, self, keep_alive=keep_alive)
        if self.expect_100_continue:
            self.cycle.waiting_for_100_continue = True
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
            cycle.add(body)
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
            self._let_go()
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            waiting = self.pipeline.pop()
            self._ahead = cast("Cycle", waiting[0])
            # Started by what was answered, it would run in that one's trace, and for its tenant.
            contextvars.Context().run(self._start_asgi_task, *waiting)
        elif self.cycle.more_body:
            # Refused before the body came: it is thrown away, but not for ever. The connection is
            # idle only behind it: taken for the next head, it would be counted and rewritten.
            self._watch.arm()
        else:
            self._idle.begin()
            # It may stay for a minute, and a stranger's body must not stay with it.
            cycle = self.cycle
            cycle.scope.pop(WHOLE_BODY, None)
            cycle.body = b""

    def shutdown(self) -> None:
        """See `HttpToolsProtocol`: the server stops, and what is being answered is the last."""
        self._stopping = True
        super().shutdown()
        self._let_go()

    def hang_up(self) -> None:
        """Close the connection behind what has been written."""
        self.transport.close()
        self._let_go()

    def _let_go(self) -> None:
        """A stop waits for what a client still reads, and not for its word that it has read all."""
        if not (self._stopping and self.scheme == "https" and self.transport.is_closing()):
            return
        if self not in self.connections:
            return
        if self.transport.get_write_buffer_size():
            self.loop.call_later(LOOK_AGAIN_S, self._let_go)
        else:
            self.flow.resume_reading()
            hear_no_more(self.transport)

    def send_400_response(self, msg: str) -> None:
        if self.parser.get_method() == b"CONNECT":
            self.transport.write(NO_TUNNELS)
            self.hang_up()
            return
        super().send_400_response(msg)

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing: an Upgrade header is a client's choice and no news to the operator."""


def hear_no_more(transport: asyncio.Transport) -> None:
    """
    End a closing connection as if its peer had ended it, with what is written to it being sent.

    Over TLS a transport says that it closes and waits half a minute to be told the same, which it
    need not (RFC 8446 section 6.1): a client looks at a pooled connection when it next uses it.
    """
    below = transport.get_extra_info("socket")
    if below is None:
        return  # it has ended, and will say so in a moment
    with suppress(OSError):
        number = os.dup(below.fileno())
        with socket.socket(fileno=number) as own:
            own.shutdown(socket.SHUT_RD)


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
