"""Requests that their client takes back: by hanging up, or by a notification."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Receive

from gatepost.tools.attend import Attended, Stop

T = TypeVar("T")

Running = dict[tuple[bytes, bytes], Stop]
"""Requests of sessions that run in this process, by session and request id."""

# Most calls are over before anybody could hang up; a task that listens for it costs more than they.
WATCH_AFTER_S = 0.05


class Stopped(Exception):
    """The client took its request back."""


class UntilDisconnect(Attended[T]):
    """Awaits *work*; Stopped when the client hangs up, which takes the request back (T-11)."""

    __slots__ = ("_receive", "_timer", "_watcher")

    stopped = Stopped

    def __init__(self, receive: Receive, work: Awaitable[T]) -> None:
        self._work = work.__await__()
        self._stop = None
        self._receive = receive

    def begin(self, stop: Stop) -> None:
        self._watcher: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._watch, stop)

    def end(self) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    def _watch(self, stop: Stop) -> None:
        self._watcher = asyncio.create_task(self._until_gone(stop))

    async def _until_gone(self, stop: Stop) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        stop.pull()


class UntilCancelled(Attended[T]):
    """
    Awaits *work*; Stopped when `notifications/cancelled` names it.

    A dropped connection is no cancellation in the revisions that have sessions (S-08).
    """

    __slots__ = ("_key", "_own", "_running")

    stopped = Stopped

    def __init__(self, running: Running, key: tuple[bytes, bytes], work: Awaitable[T]) -> None:
        self._work = work.__await__()
        self._stop = None
        self._running = running
        self._key = key

    def begin(self, stop: Stop) -> None:
        self._own = stop
        self._running[self._key] = stop

    def end(self) -> None:
        # A client that uses an id twice at once must not lose the later request's entry.
        if self._running.get(self._key) is self._own:
            del self._running[self._key]
