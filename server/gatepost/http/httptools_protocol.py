"""Adapt httptools to this server: deadlines, and little work for each request."""

import asyncio
import contextvars
import os
import re
import socket
import urllib.parse
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gatepost.http.cycle import NEVER_AWAITED, Cycle, length_line, lines_of
from gatepost.http.deadlines import HeadWatch, IdleWatch, ListenConfig
from gatepost.http.flow_control import ResponseFlow, owner_of
from gatepost.http.scope import CALLER, HEAD_AT_MOST, HEADERS_BY_NAME, REQUEST_ID, WHOLE_BODY

# A request of a few bytes takes kilobytes while it waits, and a packet can contain thousands.
MAX_PIPELINED = 1000
LOOK_AGAIN_S = 0.1
INVALID = "Invalid HTTP request received."
# If a body has another coding, the beginning of the next request is unknown. Therefore the
# connection ends after the answer (RFC 9112 section 6.3).
CHUNKED = b"chunked"
POST = "POST"
TARGET_KEYS = ("path", "raw_path", "query_string")
ADDED_LATER = (REQUEST_ID, CALLER, WHOLE_BODY)
SCOPE_KEYS = (
    *("type", "asgi", "http_version", "server", "client", "scheme", "method", "root_path"),
    *(*TARGET_KEYS, "headers", HEADERS_BY_NAME, HEAD_AT_MOST, *ADDED_LATER),
)
REQUEST = "request"
"""The name of every task that answers a request; otherwise asyncio would format a name for each."""
SHORT_BYTES = 4_096
"""Up to this size, searching the whole packet costs less than finding the end of its head first."""
UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
CONNECT_REFUSED = (
    b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)


class BadRequest(Exception):
    """A request that the parser answers with 400 before it closes the connection."""


class HttptoolsProtocol(HttpToolsProtocol):
    """
    httptools with our deadlines. It has no WebSockets, lifespan state, root path or concurrency
    limit, which uvicorn has for other servers (`listen_config` sets none of them).
    """

    cycle: Cycle
    flow: ResponseFlow
    _add_field: Callable[[tuple[bytes, bytes]], None]
    _packet = 0
    _answering: Cycle | None = None
    """The running request that pipelined requests wait for."""
    _url = b""
    _stopping = False
    _is_usual = False
    """Whether the next head is known to be HTTP/1.1."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._watch = HeadWatch(self, cast("ListenConfig", self.config), self.loop)
        self._idle = IdleWatch(self, self.timeout_keep_alive, self.loop)
        self._in_head = True
        self._in_body = False
        self._made_at = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = ResponseFlow(transport, cast("ListenConfig", self.config).unread, self)
        # With all keys that a request has, because a growing dict is copied whenever it is full.
        self._every_scope: dict[str, Any] = dict.fromkeys(SCOPE_KEYS)
        for key in ADDED_LATER:
            del self._every_scope[key]
        self._every_scope |= {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": POST,
            "root_path": "",
        }
        self._watch.arm()
        self._idle.arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.leave()
        self._idle.leave()
        self.flow.forget()
        super().connection_lost(exc)
        for cycle in (self._answering, self.cycle):
            # uvicorn informs only the newest request, but an earlier one may still be running.
            if cycle is not None and not cycle.response_complete:
                cycle.abandon()
        # A reference cycle would stay until the garbage collector runs, and a body with it.
        self._answering = None
        self.cycle = cast("Any", None)
        self.flow.leave()

    def data_received(self, data: bytes) -> None:
        if self._idle.since is not None:
            # The connection was idle. Bytes that begin no message (line ends are skipped) would
            # otherwise end the idle time and start nothing.
            self._idle.since = None
            self._in_head = True
            # The version of the first message in this packet. The parser would format it each time.
            self._is_usual = data[: data.find(b"\n")].endswith(b" HTTP/1.1\r")
        if self._in_head:
            # A document may follow the head, and searching it takes longer than the rest.
            end = data.find(b"\r\n\r\n") if len(data) > SHORT_BYTES else -1
            if end < 0:
                end = len(data)
            if data.find(b"pgrade:", 0, end) >= 0 or data.find(b"PGRADE:", 0, end) >= 0:
                data = without_upgrade(data)
        self._in_body = False
        self._packet = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # an Upgrade header is the client's choice, so it is not logged
        except httptools.HttpParserError:
            self.logger.warning(INVALID)
            self.send_400_response(INVALID)
        if self._in_head:
            self._watch.count(len(data))
        elif not self._in_body and self._is_waiting():
            # The parser collects a trailer's value without limit, and copies it for every packet.
            self._watch.count_trailer(len(data))

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        task = asyncio.Task(app(cycle.scope, cycle.receive, cycle), loop=self.loop, name=REQUEST)
        self.tasks.add(task)
        task.add_done_callback(cycle.on_task_end)

    def _is_waiting(self) -> bool:
        # uvicorn declares it as always set, but if the first head was refused it is None.
        cycle = cast("Any", self.cycle)
        return cycle is not None and cycle.more_body

    def on_header(self, name: bytes, value: bytes) -> None:
        self._add_field((name.lower(), value))

    def on_message_begin(self) -> None:
        self._in_head = True
        self._idle.since = None
        self.url = b""
        headers: list[tuple[bytes, bytes]] = []
        self.headers = headers
        self._add_field = headers.append

    def on_headers_complete(self) -> None:
        self._in_head = False
        # A field behind a chunked body would be added to those of the head, before or after the
        # checks, depending on the packets. It could be a token, or an address that a proxy never
        # saw (RFC 9110 6.5.1).
        self._add_field = no_field
        watch, parser, headers = self._watch, self.parser, self.headers
        scope: Any = self._every_scope.copy()
        # An upper bound: the bytes since the last complete head, and the whole of this packet.
        scope[HEAD_AT_MOST] = watch.received + self._packet
        if watch.armed or watch.received:
            watch.disarm()
        if parser.should_upgrade():
            # The field was spelt or split so that `without_upgrade` missed it. The parser would
            # take the rest of this message for the next one.
            raise BadRequest
        version = "1.1" if self._is_usual else parser.get_http_version()
        self._is_usual = False
        scope["http_version"] = version
        method = parser.get_method()
        if method != b"POST":
            scope["method"] = method.decode("ascii")
        if self.url != self._url:
            # A client usually requests the same target again.
            target = dict(zip(TARGET_KEYS, target_of(self.url), strict=True))
            scope |= target
            self._every_scope |= target
            self._url = self.url
        scope["headers"] = headers
        folded = scope[HEADERS_BY_NAME] = dict(headers)
        before: Cycle | None = self.cycle
        keep_alive = not self._stopping and version != "1.0" and parser.should_keep_alive()
        if b"transfer-encoding" in folded and coding_of(headers) != CHUNKED:
            keep_alive = False
        self.cycle = cycle = Cycle(scope, self, keep_alive=keep_alive)
        if b"expect" in folded and expects_100(headers):
            cycle.waiting_for_100_continue = True
        if before is None or (before.response_complete and not self.flow.write_paused):
            self._start_asgi_task(cycle, self.app)
        else:
            # A pipelined request, or one whose previous answer is not read yet, waits for its turn.
            # Otherwise a client that does not read would make the server create and keep answer
            # after answer.
            if not self.pipeline:
                self._answering = before
            elif len(self.pipeline) >= MAX_PIPELINED:
                raise BadRequest
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def on_body(self, body: bytes) -> None:
        self._in_body = True
        cycle = self.cycle
        if not cycle.response_complete:
            if cycle.body or cycle.message_event is not NEVER_AWAITED:
                cycle.add(body)
            else:
                cycle.body = body  # nearly every body is complete in its first part
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()

    def on_message_complete(self) -> None:
        cycle = self.cycle
        # Set this even after the answer, when uvicorn would not: the watch needs it.
        cycle.more_body = False
        if not cycle.response_complete:
            if cycle.message_event is NEVER_AWAITED:
                cycle.scope[WHOLE_BODY] = bytes(cycle.body)
            else:
                cycle.message_event.set()
            return
        self._watch.disarm()
        if not self.flow.write_paused:
            self._idle.since = self.loop.time()

    def on_response_complete(self) -> None:
        if self.flow.write_paused:
            # The next request waits until this answer is read, but this request's body is no longer
            # needed.
            drop_body(self._current())
            self._finish_closing()
        elif self.transport.is_closing():
            self._finish_closing()
        elif self.pipeline or self.cycle.more_body:
            self._take_up_next()
        else:
            if self.flow.read_paused:
                self.flow.resume_reading()
            self._idle.since = self.loop.time()
            # The cycle may stay for a minute, but the caller's body must not stay with it (as in
            # `drop_body`).
            cycle = self.cycle
            cycle.scope.pop(WHOLE_BODY, None)
            cycle.body = b""

    def _take_up_next(self) -> None:
        """Start the next pipelined request, or read the rest of a discarded body."""
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            waiting = self.pipeline.pop()
            self._answering = cast("Cycle", waiting[0])
            # In a new context: otherwise the request would run in the trace of the one before, and
            # for its tenant.
            contextvars.Context().run(self._start_asgi_task, *waiting)
        else:
            # The request was refused before its body came. The body is discarded, within a
            # deadline. The connection is idle only after it; if the body were taken for the next
            # head, it would be counted and rewritten.
            self._watch.arm()

    def idle_since(self) -> float | None:
        """Return when the connection became idle; None while a request is in progress."""
        return self._made_at if cast("Any", self.cycle) is None else self._idle.since

    def _current(self) -> Cycle:
        """Return the request that is being answered, or was last."""
        return self._answering if self.pipeline and self._answering is not None else self.cycle

    def owner(self) -> Hashable:
        """Return the caller whose answer is being written."""
        cycle = cast("Any", self._current())
        return None if cycle is None else owner_of(cycle.scope)

    def drained(self) -> None:
        """Go on after the client has read all buffered bytes."""
        if self._current().response_complete and not self.transport.is_closing():
            self.on_response_complete()

    def finish(self) -> None:
        """Make the current or next response the last one of the connection."""
        self._stopping = True
        cycle = cast("Any", self.cycle)
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False

    def is_busy(self) -> bool:
        """Return whether a request waits for its response, or a response is unread."""
        cycle = cast("Any", self.cycle)
        return cycle is not None and (not cycle.response_complete or self.flow.write_paused)

    def shutdown(self) -> None:
        """Close the connection after the current response, because the server stops."""
        self._stopping = True
        cycle = cast("Any", self.cycle)
        if cycle is None or cycle.response_complete:
            self.flow.close()
        else:
            cycle.keep_alive = False
        self._finish_closing()

    def hang_up(self) -> None:
        """Close the connection behind what has been written."""
        self.flow.close()
        self._finish_closing()

    def _finish_closing(self) -> None:
        """Close a TLS connection after its bytes are sent, without waiting for the client."""
        if not (self._stopping and self.scheme == "https" and self.transport.is_closing()):
            return
        if self not in self.connections:
            return
        if self.transport.get_write_buffer_size():
            self.loop.call_later(LOOK_AGAIN_S, self._finish_closing)
        else:
            self.flow.resume_reading()
            stop_reading(self.transport)

    def send_400_response(self, msg: str) -> None:
        answer = CONNECT_REFUSED
        if self.parser.get_method() != b"CONNECT":
            fields = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
            lines = lines_of([*self.server_state.default_headers, *fields]) or b""
            text = msg.encode("ascii")
            answer = STATUS_LINE[400] + lines + length_line(len(text)) + text
        # After the part of the last answer that the client has not read yet.
        self.flow.write(answer)
        self.hang_up()


def no_field(field: tuple[bytes, bytes]) -> None:
    """Drop a field that is not in the head."""


def stop_reading(transport: asyncio.Transport) -> None:
    """
    End a closing connection as if its peer had ended it, with what is written to it being sent.

    Over TLS a transport announces that it closes, and waits half a minute for the same from its
    peer. It need not wait (RFC 8446 section 6.1), because a client checks a pooled connection only
    when it uses it again.
    """
    tcp_socket = transport.get_extra_info("socket")
    if tcp_socket is None:
        return  # it has ended, and reports that soon
    with suppress(OSError):
        number = os.dup(tcp_socket.fileno())
        with socket.socket(fileno=number) as duplicate:
            duplicate.shutdown(socket.SHUT_RD)


def drop_body(cycle: Cycle) -> None:
    """Forget the body of a request that is answered."""
    cycle.scope.pop(WHOLE_BODY, None)
    cycle.body = b""


def without_upgrade(data: bytes) -> bytes:
    """
    Return a request head without its Upgrade header (RFC 9110 section 7.8).

    The parser would stop at the head and lose the body, and Java's HTTP client makes the offer
    with every call over plain HTTP.
    """
    head, gap, body = data.partition(b"\r\n\r\n")
    return UPGRADE.sub(b"\r\nx-upgrade:", head) + gap + body


def coding_of(headers: list[tuple[bytes, bytes]]) -> bytes:
    """Return the transfer coding that a head names, in lower case; empty if it names several."""
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    return codings[0] if len(codings) == 1 else b""


def expects_100(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether the client waits to be told that it may send the body."""
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)


def target_of(url: bytes) -> tuple[str, bytes, bytes]:
    """
    Return the decoded path, the path as sent, and the query; raises what makes the parser answer
    400.
    """
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    return urllib.parse.unquote(path) if "%" in path else path, parsed.path, parsed.query or b""
