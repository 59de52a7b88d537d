"""Limits on work that waits; work that never waits pays nothing for them."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Attended(Generic[T]):
    """
    Awaits *work* in the current task and calls *on_wait* once, when it first waits for something.

    A timer per call costs as much as the rest of a small call (`asyncio.timeout` 3 µs), and most
    calls are answered before a timer could matter.
    """

    __slots__ = ("_on_wait", "_work")

    def __init__(self, work: Awaitable[T], on_wait: Callable[[], object]) -> None:
        self._work = work.__await__()
        self._on_wait: Callable[[], object] | None = on_wait

    def __await__(self) -> Generator[Any, Any, T]:
        return self  # it has a generator's methods, and no frame of its own

    def __iter__(self) -> "Attended[T]":
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        waiting = self._work.send(value)
        if self._on_wait is not None:
            self._on_wait()
            self._on_wait = None
        return waiting

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()


class Stop:
    """A way to cancel the task that armed it, and to tell that cancellation from any other."""

    __slots__ = ("_before", "_pulled", "_task")

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._before = 0
        self._pulled = False

    def arm(self) -> None:
        """The running task is the one to stop."""
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0

    def pull(self) -> None:
        """Cancel the task, once."""
        if self._task is not None and not self._pulled:
            self._pulled = True
            self._task.cancel()

    def settle(self) -> bool:
        """End it; True when the cancellation under way was this one's and nobody else's."""
        task, self._task = self._task, None
        if task is None or not self._pulled:
            return False
        return task.uncancel() <= self._before


class DeadlinePassed(Exception):
    """The work took longer than it may; not TimeoutError, which the work may raise itself."""


async def within(limit_s: float, work: Awaitable[T]) -> T:
    """
    Await *work* in the current task; DeadlinePassed when it takes longer than *limit_s* seconds.

    The clock starts at the work's first wait: what never waits cannot be interrupted anyway.
    """
    stop = Stop()
    timer: asyncio.TimerHandle | None = None

    def start() -> None:
        nonlocal timer
        stop.arm()
        timer = asyncio.get_running_loop().call_later(limit_s, stop.pull)

    try:
        return await Attended(work, start)
    except asyncio.CancelledError:
        if stop.settle():
            raise DeadlinePassed from None
        raise
    finally:
        stop.settle()
        if timer is not None:
            timer.cancel()
