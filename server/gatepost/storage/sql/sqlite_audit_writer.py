"""
The audit store of a SQLite file: the driver itself, in a thread of its own.

Two threads of this process compete for the interpreter's lock. Each call of the driver releases it,
and may wait milliseconds until the event loop releases it in turn. So a batch is one call if
possible.
"""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

import msgspec
from msgspec.structs import astuple

from gatepost.storage.audit import Batch, ChainHead, Checkpoint, Link, Sign
from gatepost.storage.audit_segments import HOUR_MS
from gatepost.storage.audit_sums import KEPT_MS
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql.audit import SqlAuditStore
from gatepost.storage.sql.audit_sums import only_sort
from gatepost.storage.sql.database import ANSWER_S, LATE, Database
from gatepost.storage.sql.sqlite import check_file
from gatepost.storage.sql.sqlite_audit_batches import ChainGrowth, StoredBatch, encode
from gatepost.storage.sql.sqlite_audit_connection import (
    CHAIN_BYTES,
    KnownChain,
    SqliteAuditConnection,
)
from gatepost.storage.sql.sqlite_audit_statements import END, add_batch, grow

MERGED_BYTES = 524_288
"""
Bytes of batches after which they are merged. That takes a few milliseconds, about as long as the
calls of the next batch run. More at once would be cheaper and delay those calls.
"""
MERGED_S = 1.0
"""How long a batch waits to be merged at most, while others follow."""
FEW_CHAINS = 4
"""
Chains of a batch that is written into the tables at once if no other waits to be merged: that is
cheaper than to write its records twice.
"""
MOST_CHAINS = 512
"""Chains of a batch that one statement compares; it is prepared once for each power of two."""

COPIED_BYTES = 1_048_576
"""Bytes after which the log is copied into the database file when no batch waits."""
COPIED_UNDER_LOAD = 8_388_608
"""
The same between two batches. SQLite itself copies thousands of pages within one commit, which then
takes ten times as long. If it were done more often, more than one batch in a hundred would wait.
"""
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


class SqliteWriter(SqliteAuditConnection):
    """The connection that records are written with; for one thread."""

    def write(self, batch: Batch, link: Link) -> None:
        """Add a batch, as `AuditStore.write` does."""
        if not any(batch.values()):
            return
        try:
            check_file(self._path, self._file)
            connection = self._connection or self._connect()
            if not self._write_at_once(connection, batch, link):
                self._write_in_turn(connection, batch, link)
        except (sqlite3.Error, StoreUnavailable) as error:
            raise self._failed(error) from None

    def tidy(self, *, idle: bool = False) -> None:
        """
        Merge the batches and copy the log if it is time; call this after a batch is written.

        *idle* says that none has come for a while. What fails is done later.
        """
        old = self.unmerged and time.monotonic() >= self._since + MERGED_S
        if idle or old or self.unmerged >= MERGED_BYTES:
            with contextlib.suppress(StoreUnavailable):
                self._merge()
        if self.uncopied >= (COPIED_BYTES if idle else COPIED_UNDER_LOAD):
            self.copy_log()

    def _write_at_once(self, connection: sqlite3.Connection, batch: Batch, link: Link) -> bool:
        """
        Write after the heads that this connection knows, in one statement.

        Return False if they have changed: another process may have added records or merged batches,
        or a person may have changed the database.
        """
        writer = next(iter(batch))[1]
        if writer not in self._ends or len(batch) > MOST_CHAINS:
            return False
        moved: list[tuple[KnownChain, ChainHead]] = []
        growths: list[ChainGrowth] = []
        values: list[object] = []
        for chain, drafts in batch.items():
            known = self._chains.get(chain)
            if known is None or chain[1] != writer or not drafts:
                return False
            before = known.head
            segments, head = link(chain, before, drafts)
            columns = known.columns
            moved.append((known, head))
            after = head.number, head.hash, head.pruned, head.proof
            growths.append(ChainGrowth(columns[0], before.hash, after, segments))
            values += columns
        try:
            if self.unmerged or not self._write_few(connection, moved, growths):
                self._write_row(connection, writer, growths, values)
                self._grown.update(zip(batch, (known for known, _ in moved), strict=True))
        except sqlite3.IntegrityError:
            return False
        for known, head in moved:
            known.head = head
        return True

    def _write_few(
        self,
        connection: sqlite3.Connection,
        moved: Sequence[tuple[KnownChain, ChainHead]],
        growths: Sequence[ChainGrowth],
    ) -> bool:
        """Write into the tables, and return True, if the chains have a few usual segments."""
        if len(growths) > FEW_CHAINS:
            return False
        values: list[object] = []
        size = 0
        for (known, _), growth in zip(moved, growths, strict=True):
            (segment, *more), columns = growth.segments, known.columns
            if more or (sort := only_sort(segment.counts)) is None:
                return False
            hour = segment.since - segment.since % HOUR_MS
            size += len(segment.records)
            values += (columns[0], *astuple(segment), *growth.after, *columns[2:])
            values += (hour, *sort, (hour + KEPT_MS) / 1000)
        connection.execute(grow(len(growths)), values)
        self.uncopied += size + CHAIN_BYTES * len(growths)
        for (known, _), growth in zip(moved, growths, strict=True):
            known.columns = (*known.columns[:2], *growth.after)
        return True

    def _write_row(
        self,
        connection: sqlite3.Connection,
        writer: int,
        growths: list[ChainGrowth],
        known: Sequence[object],
    ) -> None:
        """Write a batch as one row; *known* has the columns of the heads of its chains."""
        last, previous, *rest = self._ends[writer]
        batch = StoredBatch(writer, last + 1, growths)
        row = encode(batch)
        digest = sha256(previous + row).digest()
        size = 1 << (len(growths) - 1).bit_length()
        added = [*known, *list(known[-len(END) :]) * (size - len(growths))]
        connection.execute(add_batch(size), [*added, writer, last + 1, previous, digest, row])
        self._batches[digest] = batch
        self._ends[writer] = (last + 1, digest, *rest)
        if not self.unmerged:
            self._since = time.monotonic()
        self.unmerged += len(row)
        self.uncopied += 3 * len(row)  # as a row, overwritten, and in segments
