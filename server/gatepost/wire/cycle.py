"""One request on a connection and its answer, the usual one in a single write."""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from operator import attrgetter
from typing import Any

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gatepost.pledge import Broken, Instead, Pledge
from gatepost.scope import HELD, INSTEAD, NO_CONTENT, WHOLE_BODY

Fields = Iterable[tuple[bytes, bytes]]

# What no field may hold (RFC 9110 section 5.5): a line break would begin a field of its own.
CONTROLS = bytes(set(range(0x20)) - {0x09}) + b"\x7f"
FRAMING = frozenset({b"content-length", b"transfer-encoding", b"connection"})
LENGTH_LINE = b"content-length: %d\r\n\r\n"
BROKEN = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
COPIED_BYTES = 16 * 1024
"""Smaller bodies are copied behind the head: one buffer costs less than several."""


class Written:
    """The lines of fields that are said again and again, the same object each time."""

    def __init__(self) -> None:
        self.fields: Any = None
        self.lines = b""

    def of(self, fields: Fields) -> bytes | None:
        """The lines of these, kept until there are others; None when uvicorn must judge them."""
        if fields is self.fields:
            return self.lines
        lines = lines_of(fields)
        if lines is not None:
            self.fields, self.lines = fields, lines
        return lines


DATED, SAID = Written(), Written()
"""What every answer says (uvicorn has another list each second), and what most say beside."""


class Nobody:
    """Stands for the event of a request whose application never waits, as most never do."""

    def set(self) -> None:
        """Nobody to wake."""


NOBODY = Nobody()


class Flow(FlowControl):
    """
    Waits for a client to read what was sent, but not for ever.

    A client that takes nothing for *limit_s* is cut off: uvicorn would keep its request, the
    answer and the connection for as long as it acknowledges that its window is closed.
    """

    def __init__(self, transport: asyncio.Transport, limit_s: float) -> None:
        super().__init__(transport)
        self._limit_s = limit_s
        self._unsent = 0
        self._timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Close an idle connection; what it has left unread all the while is given up."""
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def _watch(self) -> None:
        self._unsent = self._transport.get_write_buffer_size()
        self._timer = asyncio.get_running_loop().call_later(self._limit_s, self._look)

    def _look(self) -> None:
        if self._transport.get_write_buffer_size() < self._unsent:
            self._watch()
        else:
            self._timer = None
            self._transport.abort()


class Cycle(RequestResponseCycle):
    """
    uvicorn's cycle with a short way for what nearly every request is.

    A body that arrived whole stands in the scope for who knows to look there, and an answer of one
    body with its length declared is written at once, head and body together, where uvicorn looks
    at every field with two patterns. Whatever else there is (streams, HEAD, a connection that
    ends, a client that reads slowly) takes uvicorn's own way.
    """

    scope: Any
    body: Any = b""
    """As it came, or a bytearray of the pieces that it came in."""
    message_event: Any = NOBODY
    logger = logging.getLogger("uvicorn.error")
    access_log = False
    disconnected = False
    more_body = True
    response_started = False
    response_complete = False
    chunked_encoding = None
    expected_content_length = 0
    waiting_for_100_continue = False
    _start: Any = None
    _held: tuple[Pledge, tuple[bytes, ...]] | None = None
    """An answer that is whole, and what it waits for."""

    # What uvicorn's own way asks for, which is the connection's.
    transport: Any = property(attrgetter("connection.transport"))
    flow: Any = property(attrgetter("connection.flow"))
    default_headers: Any = property(attrgetter("connection.server_state.default_headers"))
    on_response: Any = property(attrgetter("connection.on_response_complete"))

    # uvicorn's constructor takes a dozen arguments: what is always the same stands above.
    def __init__(self, scope: Any, connection: Any, *, keep_alive: bool) -> None:
        self.scope = scope
        self.connection = connection
        self.keep_alive = keep_alive

    def add(self, piece: bytes) -> None:
        """More of the body has come; nearly every one is whole in its first piece."""
        if not self.body:
            self.body = piece
            return
        if isinstance(self.body, bytes):
            self.body = bytearray(self.body)
        self.body += piece

    def wake(self) -> None:
        """Something has come: whoever waits for it goes on."""
        if self.message_event is not NOBODY:
            self.message_event.set()

    def complete(self) -> None:
        """The body is whole."""
        if self.message_event is NOBODY:
            self.scope[WHOLE_BODY] = bytes(self.body)
        else:
            self.message_event.set()

    def abandon(self) -> None:
        """The client is gone: what it asked, and nobody has looked at yet, is not done."""
        self.disconnected = True
        self.scope.pop(WHOLE_BODY, None)
        self.message_event.set()

    async def receive(self) -> ASGIReceiveEvent:
        """The next message; ASGI's way to the body also where that stands in the scope."""
        if self.message_event is NOBODY:
            self.message_event = asyncio.Event()
            if self.body or not self.more_body:
                self.message_event.set()
        return await super().receive()

    async def __call__(self, message: ASGISendEvent) -> None:
        """Send the answer, its head together with the first of its body (ASGI, Response Start)."""
        if message["type"] == "http.response.start" and not self.response_started:
            self._start = message
            self.response_started = True
            # Once an answer has begun, nobody is told to go on any more.
            self.waiting_for_100_continue = False
            return
        start, self._start = self._start, None
        if self._held is not None:
            raise RuntimeError(f"the answer is whole already: {message['type']}")
        if start is not None:
            if self._sent_whole(start, message):
                return
            self.response_started = False
            if (pledge := self.scope[HELD]) is not None:
                # A long way, or a rare one: an answer that goes out by it waits here.
                start, message = await self._settled(pledge, start, message)
            await self.send(start)
        await self.send(message)

    def whole(self, status: int, fields: Fields, body: bytes, stamp: bytes = b"") -> bool:
        """See `WholeSend`."""
        if self.response_started or status == NO_CONTENT or not self._is_usual():
            return False
        head = SAID.of(fields)
        if head is None:
            return False
        self.response_started = True
        self.waiting_for_100_continue = False
        self._leave((STATUS_LINE[status], head, stamp), body)
        return True

    async def run_asgi(self, app: Any) -> None:
        """
        Run the application for this request.

        What it raises is the task's, and so is the connection's end then (`over`): the app answers
        its own failures, and a coroutine around it would cost every request as much as its parser.
        """
        await app(self.scope, self.receive, self)
        if not self.response_complete and self._held is None and not self.disconnected:
            self._break("The application returned without completing the answer.")

    def over(self, task: "asyncio.Task[None]") -> None:
        """The task that ran the application has ended."""
        self.connection.tasks.discard(task)
        if task.cancelled():
            self._break("The application was stopped.")
        elif (error := task.exception()) is not None:
            self._break("The application failed.", error)

    def _break(self, why: str, error: BaseException | None = None) -> None:
        """End a connection on which an answer is missing: half of one must not pass for a whole."""
        self.logger.error(why, exc_info=error)
        if not (self.response_complete or self._held or self.disconnected):
            if not self.response_started or self._start is not None:
                self.transport.write(BROKEN)
            self.connection.hang_up()

    def _release(self) -> None:
        """What the answer had to wait for is settled."""
        held, self._held = self._held, None
        if held is None or self.disconnected:
            return
        pledge, lines = held
        if not pledge.kept and (instead := self.scope.get(INSTEAD)) is not None:
            answer: Instead = instead()
            head, length = lines_of(answer.fields), LENGTH_LINE % len(answer.body)
            if head is None:
                raise AssertionError("an answer of ours has fields that can be written")
            lines = (STATUS_LINE[answer.status], head, self._common(), length, answer.body)
        self._write(lines)
        if not self.keep_alive:
            # A stop has begun meanwhile.
            self.connection.hang_up()

    def _is_usual(self) -> bool:
        """Whether nothing about the connection or the request asks for a longer way."""
        return (
            self.keep_alive
            and not self.disconnected
            and not self.connection.flow.write_paused
            and self.scope["method"] != "HEAD"
        )

    def _sent_whole(self, start: Any, message: Any) -> bool:
        """Whether these were an answer that one write can hold, and it is on its way."""
        body: bytes = message.get("body", b"")
        if (
            message["type"] != "http.response.body"
            or message.get("more_body")
            or not self._is_usual()
        ):
            return False
        fields = undeclared(start.get("headers", ()), len(body))
        head = None if fields is None else lines_of(fields)
        if head is None:
            return False
        self._leave((STATUS_LINE[start["status"]], head), body)
        return True

    def _leave(self, head: tuple[bytes, ...], body: bytes) -> None:
        """Send an answer that is whole, once what it has to wait for is settled."""
        lines = (*head, self._common(), LENGTH_LINE % len(body), body)
        pledge: Pledge | None = self.scope[HELD]
        if pledge is None or pledge.kept:
            self._write(lines)
        else:
            self._held = (pledge, lines)
            pledge.then(self._release)

    def _common(self) -> bytes:
        """The lines that every answer has, written once for all of a second."""
        return DATED.of(self.connection.server_state.default_headers) or b""

    async def _settled(self, pledge: Pledge, start: Any, message: Any) -> tuple[Any, Any]:
        """The answer as it may leave, once what it had to wait for is settled."""
        with suppress(Broken):
            await pledge
        self.scope[HELD] = None
        if not pledge.kept and (instead := self.scope.get(INSTEAD)) is not None:
            answer: Instead = instead()
            fields = [(b"content-length", b"%d" % len(answer.body)), *answer.fields]
            start = {"type": "http.response.start", "status": answer.status, "headers": fields}
            message = {"type": "http.response.body", "body": answer.body}
        return start, message

    def _write(self, lines: tuple[bytes, ...]) -> None:
        connection = self.connection
        if len(lines[-1]) < COPIED_BYTES:
            connection.transport.write(b"".join(lines))
        else:
            connection.transport.writelines(lines)
        self.response_complete = True
        if self.message_event is not NOBODY:
            self.message_event.set()
        connection.on_response_complete()


def lines_of(fields: Fields) -> bytes | None:
    """The fields of an answer as they are written; None when uvicorn must judge them."""
    lines = [*map(b": ".join, fields), b""]
    head = b"\r\n".join(lines)
    if len(head.translate(None, CONTROLS)) != len(head) - 2 * (len(lines) - 1):
        # More of them than the line breaks behind the fields.
        return None
    return head


def undeclared(fields: Fields, size: int) -> list[tuple[bytes, bytes]] | None:
    """The fields but for the length, which must be *size*; None when uvicorn must judge them."""
    kept = []
    length = None
    for field in fields:
        if field[0] not in FRAMING:
            kept.append(field)
        elif field[0] == b"content-length" and length is None:
            length = field[1]
        else:
            return None
    return kept if length is not None and length == str(size).encode() else None
