"""One request on a connection and its answer, the usual one in a single write."""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gatepost.pledge import Broken, Instead, Pledge
from gatepost.scope import HELD, INSTEAD, WHOLE_BODY

Fields = Iterable[tuple[bytes, bytes]]

# What no field may hold (RFC 9110 section 5.5): a line break would begin a field of its own.
CONTROLS = bytes(set(range(0x20)) - {0x09}) + b"\x7f"
FRAMING = frozenset({b"content-length", b"transfer-encoding", b"connection"})
COPIED_BYTES = 16 * 1024
"""Smaller bodies are copied behind the head: one buffer costs less than several."""


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
    message_event: Any = NOBODY
    logger = logging.getLogger("uvicorn.error")
    access_log = False
    disconnected = False
    more_body = True
    response_started = False
    response_complete = False
    chunked_encoding = None
    expected_content_length = 0
    _start: Any = None
    _held: tuple[Pledge, tuple[bytes, bytes, bytes]] | None = None
    """An answer that is whole, and what it waits for."""

    # uvicorn's constructor takes a dozen arguments, most of them always the same; those are above.
    def __init__(  # noqa: PLR0913  # the parts of a connection that a request needs
        self,
        scope: Any,
        transport: asyncio.Transport,
        flow: FlowControl,
        default_headers: list[tuple[bytes, bytes]],
        *,
        expect_100_continue: bool,
        keep_alive: bool,
        on_response: Any,
    ) -> None:
        self.scope = scope
        self.transport = transport
        self.flow = flow
        self.default_headers = default_headers
        self.waiting_for_100_continue = expect_100_continue
        self.keep_alive = keep_alive
        self.on_response = on_response
        self.body = bytearray()

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

    async def send(self, message: ASGISendEvent) -> None:
        """Send the answer, its head together with the first of its body (ASGI, Response Start)."""
        if message["type"] == "http.response.start" and not self.response_started:
            self._start = message
            self.response_started = True
            # Once an answer has begun, nobody is told to go on any more.
            self.waiting_for_100_continue = False
            return
        start, self._start = self._start, None
        if start is not None:
            if self._sent_whole(start, message):
                return
            self.response_started = False
            if (pledge := self.scope[HELD]) is not None:
                # A long way, or a rare one: an answer that goes out by it waits here.
                start, message = await self._settled(pledge, start, message)
            await super().send(start)
        await super().send(message)

    async def run_asgi(self, app: Any) -> None:
        """Run the application for this request; as uvicorn, but an answer may be held back."""
        on_response = self.on_response
        await super().run_asgi(app)
        if self._held is not None:
            self.on_response = on_response
            pledge, _ = self._held
            self.response_complete = False
            pledge.then(self._release)

    def _release(self) -> None:
        """What the answer had to wait for is settled."""
        held, self._held = self._held, None
        if held is None or self.disconnected:
            return
        pledge, lines = held
        if not pledge.kept and (instead := self.scope.get(INSTEAD)) is not None:
            answer: Instead = instead()
            fields = ((b"content-length", b"%d" % len(answer.body)), *answer.fields)
            head = head_of(fields, self.default_headers, len(answer.body))
            if head is None:
                raise AssertionError("an answer of ours has fields that can be written")
            lines = (STATUS_LINE[answer.status], head, answer.body)
        self._write(lines)
        if not self.keep_alive:
            # A stop has begun meanwhile.
            self.transport.close()

    def _sent_whole(self, start: Any, message: Any) -> bool:
        """Whether this was an answer that one write can hold, and is written."""
        body: bytes = message.get("body", b"")
        if (
            message["type"] != "http.response.body"
            or message.get("more_body")
            or not self.keep_alive
            or self.disconnected
            or self.flow.write_paused
            or self.scope["method"] == "HEAD"
        ):
            return False
        head = head_of(start.get("headers", ()), self.default_headers, len(body))
        if head is None:
            return False
        lines = (STATUS_LINE[start["status"]], head, body)
        pledge = self.scope[HELD]
        if pledge is None or pledge.kept:
            self._write(lines)
        else:
            # Complete for its application, not yet for the connection.
            self._held = (pledge, lines)
            self.response_complete = True
        return True

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

    def _write(self, lines: tuple[bytes, bytes, bytes]) -> None:
        if len(lines[2]) < COPIED_BYTES:
            self.transport.write(b"".join(lines))
        else:
            self.transport.writelines(lines)
        self.response_complete = True
        self.wake()
        self.on_response()


def head_of(fields: Fields, defaults: Fields, size: int) -> bytes | None:
    """The fields of an answer with a body of *size* bytes; None when uvicorn must judge them."""
    lines = []
    length = None
    for field in fields:
        if field[0] in FRAMING:
            if field[0] != b"content-length" or length is not None:
                return None
            length = field[1]
        lines.append(b": ".join(field))
    if length is None or length != str(size).encode():
        return None
    lines += map(b": ".join, defaults)
    head = b"\r\n".join(lines)
    if len(head.translate(None, CONTROLS)) != len(head) - 2 * (len(lines) - 1):
        # More of them than the line breaks between the fields.
        return None
    return head + b"\r\n\r\n"
