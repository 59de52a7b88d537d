"""Serve one request on a connection; the usual answer is written at once."""

import asyncio
import logging
from collections.abc import Iterable
from functools import lru_cache
from operator import attrgetter
from typing import Any

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gatepost.http.scope import ANSWER_HEADERS, REQUEST_ID, WHOLE_BODY
from gatepost_authz.middleware import NO_CONTENT, OneStepSend

Fields = Iterable[tuple[bytes, bytes]]

# What no field may hold (RFC 9110 section 5.5): a line break would begin a field of its own.
CONTROLS = bytes(set(range(0x20)) - {0x09}) + b"\x7f"
FRAMING_HEADERS = frozenset({b"content-length", b"transfer-encoding", b"connection"})
INTERNAL_SERVER_ERROR = (
    b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)
LAST_ANSWER = b"connection: close\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
OK = 200
UNFRAMED = frozenset({NO_CONTENT, 304})
"""Statuses of answers without a body."""
COPIED_BYTES = 16 * 1024
"""Smaller bodies are copied behind the head, because one buffer costs less than several."""


class EncodedHead:
    """The head of the last answer, for later answers with the same status and fields."""

    def __init__(self) -> None:
        self.status = 0
        self.fields: Any = None
        self.default: Any = None
        self.lines: bytes | None = None

    def encode(self, status: int, fields: Fields, default: Fields) -> bytes | None:
        """
        Return the status line and the lines of *fields* and *default*.

        None if uvicorn must check *fields*. A tuple is kept, because a list may change.
        """
        lines = lines_of(fields)
        if lines is None:
            return None
        head = b"".join((STATUS_LINE[status], lines, lines_of(default) or b""))
        if isinstance(fields, tuple):
            self.status, self.fields, self.default, self.lines = status, fields, default, head
        return head


OK_HEAD, REFUSAL_HEAD, STREAM_HEAD = EncodedHead(), EncodedHead(), EncodedHead()
"""The heads of most answers, refusals and streams, kept apart so that none displaces another."""


@lru_cache(maxsize=2048)
def length_line(size: int) -> bytes:
    """Return the last line of a head and the empty one, before a body of this size."""
    return b"content-length: %d\r\n\r\n" % size


class NeverAwaited:
    """Stands for the event of a request whose application never waits, which is true for most."""

    def set(self) -> None:
        """Do nothing, because no task waits."""


NEVER_AWAITED = NeverAwaited()


class Cycle(RequestResponseCycle, OneStepSend):
    """
    uvicorn's cycle with a short path for nearly all requests.

    A body that arrived completely is put into the scope. An answer that is one body with a declared
    length is written at once, head and body together; uvicorn would match every field with two
    patterns. The parts of a stream are written the same way. All other cases (HEAD, the stream of a
    connection that ends, a client that reads slowly) take uvicorn's own path.
    """

    scope: Any
    body: Any = b""
    """The body as it arrived, or a bytearray of its parts."""
    message_event: Any = NEVER_AWAITED
    logger = logging.getLogger("uvicorn.error")
    access_log = False
    disconnected = False
    more_body = True
    response_started = False
    response_complete = False
    chunked_encoding = None
    expected_content_length = 0
    waiting_for_100_continue = False
    status = 0
    """The status of the answer; 0 before the answer has begun."""
    _start: Any = None
    _streams = False
    """Whether the answer is a stream whose parts need no check of their framing."""

    # The attributes of the connection that uvicorn's own path uses.
    transport: Any = property(attrgetter("connection.flow"))
    flow: Any = property(attrgetter("connection.flow"))
    default_headers: Any = property(attrgetter("connection.server_state.default_headers"))
    on_response: Any = property(attrgetter("connection.on_response_complete"))

    # uvicorn's constructor takes a dozen arguments: the constant ones are class attributes above.
    def __init__(self, scope: Any, connection: Any, *, keep_alive: bool) -> None:
        self.scope = scope
        self.connection = connection
        self.keep_alive = keep_alive

    def add(self, piece: bytes) -> None:
        """Add a part of the body; nearly every body is complete in its first part."""
        if not self.body:
            self.body = piece
        else:
            if isinstance(self.body, bytes):
                self.body = bytearray(self.body)
            self.body += piece
        if self.message_event is not NEVER_AWAITED:
            self.message_event.set()

    def abandon(self) -> None:
        """Handle a client that left; a request that has not begun is not carried out."""
        self.disconnected = True
        self.scope.pop(WHOLE_BODY, None)
        self.message_event.set()

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next ASGI message, even if the body is already in the scope."""
        if self.message_event is NEVER_AWAITED:
            self.message_event = asyncio.Event()
            if self.body or not self.more_body:
                self.message_event.set()
        return await super().receive()

    async def __call__(self, message: ASGISendEvent) -> None:
        """Send the answer, its head together with the first of its body (ASGI, Response Start)."""
        if message["type"] == "http.response.start" and not self.response_started:
            self.status = message["status"]
            self._start = message
            self.response_started = True
            # Once an answer has begun, the client must not be told to continue.
            self.waiting_for_100_continue = False
            return
        start, self._start = self._start, None
        if start is None:
            if message["type"] == "http.response.body" and self.send_part(
                message.get("body", b""), more_body=message.get("more_body", False)
            ):
                return
        else:
            self.response_started = False
            if self._sent_first(start, message):
                return
            await self.send(labelled(start, self.scope))
        await self.send(message)

    def send_whole(
        self, status: int, fields: Fields, body: bytes, *, is_stream: bool = False
    ) -> bool:
        """Send the answer, or the beginning of a stream; False: it has to go as messages."""
        connection, scope = self.connection, self.scope
        if (
            self.response_started
            or (is_stream and not self.keep_alive)
            or self.disconnected
            or connection.flow.write_paused
            or status in UNFRAMED
            or scope["method"] == "HEAD"
        ):
            return False
        identity = b""
        if REQUEST_ID in scope:
            identity = f"x-request-id: {scope[REQUEST_ID]}\r\n".encode("ascii")
            if ANSWER_HEADERS in scope:
                fields = (*fields, *scope[ANSWER_HEADERS])
        identity += b"" if self.keep_alive else LAST_ANSWER
        # The fields that the server adds to every answer change once a second.
        default = connection.server_state.default_headers
        cached = STREAM_HEAD if is_stream else OK_HEAD if status == OK else REFUSAL_HEAD
        head = cached.lines
        if fields is not cached.fields or default is not cached.default or status != cached.status:
            head = cached.encode(status, fields, default)
        if head is None:
            return False
        self.response_started = True
        self.waiting_for_100_continue = False
        self.status = status
        if is_stream:
            self._streams = self.chunked_encoding = True
            connection.flow.write(b"".join((head, identity, CHUNKED, chunk(body))))
            return True
        lines = (head, identity, length_line(len(body)), body)
        if len(body) < COPIED_BYTES:
            connection.transport.write(b"".join(lines))
        else:
            connection.flow.writelines(lines)
        self.response_complete = True
        if self.message_event is not NEVER_AWAITED:
            self.message_event.set()
        if not self.keep_alive:
            connection.flow.close()
        connection.on_response_complete()
        return True

    def begin_stream(self, status: int, fields: Fields, first: bytes) -> bool:
        """Send the head of a stream and its first part; False: they have to go as messages."""
        return bool(first) and self.send_whole(status, fields, first, is_stream=True)

    def send_part(self, part: bytes, *, more_body: bool) -> bool:
        """Send a part of a stream, the last without *more_body*; False: it must be a message."""
        connection = self.connection
        if (
            not (self._streams and part)
            or self.disconnected
            or self.response_complete
            or connection.flow.write_paused
        ):
            return False
        data = chunk(part)
        if more_body:
            if len(data) < COPIED_BYTES:
                connection.transport.write(data)
            else:
                connection.flow.write(data)
            return True
        if not self.keep_alive:
            return False
        connection.flow.write(data + LAST_CHUNK)
        self.response_complete = True
        self.message_event.set()
        connection.on_response_complete()
        return True

    def on_task_end(self, task: "asyncio.Task[None]") -> None:
        """Handle the end of the task that ran the application."""
        self.connection.tasks.discard(task)
        if task.cancelled():
            self._break_off("The application was stopped.")
        elif (error := task.exception()) is not None:
            self._break_off("The application failed.", error)
        elif not self.response_complete and not self.disconnected:
            self._break_off("The application returned without completing the answer.")

    def _break_off(self, message: str, error: BaseException | None = None) -> None:
        """End a connection with an incomplete answer, which must not look complete."""
        self.logger.error(message, exc_info=error)
        if not (self.response_complete or self.disconnected):
            if not self.response_started or self._start is not None:
                self.transport.write(INTERNAL_SERVER_ERROR)
            self.connection.hang_up()

    def _sent_first(self, start: Any, message: Any) -> bool:
        """Return whether the messages were an answer or began a stream, and went in one write."""
        if message["type"] != "http.response.body":
            return False
        status, fields, body = start["status"], start.get("headers", ()), message.get("body", b"")
        if message.get("more_body"):
            is_framed = not FRAMING_HEADERS.isdisjoint(name.lower() for name, _ in fields)
            return not is_framed and self.begin_stream(status, fields, body)
        fields = undeclared(fields, len(body))
        return fields is not None and self.send_whole(status, fields, body)


def chunk(part: bytes) -> bytes:
    """Return a part of a stream with its size (RFC 9112 section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(part), part)


def labelled(message: Any, scope: Any) -> Any:
    """Return the start of an answer with the fields that every answer to this request has."""
    if REQUEST_ID not in scope:
        return message
    # A new message, because the application's message may be a constant.
    request_id = (b"x-request-id", scope[REQUEST_ID].encode("ascii"))
    return {
        "type": "http.response.start",
        "status": message["status"],
        "headers": [*message.get("headers", ()), request_id, *scope.get(ANSWER_HEADERS, ())],
    }


def lines_of(fields: Fields) -> bytes | None:
    """Encode the header lines of a response; None if uvicorn must check them."""
    lines = [*map(b": ".join, fields), b""]
    head = b"\r\n".join(lines)
    if len(head.translate(None, CONTROLS)) != len(head) - 2 * (len(lines) - 1):
        # There are more control characters than those of the line breaks.
        return None
    return head


def undeclared(fields: Fields, size: int) -> list[tuple[bytes, bytes]] | None:
    """Return the fields without the length, which must be *size*; None if uvicorn must check."""
    undeclared_fields = []
    length = None
    for field in fields:
        if field[0] not in FRAMING_HEADERS:
            undeclared_fields.append(field)
        elif field[0] == b"content-length" and length is None:
            length = field[1]
        else:
            return None
    return undeclared_fields if length is not None and length == str(size).encode() else None
