"""Server-sent events: answers that become a stream, and streams that stay open."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Generator
from functools import cached_property
from typing import Any

from msgspec import UNSET
from starlette.types import Receive, Scope, Send

from gatepost.http.open_streams import OpenStreams
from gatepost.http.scope import RPC, WHOLE_BODY
from gatepost.telemetry.access import MAX_CHARACTERS, TOO_LONG
from gatepost_authz.caller import TenantContext
from gatepost_authz.middleware import OneStepSend

HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    # Proxies that collect a response before passing it on would hold back all progress.
    (b"x-accel-buffering", b"no"),
)
KEEP_ALIVE = b":\n\n"
"""A comment, which readers of event streams skip (HTML, Server-sent events)."""


class SseResponse:
    """
    One answer as events; nothing is sent before the first of them.

    Every event is awaited, so a tool that reports faster than its client reads is slowed down
    instead of filling memory.
    """

    # Most answers never become a stream, so the objects that only streams need are created later.
    started = False
    _finished = False
    _waiting = 0
    """The number of parts that wait to be written."""

    def __init__(self, send: Send) -> None:
        self._send = send

    @cached_property
    def _lock(self) -> asyncio.Lock:
        return asyncio.Lock()

    def notified(self, message: bytes) -> bool:
        """Send an encoded notification if it need not wait; after the response, nothing."""
        return self._finished or self._sent(frame(message), more_body=True)

    async def notify(self, message: bytes) -> None:
        """Send an encoded notification; after the response, nothing."""
        if not self.notified(message):
            await self._send_in_turn(frame(message), more_body=True)

    async def keep_alive(self) -> None:
        """Show that the request is under way, without a message; this may begin the stream."""
        if not (self._finished or self._sent(KEEP_ALIVE, more_body=True)):
            await self._send_in_turn(KEEP_ALIVE, more_body=True)

    async def finish(self, body: bytes | None) -> None:
        """Send the response, if there is to be one, and end the stream."""
        self._finished = True
        last = b": cancelled\n\n" if body is None else frame(body)
        if not self._sent(last, more_body=False):
            await self._send_in_turn(last, more_body=False)

    def _sent(self, part: bytes, *, more_body: bool) -> bool:
        """Send a part in one step; return False if it has to wait, for others or for the client."""
        send = self._send
        if self._waiting or not isinstance(send, OneStepSend):
            return False
        if self.started:
            return send.send_part(part, more_body=more_body)
        self.started = more_body and send.begin_stream(200, HEADERS, part)
        return self.started

    async def _send_in_turn(self, part: bytes, *, more_body: bool) -> None:
        self._waiting += 1
        try:
            async with self._lock:
                if not (more_body and self._finished):
                    await self._start()
                    await self._send(_body_event(part, more_body=more_body))
        finally:
            self._waiting -= 1

    async def _start(self) -> None:
        if not self.started:
            self.started = True
            start = {"type": "http.response.start", "status": 200, "headers": [*HEADERS]}
            await self._send(start)


def release(scope: Scope) -> None:
    """Drop a request's body, which may have megabytes, because its stream may stay for days."""
    scope.pop(WHOLE_BODY, None)
    if (rpc := scope.get(RPC)) is not None:
        scope[RPC] = tuple(
            TOO_LONG if member is not UNSET and len(member) > MAX_CHARACTERS else member
            for member in rpc
        )


def reads_events(accept: bytes) -> bool:
    """Return whether a client accepts events, also if it has no Accept header."""
    return not accept or b"text/event-stream" in accept or b"*/*" in accept


def accepts_events(accept: bytes) -> bool:
    """Return whether a client's Accept header names events."""
    return b"text/event-stream" in accept


def frame(data: bytes, event_id: str = "") -> bytes:
    """Encode a message as an event; it has no line breaks, so it is one `data:` line."""
    event = b"event: message\ndata: " + data + b"\n\n"
    return b"id: %b\n%b" % (event_id.encode(), event) if event_id else event


class WaitInterrupted(Exception):
    """Interrupts a wait because the stream has something to send or to look up."""


class EventStream(ABC):
    """
    One open event stream.

    The stream has no task of its own. The task of its request waits for the client to hang up.
    Events are written from outside that task as long as the connection accepts them at once: waking
    a task for each of ten thousand streams takes twice the time and leaves forty thousand objects
    to the garbage collector. If the client reads slowly, the task is woken and waits for it. The
    subclass keeps the events that are still to be sent, and must bound them.
    """

    __slots__ = (
        "__weakref__",
        "_idle",
        "_is_due",
        "_over",
        "_send",
        "_streams",
        "_unfinished_send",
        "_wait",
        "caller",
    )

    _send: Send

    def __init__(self, caller: TenantContext, streams: OpenStreams) -> None:
        self.caller = caller
        self._streams = streams
        self._wait: asyncio.Timeout | None = None
        """The wait in progress that `_interrupt` ends."""
        self._unfinished_send: StartedAwaitable | None = None
        self._idle = False
        self._is_due = False
        self._over = False

    @abstractmethod
    def first_event(self) -> bytes:
        """Return the first event as bytes of the stream; it is always sent."""

    @abstractmethod
    def next_event(self) -> bytes | None:
        """Return the next event, or None if there is nothing to send."""

    @property
    def watches(self) -> bool:
        """Return whether the stream reports changes of documents or tasks."""
        return False

    async def look_up(self) -> None:  # noqa: B027  # most streams have nothing to look up
        """Load what `next_event` needs; called while `must_look_up` is true."""

    @property
    def must_look_up(self) -> bool:
        """Return whether `look_up` has to be awaited before the next event."""
        return False

    @abstractmethod
    def last_event(self) -> bytes:
        """Return the last event for a stream that the server ends; b"" if there is none."""

    @abstractmethod
    def release(self) -> None:
        """Release all resources; called when the stream is over, however it ended."""

    def wake(self) -> None:
        """Send the new events. Call it through `OpenStreams.wake`, which spreads the work."""
        if self._idle and self._wait is not None and (self.must_look_up or not self._send_event()):
            self._interrupt()

    def send_keep_alive(self) -> None:
        """Send a comment that keeps the connection alive, unless an event is sent anyway."""
        self._is_due = True
        self.wake()

    def end(self) -> None:
        """End the stream, without waiting for a client that does not read."""
        self._over = True
        self._interrupt()

    async def run(self, receive: Receive, send: Send) -> None:
        """Keep the stream open until the client hangs up or `end` is called."""
        self._send = send
        try:
            headers = [*HEADERS]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._until_woken(send(_body_event(self.first_event())))
            while not self._over:
                if (frame := self._next()) is not None:
                    await self._until_woken(send(_body_event(frame)))
                elif self.must_look_up:
                    await self.look_up()
                elif await self._is_gone(receive):
                    return
                else:
                    await self._catch_up()
            await self._until_woken(send(_body_event(self.last_event(), more_body=False)))
        except WaitInterrupted:
            # The stream ended while the client did not read, so it gets no last event.
            return
        finally:
            self._streams.leave(self)
            if self._unfinished_send is not None:
                self._unfinished_send.close()
            self.release()

    async def _until_woken(self, work: Awaitable[Any]) -> Any:
        """Await *work*; raises WaitInterrupted when the stream has other work."""
        wait = self._wait = asyncio.timeout(None)
        try:
            async with wait:
                return await work
        except TimeoutError:
            if not wait.expired():
                raise  # the work's own
            raise WaitInterrupted from None
        finally:
            self._wait = None

    def _interrupt(self) -> None:
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.reschedule(0.0)  # now

    async def _is_gone(self, receive: Receive) -> bool:
        """Wait for a wake-up or a disconnect; return whether the client has hung up."""
        if self._over:
            # `next_event` ended the stream. Without this check the wait would last until the next
            # keep-alive comment.
            return False
        self._idle = True
        try:
            return bool((await self._until_woken(receive()))["type"] == "http.disconnect")
        except WaitInterrupted:
            return False
        finally:
            self._idle = False

    async def _catch_up(self) -> None:
        """Wait until the client accepts the write in progress; raises WaitInterrupted."""
        if self._unfinished_send is not None:
            if self._over:
                raise WaitInterrupted
            unfinished_send, self._unfinished_send = self._unfinished_send, None
            await self._until_woken(unfinished_send)

    def _next(self) -> bytes | None:
        frame = self.next_event()
        if frame is None and self._is_due:
            self._is_due = False
            return KEEP_ALIVE
        return frame

    def _send_event(self) -> bool:
        """Send all pending events; return False if the client does not accept one at once."""
        while (frame := self._next()) is not None:
            self._unfinished_send = begin(self._send(_body_event(frame)))
            if self._unfinished_send is not None:
                return False
        return True


class StartedAwaitable(Generator[Any, Any, Any]):
    """A started awaitable that is suspended; awaiting it continues from there."""

    __slots__ = ("_waiting", "_work")

    def __init__(self, work: Generator[Any, Any, Any], waiting: Any) -> None:
        self._work = work
        self._waiting = waiting

    def __await__(self) -> "StartedAwaitable":
        return self

    def send(self, value: Any) -> Any:
        """Continue the generator; the first call yields the future that it already waits for."""
        waiting, self._waiting = self._waiting, None
        return self._work.send(value) if waiting is None else waiting

    def throw(self, *error: Any) -> Any:
        """Raise an error in the generator; a cancellation arrives this way."""
        self._waiting = None
        return self._work.throw(*error)

    def close(self) -> None:
        """Close the generator and drop the work."""
        self._work.close()


def begin(work: Awaitable[Any]) -> StartedAwaitable | None:
    """Run *work* until it has to wait; return the rest, or None if it is finished."""
    steps = work.__await__()
    try:
        waiting = next(steps)
    except StopIteration:
        return None
    return StartedAwaitable(steps, waiting)


def _body_event(frame: bytes, *, more_body: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": frame, "more_body": more_body}
