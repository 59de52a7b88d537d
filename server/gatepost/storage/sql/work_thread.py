"""A thread that does work of the event loop one after another."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

import msgspec

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql.database import LATE


def _never() -> float | None:
    return None


class WorkThread:
    """
    A thread, which is started by the first work.

    Between its work it calls *look*, which returns after how many seconds it is to be called again;
    None: after the next work, or after `wake`.
    """

    def __init__(self, name: str, look: Callable[[], float | None] = _never) -> None:
        self._name, self._look = name, look
        self._queue: SimpleQueue[QueuedWork | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def do(self, work: Callable[[], Any], *, within_s: float) -> Any:
        """
        Return what *work* returns, or raise what it raises.

        Raises StoreUnavailable if that takes too long. Work that has not begun by then is left.
        """
        if self._closed:
            raise StoreUnavailable("the database is closed")
        if self._thread is None or not self._thread.is_alive():
            # A daemon: the process can end although a disk hangs.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        queued = QueuedWork(work, loop.create_future())
        late = loop.call_later(within_s, queued.tell, None, StoreUnavailable(LATE))
        self._queue.put(queued)
        try:
            return await queued.answer
        finally:
            late.cancel()

    def wake(self) -> None:
        """Have *look* called soon; callable in any thread."""
        self._queue.put(None)

    def close(self) -> None:
        """End the thread after the work that it has."""
        self._closed = True
        self.wake()

    def _run(self) -> None:
        timeout = None
        while True:
            queued = None
            with suppress(Empty):
                queued = self._queue.get(timeout=timeout)
            if queued is not None and not queued.answer.done():  # else it was late, or cancelled
                with queued:
                    queued.found = queued.work()
            del queued  # it may have a batch
            if self._closed and self._queue.empty():
                return
            timeout = self._look()


class QueuedWork(msgspec.Struct, eq=False):
    """Work for the thread; as a context manager, it hands the result or the error to the loop."""

    work: Callable[[], Any]
    answer: "asyncio.Future[Any]"
    found: Any = None

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> bool:
        """Hand over the result, or the error, which is raised where the work is awaited."""
        with suppress(RuntimeError):  # the event loop is closed
            self.answer.get_loop().call_soon_threadsafe(self.tell, self.found, error)
        return True

    def tell(self, found: Any, error: BaseException | None) -> None:
        """Set the result or the error, unless the future is done or cancelled."""
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(found)
        else:
            self.answer.set_exception(error)
