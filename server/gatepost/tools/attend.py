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


class DeadlinePassed(Exception):
    """The work took longer than it may; not TimeoutError, which the work may raise itself."""


class Deadline:
    """Cancels the task that started it when *limit_s* seconds have passed."""

    __slots__ = ("_before", "_handle", "_limit_s", "_passed", "_task")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._handle: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None
        self._before = 0
        self._passed = False

    def start(self) -> None:
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0
        self._handle = asyncio.get_running_loop().call_later(self._limit_s, self._expire)

    def _expire(self) -> None:
        if self._task is not None:
            self._passed = True
            self._task.cancel()

    def settle(self) -> bool:
        """End it; True when the cancellation under way was this deadline's and nobody else's."""
        if self._handle is not None:
            self._handle.cancel()
        if not self._passed or self._task is None:
            return False
        self._passed = False
        return self._task.uncancel() <= self._before


async def within(limit_s: float, work: Awaitable[T]) -> T:
    """
    Await *work* in the current task; DeadlinePassed when it takes longer than *limit_s* seconds.

    The clock starts at the work's first wait: what never waits cannot be interrupted anyway.
    """
    deadline = Deadline(limit_s)
    try:
        return await Attended(work, deadline.start)
    except asyncio.CancelledError:
        if deadline.settle():
            raise DeadlinePassed from None
        raise
    finally:
        deadline.settle()
