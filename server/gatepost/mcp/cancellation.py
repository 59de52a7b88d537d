"""Requests that their client takes back: by hanging up, or by a notification."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from gatepost.mcp.exchange import Receive
from gatepost.tools.attend import Attended, Stop

T = TypeVar("T")
Running = dict[tuple[bytes, bytes], Stop]
"""Requests of sessions that run in this process, by session and request id."""

# Most calls are over before anybody could hang up; a task that listens for it costs more than they.
WATCH_AFTER_S = 0.05


class Stopped(Exception):
    """The client took its request back."""


async def until_disconnect(receive: Receive, work: Awaitable[T]) -> T:
    """Await *work*; Stopped when the client hangs up, which cancels it (T-11)."""
    stop = Stop()
    timer: asyncio.TimerHandle | None = None
    watcher: asyncio.Task[None] | None = None

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        stop.pull()

    def begin_watching() -> None:
        nonlocal watcher
        watcher = asyncio.create_task(watch())

    def begin() -> None:
        nonlocal timer
        stop.arm()
        timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, begin_watching)

    try:
        return await Attended(work, begin)
    except asyncio.CancelledError:
        if stop.settle():
            raise Stopped from None
        raise
    finally:
        stop.settle()
        if timer is not None:
            timer.cancel()
        if watcher is not None:
            watcher.cancel()


async def until_cancelled(running: Running, key: tuple[bytes, bytes], work: Awaitable[T]) -> T:
    """
    Await *work*; Stopped when `notifications/cancelled` names it.

    A dropped connection is no cancellation in the revisions that have sessions (S-08).
    """
    stop = Stop()

    def begin() -> None:
        stop.arm()
        running[key] = stop

    try:
        return await Attended(work, begin)
    except asyncio.CancelledError:
        if stop.settle():
            raise Stopped from None
        raise
    finally:
        stop.settle()
        if running.get(key) is stop:
            del running[key]
