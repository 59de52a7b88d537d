"""The audit store of a SQLite file: a thread of its own writes batches, and merges them."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

import msgspec

from gatepost.storage.audit import Batch, Checkpoint, Link, Sign
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql.audit import SqlAuditStore
from gatepost.storage.sql.database import ANSWER_S, LATE, Database
from gatepost.storage.sql.sqlite_audit_writer import SqliteWriter

IDLE_S = 0.2
"""How long no batch must come until the batches are merged sooner."""


class SqliteAuditStore(SqlAuditStore):
    """Implement `AuditStore`; one thread writes."""

    def __init__(self, database: Database, path: str) -> None:
        super().__init__(database)
        self._writer = SqliteWriter(path)
        self._queue: SimpleQueue[QueuedWrite | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def write(self, batch: Batch, link: Link) -> None:
        """Implement `AuditStore`."""
        await self._done(partial(self._writer.write, batch, link))

    async def sign(self, tenants: Sequence[str], sign: Sign) -> dict[str, Checkpoint]:
        """Implement `AuditStore`."""
        # In the thread that writes records, where this waits for one batch at most. SQLite waits
        # for its own lock by sleeping and trying again.
        made: dict[str, Checkpoint] = await self._done(partial(self._writer.sign, tenants, sign))
        return made

    async def aclose(self) -> None:
        """Finish the last batch, and close the connection."""
        if self._thread is None or self._closed:
            return
        with contextlib.suppress(StoreUnavailable):
            await self._done(self._writer.finish)
        self._closed = True
        self._queue.put(None)

    async def _done(self, work: Callable[[], Any]) -> Any:
        """Run *work* in the thread; raises StoreUnavailable if that takes too long."""
        if self._closed:
            raise StoreUnavailable("the database is closed")
        if self._thread is None or not self._thread.is_alive():
            # A daemon: the process can end although a disk hangs.
            self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        queued = QueuedWrite(work, loop.create_future())
        late = loop.call_later(ANSWER_S, queued.tell, None, StoreUnavailable(LATE))
        self._queue.put(queued)
        try:
            return await queued.answer
        finally:
            late.cancel()

    def _run(self) -> None:
        while True:
            try:
                queued = self._queue.get(timeout=IDLE_S if self._writer.unmerged else None)
            except Empty:
                self._writer.tidy(idle=True)
                continue
            if queued is None:
                return
            if not queued.answer.done():  # else it was late before it began, and is tried again
                with queued:
                    queued.found = queued.work()
            del queued  # holds a batch
            self._writer.tidy()


class QueuedWrite(msgspec.Struct, eq=False):
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
        with contextlib.suppress(RuntimeError):  # the event loop is closed
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
