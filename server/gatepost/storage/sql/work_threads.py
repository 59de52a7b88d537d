"""Threads that run the work of a database, one after another, for an event loop."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

import msgspec

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql.database import TIMED_OUT


class QueuedWork(msgspec.Struct, eq=False):
    """Work for a thread; as a context manager, it keeps the error of a block."""

    work: Callable[..., Any]
    answer: "asyncio.Future[Any]"
    result: Any = None
    error: BaseException | None = None

    @property
    def is_late(self) -> bool:
        """Return whether the caller was told that it took too long."""
        return self.answer.done() and not self.answer.cancelled()

    def __enter__(self) -> None:
        """Enter the block whose error goes to `answer`."""

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> bool:
        """Keep the error, which is raised where the work is awaited."""
        self.error = error
        return True

    def finish(self) -> None:
        """Set the result or the error, unless the future is done or cancelled."""
        if self.answer.done():
            return
        if self.error is None:
            self.answer.set_result(self.result)
        else:
            self.answer.set_exception(self.error)


class WorkThreads:
    """
    Threads with one queue, at most *count*; each is started by work for which no thread is free.

    *serve* runs the work that it is given and calls `hand_over`. It may take more with `take`.
    Without it, work is run one by one, and work whose caller has left is not run.

    Between its work, a thread calls *look*, which returns after how many seconds it is to be called
    again; None: after the next work, or after `wake`.
    """

    def __init__(
        self,
        name: str,
        *,
        count: int = 1,
        serve: Callable[[QueuedWork], None] | None = None,
        look: Callable[[], float | None] | None = None,
    ) -> None:
        self._name, self._count, self._look = name, count, look
        self._serve = serve or self._run_one
        self._queue: SimpleQueue[QueuedWork | None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._starting = threading.Lock()
        self._unfinished = 0
        self._is_drained = asyncio.Event()
        self._closed = False

    async def run(self, work: Callable[..., Any], *, within_s: float) -> Any:
        """
        Return the result of *work*, or raise its error.

        Raises StoreUnavailable if that takes too long. Work that has not begun by then is left.
        """
        if self._closed:
            raise StoreUnavailable("the database is closed")
        if self._unfinished >= len(self._threads) < self._count:
            self._start()
        loop = asyncio.get_running_loop()
        queued = QueuedWork(work, loop.create_future())
        timer = loop.call_later(within_s, _give_up, queued.answer)
        self._unfinished += 1
        self._queue.put(queued)
        try:
            return await queued.answer
        finally:
            timer.cancel()

    def take(self) -> QueuedWork | None:
        """Return more work if some waits; for *serve*."""
        with suppress(Empty):
            return self._queue.get_nowait()
        return None

    def hand_over(self, works: Sequence[QueuedWork]) -> None:
        """Hand the results or errors to the event loop; for *serve*."""
        with suppress(RuntimeError):  # the event loop is closed
            works[0].answer.get_loop().call_soon_threadsafe(self._finish, works)

    def wake(self) -> None:
        """Have *look* called soon; callable in any thread."""
        self._queue.put(None)

    async def drained(self, *, within_s: float) -> bool:
        """Wait until all work has ended, also that of callers that have left; False if late."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._unfinished:
                    self._is_drained.clear()
                    await self._is_drained.wait()
        return not self._unfinished

    def close(self) -> None:
        """End the threads after the work that they have."""
        self._closed = True
        for _ in tuple(self._threads):
            self.wake()

    def _finish(self, works: Sequence[QueuedWork]) -> None:
        self._unfinished -= len(works)
        for queued in works:
            queued.finish()
        if not self._unfinished:
            self._is_drained.set()

    def _start(self) -> None:
        with self._starting:
            if len(self._threads) < self._count:
                # A daemon thread, so that the process can end even if a disk hangs.
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._threads.add(thread)

    def _run(self) -> None:
        is_over = False
        try:
            self._work()
            is_over = True
        finally:
            with self._starting:
                self._threads.discard(threading.current_thread())
            if not is_over:  # an unexpected error of *look*; queued work must not wait forever
                self._start()

    def _work(self) -> None:
        timeout = None
        while True:
            queued = None
            with suppress(Empty):
                queued = self._queue.get(timeout=timeout)
            if queued is not None:
                self._serve(queued)
            del queued  # the item may hold a batch
            if self._closed and self._queue.empty():
                return
            timeout = None if self._look is None else self._look()

    def _run_one(self, queued: QueuedWork) -> None:
        if not queued.answer.done():  # else it was late, or cancelled
            with queued:
                queued.result = queued.work()
        self.hand_over([queued])


def _give_up(answer: "asyncio.Future[Any]") -> None:
    if not answer.done():
        answer.set_exception(StoreUnavailable(TIMED_OUT))
