"""A stream that stays open for what may come: it says something, or waits, and costs little."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Generator
from typing import Any

from starlette.types import Receive, Send

from gatepost.mcp.stream import HEADERS, SIGN_OF_LIFE
from gatepost.streams import Streams
from gatepost.tools.attend import Attended, Stop
from gatepost_authz.caller import TenantContext


class Woken(Exception):
    """There is something to do."""


class Line(ABC):
    """
    One open event stream.

    It lives in the task of its request alone, which waits for the client to hang up. What there is
    to say is written from outside as long as the connection takes it at once: waking a task for
    each of ten thousand streams takes twice the time, and leaves the collector forty thousand
    objects to look through. For a client that reads slowly the task is woken and waits for it.
    What waits to be said is kept by the subclass, which must bound it.
    """

    __slots__ = (
        "__weakref__",
        "_begun",
        "_due",
        "_idle",
        "_over",
        "_send",
        "_stop",
        "_streams",
        "caller",
    )

    _send: Send

    def __init__(self, caller: TenantContext, streams: Streams) -> None:
        self.caller = caller
        self._streams = streams
        self._stop: Stop | None = None
        self._begun: Begun | None = None
        self._idle = False
        self._due = False
        self._over = False

    @abstractmethod
    def greeting(self) -> bytes:
        """The first event, as bytes of the stream; said whatever has happened meanwhile."""

    @abstractmethod
    def news(self) -> bytes | None:
        """The next event; None when there is nothing to say."""

    @property
    def watches(self) -> bool:
        """See `OpenStream`."""
        return False

    async def look_up(self) -> None:  # noqa: B027  # most lines have nothing to look up
        """Find out what `news` needs to know, if `must_look_up`."""

    @property
    def must_look_up(self) -> bool:
        """Whether something has to be waited for before there is more to say."""
        return False

    @abstractmethod
    def farewell(self) -> bytes:
        """The last event, when the end is ours; b"" when there is nothing to say."""

    @abstractmethod
    def release(self) -> None:
        """The stream is over, however it ended: let go of everything."""

    def wake(self) -> None:
        """There is something to say; to be called through `Streams.wake`, which takes turns."""
        if self._idle and self._stop is not None and (self.must_look_up or not self._said()):
            self._stop.pull()

    def beat(self) -> None:
        """See `OpenStream`."""
        self._due = True
        self.wake()

    def end(self) -> None:
        """See `OpenStream`; a client that reads nothing is not waited for."""
        self._over = True
        if self._stop is not None:
            self._stop.pull()

    async def run(self, receive: Receive, send: Send) -> None:
        """Hold the stream open until the client hangs up or `end`."""
        self._send = send
        try:
            headers = HEADERS.copy()
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await UntilWoken(self, send(_part(self.greeting())))
            while not self._over:
                if (frame := self._next()) is not None:
                    await UntilWoken(self, send(_part(frame)))
                elif self.must_look_up:
                    await self.look_up()
                elif await self._is_gone(receive):
                    return
                else:
                    await self._catch_up()
            await UntilWoken(self, send(_part(self.farewell(), more=False)))
        except Woken:
            # Ended while the client took nothing: there is no last word to such a one.
            return
        finally:
            self._streams.leave(self)
            if self._begun is not None:
                self._begun.close()
            self.release()

    def attend(self, stop: Stop | None) -> None:
        """What interrupts the wait that begins, or None as it ends."""
        self._stop = stop

    async def _is_gone(self, receive: Receive) -> bool:
        """Wait, unless this is over; True when the client has hung up."""
        if self._over:
            # What there was to say ended it: nothing outside would end this wait before a beat.
            return False
        self._idle = True
        try:
            return bool((await UntilWoken(self, receive()))["type"] == "http.disconnect")
        except Woken:
            return False
        finally:
            self._idle = False

    async def _catch_up(self) -> None:
        """Wait for the client to take what was begun; raises Woken when it is too late for that."""
        if self._begun is not None:
            if self._over:
                raise Woken
            begun, self._begun = self._begun, None
            await UntilWoken(self, begun)

    def _next(self) -> bytes | None:
        frame = self.news()
        if frame is None and self._due:
            self._due = False
            return SIGN_OF_LIFE
        return frame

    def _said(self) -> bool:
        """Say what there is; False when the client does not take it at once."""
        while (frame := self._next()) is not None:
            self._begun = begin(self._send(_part(frame)))
            if self._begun is not None:
                return False
        return True


class UntilWoken(Attended[Any]):
    """Awaits *work* of a line; Woken when the line has something else to do."""

    __slots__ = ("_line",)

    stopped = Woken

    def __init__(self, line: Line, work: Awaitable[Any]) -> None:
        self._work = work.__await__()
        self._stop = None
        self._line = line

    def begin(self, stop: Stop) -> None:
        self._line.attend(stop)

    def end(self) -> None:
        self._line.attend(None)


class Begun(Generator[Any, Any, Any]):
    """Work that waits for something already; awaited, it goes on from there."""

    __slots__ = ("_waiting", "_work")

    def __init__(self, work: Generator[Any, Any, Any], waiting: Any) -> None:
        self._work = work
        self._waiting = waiting

    def __await__(self) -> "Begun":
        return self

    def send(self, value: Any) -> Any:
        """As a generator; what is waited for comes first."""
        waiting, self._waiting = self._waiting, None
        return self._work.send(value) if waiting is None else waiting

    def throw(self, *error: Any) -> Any:
        """As a generator; this is how a cancellation arrives."""
        self._waiting = None
        return self._work.throw(*error)

    def close(self) -> None:
        """As a generator: the work is dropped."""
        self._work.close()


def begin(work: Awaitable[Any]) -> Begun | None:
    """Do work as far as it goes without waiting; None when that was all."""
    steps = work.__await__()
    try:
        waiting = next(steps)
    except StopIteration:
        return None
    return Begun(steps, waiting)


def _part(frame: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": frame, "more_body": more}
