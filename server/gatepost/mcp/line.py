"""A stream that stays open for what may come: it says something, or waits, and costs little."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Any

from starlette.types import Receive, Send

from gatepost.mcp.stream import HEADERS
from gatepost.streams import Streams
from gatepost.tools.attend import Attended, Stop
from gatepost_authz.caller import TenantContext

SIGN_OF_LIFE = b":\n\n"
"""A comment, which readers of event streams skip (HTML, Server-sent events)."""


class Woken(Exception):
    """There is something to do."""


class Line(ABC):
    """
    One open event stream.

    It lives in the task of its request alone: that task waits for the client to hang up, and is
    woken when there is something to say. What waits to be said is kept by the subclass, which must
    bound it: a client that reads slowly holds up `send`, not the process that makes the news.
    """

    __slots__ = ("__weakref__", "_due", "_idle", "_over", "_stop", "_streams", "caller")

    def __init__(self, caller: TenantContext, streams: Streams) -> None:
        self.caller = caller
        self._streams = streams
        self._stop: Stop | None = None
        self._idle = False
        self._due = False
        self._over = False

    @abstractmethod
    def greeting(self) -> bytes:
        """The first event, as bytes of the stream; said whatever has happened meanwhile."""

    @abstractmethod
    async def news(self) -> bytes | None:
        """The next event; None when there is nothing to say."""

    @abstractmethod
    def farewell(self) -> bytes:
        """The last event, when the end is ours; b"" when there is nothing to say."""

    @abstractmethod
    def release(self) -> None:
        """The stream is over, however it ended: let go of everything."""

    def wake(self) -> None:
        """There is something to say; to be called through `Streams.wake`, which takes turns."""
        if self._idle and self._stop is not None:
            self._stop.pull()

    def beat(self) -> None:
        """See `Held`."""
        self._due = True
        self.wake()

    def end(self) -> None:
        """See `Held`; a client that reads nothing is not waited for."""
        self._over = True
        if self._stop is not None:
            self._stop.pull()

    async def run(self, receive: Receive, send: Send) -> None:
        """Hold the stream open until the client hangs up or `end`."""
        try:
            headers = HEADERS.copy()
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._say(send, self.greeting())
            while not self._over:
                frame = await self.news()
                if frame is not None:
                    await self._say(send, frame)
                elif self._due:
                    self._due = False
                    await self._say(send, SIGN_OF_LIFE)
                elif await self._is_gone(receive):
                    return
            await self._say(send, self.farewell(), more=False)
        except Woken:
            # Ended while the client took nothing: there is no last word to such a one.
            return
        finally:
            self._streams.leave(self)
            self.release()

    async def _say(self, send: Send, frame: bytes, *, more: bool = True) -> None:
        message = {"type": "http.response.body", "body": frame, "more_body": more}
        await UntilWoken(self, send(message))

    async def _is_gone(self, receive: Receive) -> bool:
        """Wait; True when the client has hung up."""
        self._idle = True
        try:
            return bool((await UntilWoken(self, receive()))["type"] == "http.disconnect")
        except Woken:
            return False
        finally:
            self._idle = False

    def attend(self, stop: Stop | None) -> None:
        """What interrupts the wait that begins, or None as it ends."""
        self._stop = stop


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
