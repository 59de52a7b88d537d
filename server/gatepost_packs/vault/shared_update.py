"""Updates of an index that the calls of a tenant share if they come together."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Generic, TypeVar

T = TypeVar("T")
ProgressReport = Callable[[int, int], None]
"""Takes how many files of an update are finished, and how many there are."""
ProgressListener = Callable[[int, int], Awaitable[None]]
"""Takes the same for one of the calls."""


class SharedUpdates(Generic[T]):
    """
    The updates of one tenant's index in this process, one at a time.

    A call takes part in an update that begins after the call has arrived, so that it sees every
    earlier change. All calls that arrive during an update share the next one.
    """

    def __init__(self) -> None:
        self._one_by_one = asyncio.Lock()
        self._next: SharedUpdate[T] | None = None
        """The update that has not begun."""

    async def result(
        self, work: Callable[[ProgressReport], Awaitable[T]], listener: ProgressListener
    ) -> T:
        """
        Return the result of *work*, which this call or another one has passed.

        *listener* gets its progress. *work* is cancelled once no call waits for it any more.
        """
        if self._next is None:
            self._next = SharedUpdate(lambda report: self._run(work, report))
        update = self._next
        try:
            return await update.result(listener)
        finally:
            if update.is_abandoned and self._next is update:
                self._next = None

    async def _run(
        self, work: Callable[[ProgressReport], Awaitable[T]], report: ProgressReport
    ) -> T:
        async with self._one_by_one:
            self._next = None
            return await work(report)


class SharedUpdate(Generic[T]):
    """One update, and the calls that wait for it."""

    def __init__(self, work: Callable[[ProgressReport], Awaitable[T]]) -> None:
        loop = asyncio.get_running_loop()
        self.is_abandoned = False
        """Whether no call waits for it any more."""
        self._waiting = 0
        self._step: asyncio.Future[tuple[int, int]] = loop.create_future()
        """The progress that is reported next."""

        async def run() -> T:
            return await work(self._report)

        # Without the context of this call, because other calls wait for the task as well.
        self._task = loop.create_task(run(), context=Context())
        self._task.add_done_callback(_retrieve_error)

    async def result(self, listener: ProgressListener) -> T:
        """Return the result, once it is there."""
        self._waiting += 1
        try:
            while not self._task.done():
                step = self._step
                await asyncio.wait((self._task, step), return_when=asyncio.FIRST_COMPLETED)
                if step.done():
                    await listener(*step.result())
            return self._task.result()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.is_abandoned = True
                self._task.cancel()

    def _report(self, finished: int, total: int) -> None:
        self._step.set_result((finished, total))
        self._step = asyncio.get_running_loop().create_future()


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    """Retrieve an error, so that asyncio does not log one that no call waits for."""
    if not task.cancelled():
        task.exception()
