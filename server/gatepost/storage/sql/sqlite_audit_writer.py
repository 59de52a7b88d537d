"""
The audit store of a SQLite file: the driver itself, in a thread of its own.

Two threads of this process compete for the interpreter's lock. Each call of the driver releases it,
and may wait milliseconds until the event loop releases it in turn. So a batch is one call if
possible.
"""

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any

import msgspec
from msgspec.structs import astuple

from gatepost.storage.audit import Batch, ChainHead, ChainKey, Checkpoint, Link, Segment, Sign
from gatepost.storage.audit_segments import end_of
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql.audit import SqlAuditStore
from gatepost.storage.sql.audit_heads import TOO_HIGH, is_beyond, stored_checkpoint, stored_head
from gatepost.storage.sql.audit_sums import only_sort, sqlite_sum
from gatepost.storage.sql.database import ANSWER_S, LATE, Database, told
from gatepost.storage.sql.sqlite import check_file, connect
from gatepost.storage.sql.tables import AUDIT_CHECKPOINTS, AUDIT_HEADS, AUDIT_SEGMENTS, escaped

MOST_AT_ONCE = 64
"""Segments that one statement adds; it is prepared once for each number of them."""

COPIED_BYTES = 131_072
"""
Bytes after which the log is copied into the database file between two batches. SQLite itself copies
thousands of pages within one commit, which then takes ten times as long.
"""

_SEGMENT = [column.name for column in AUDIT_SEGMENTS.columns]
_END = [column.name for column in AUDIT_HEADS.columns]
_CHECKPOINT = [column.name for column in AUDIT_CHECKPOINTS.columns]
_MOVED = _END[2:]
_WAS = [f"was_{name}" for name in _MOVED]

_ADD = (
    f"INSERT INTO audit_segments ({', '.join(_SEGMENT)}) "  # noqa: S608  # our names
    f"VALUES ({', '.join('?' * len(_SEGMENT))})"
)
_HEAD = f"SELECT {', '.join(_END)} FROM audit_heads WHERE tenant = ? AND writer = ?"  # noqa: S608  # our names
_RECORDS = (
    "SELECT last, first FROM audit_segments WHERE tenant = ? AND writer = ? AND first < ? "
    "ORDER BY first DESC LIMIT 1"
)
_RECORD = (
    f"SELECT {', '.join(_SEGMENT)} FROM audit_segments "  # noqa: S608  # our names
    "WHERE tenant = ? AND writer = ? AND first = ?"
)
_ENDS = f"SELECT {', '.join(_END)} FROM audit_heads WHERE tenant = ? ORDER BY writer"  # noqa: S608  # our names
_NEWEST = (
    f"SELECT {', '.join(_CHECKPOINT)} FROM audit_checkpoints "  # noqa: S608  # our names
    "WHERE tenant = ? ORDER BY number DESC LIMIT 1"
)
_KEEP = (
    f"INSERT OR REPLACE INTO audit_heads ({', '.join(_END)}) "  # noqa: S608  # our names
    f"VALUES ({', '.join('?' * len(_END))})"
)
_CHECK = (
    f"INSERT OR REPLACE INTO audit_checkpoints ({', '.join(_CHECKPOINT)}) "  # noqa: S608  # our names
    f"VALUES ({', '.join('?' * len(_CHECKPOINT))})"
)

# An insert into this view moves a head, adds a segment and counts it, in one statement, which is
# one transaction. It fails if any column of the head is not as this process left it. Records of one
# sort, which are usual, are counted by the columns of it: reading `counts` takes a fifth of all.
_SORT = ["kind", "tool", "outcome", "limited_by", "number"]
_MANY_SORTS = (None,) * len(_SORT)
_COLUMNS = [*_SEGMENT, *_MOVED, *_WAS, *(f"its_{name}" for name in _SORT)]
_VIEW = (
    f"CREATE TEMP VIEW audit_growth ({', '.join(_COLUMNS)}) "
    f"AS SELECT {', '.join('0' * len(_COLUMNS))}"
)
_TRIGGER = f"""
CREATE TEMP TRIGGER audit_grows INSTEAD OF INSERT ON audit_growth BEGIN
    UPDATE audit_heads SET {", ".join(f"{name} = NEW.{name}" for name in _MOVED)}
        WHERE tenant = NEW.tenant AND writer = NEW.writer
            AND {" AND ".join(f"{name} = NEW.was_{name}" for name in _MOVED)};
    SELECT RAISE(ABORT, 'another end') WHERE changes() = 0;
    INSERT INTO audit_segments ({", ".join(_SEGMENT)})
        VALUES ({", ".join(f"NEW.{name}" for name in _SEGMENT)});
END
"""  # noqa: S608  # our names
_COUNTS_ONE = f"""
CREATE TEMP TRIGGER audit_counts_one INSTEAD OF INSERT ON audit_growth
WHEN NEW.its_kind IS NOT NULL BEGIN
    {sqlite_sum("NEW.tenant", "NEW.writer", "NEW.since", [f"NEW.its_{name}" for name in _SORT])};
END
"""
_COUNTS_MANY = f"""
CREATE TEMP TRIGGER audit_counts_many INSTEAD OF INSERT ON audit_growth
WHEN NEW.its_kind IS NULL BEGIN
    {sqlite_sum("NEW.tenant", "NEW.writer", "NEW.since", "NEW.counts")};
END
"""
_SUM = sqlite_sum(":tenant", ":writer", ":since", ":counts")
_PLACES = f"({', '.join('?' * len(_COLUMNS))})"
_GROW = [
    f"INSERT INTO audit_growth VALUES {', '.join([_PLACES] * size)}"  # noqa: S608  # our names
    for size in range(MOST_AT_ONCE + 1)
]


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
            await self._done(self._writer.close)
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
        while (queued := self._queue.get()) is not None:
            if not queued.answer.done():  # else it was late before it began, and is tried again
                with queued:
                    queued.found = queued.work()
            del queued  # holds a batch
            if self._writer.uncopied >= COPIED_BYTES:
                self._writer.copy_log()


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


class SqliteWriter:
    """The connection that records are written with; for one thread."""

    def __init__(self, path: str) -> None:
        self._path, self._file = path, os.stat(path)
        self._connection: sqlite3.Connection | None = None
        self._heads: dict[ChainKey, tuple[str, ChainHead]] = {}
        """Each chain's tenant in SQL, and the head that this connection has written."""
        self.uncopied = 0
        """Bytes of records and checkpoints that may be in the log only."""

    def write(self, batch: Batch, link: Link) -> None:
        """Add a batch, as `AuditStore.write` does."""
        if not any(batch.values()):
            return
        try:
            check_file(self._path, self._file)
            connection = self._connection or self._connect()
            if not self._write_at_once(connection, batch, link):
                self._write_in_turn(connection, batch, link)
        except sqlite3.Error as error:
            self.close()
            raise StoreUnavailable(told(error)) from None
        except StoreUnavailable:
            self.close()
            raise

    def sign(self, tenants: Sequence[str], sign: Sign) -> dict[str, Checkpoint]:
        """Add checkpoints, as `AuditStore.sign` does."""
        made: dict[str, tuple[Checkpoint, ChainHead]] = {}
        try:
            check_file(self._path, self._file)
            connection = self._connection or self._connect()
            with connection:  # commits, or rolls back
                connection.execute("BEGIN IMMEDIATE")
                for tenant in tenants:
                    name = escaped(tenant)
                    found = connection.execute(_ENDS, (name,)).fetchall()
                    heads = [stored_head((tenant, *one[1:])) for one in found]
                    row = connection.execute(_NEWEST, (name,)).fetchone()
                    newest = None if row is None else stored_checkpoint(row[1:])
                    if heads and (signed := sign(heads, newest)) is not None:
                        made[tenant] = signed
                        connection.execute(_CHECK, (name, *astuple(signed[0])))
                        connection.execute(_KEEP, (name, *astuple(signed[1])[1:]))
        except sqlite3.Error as error:
            self.close()
            raise StoreUnavailable(told(error)) from None
        self.uncopied += sum(len(one.statement) + len(one.signature) for one, _ in made.values())
        return {tenant: checkpoint for tenant, (checkpoint, _) in made.items()}

    def copy_log(self) -> None:
        """
        Copy the log into the database file; call this after a batch is acknowledged.

        What a reader holds back is left for the next time, or for a commit.
        """
        self.uncopied = 0
        if self._connection is None:
            return
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error:
            self.close()

    def close(self) -> None:
        """Close the connection; another write opens one."""
        self._heads = {}
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = self._connection = connect(self._path)
        connection.execute(_VIEW)
        for trigger in (_TRIGGER, _COUNTS_ONE, _COUNTS_MANY):
            connection.execute(trigger)
        return connection

    def _write_at_once(self, connection: sqlite3.Connection, batch: Batch, link: Link) -> bool:
        """
        Write after the heads that this connection has written, in one statement.

        Return False if they have changed: another process may have added records or a checkpoint,
        or a person may have changed the database.
        """
        heads: dict[ChainKey, tuple[str, ChainHead]] = {}
        values: list[object] = []
        size = 0
        for chain, drafts in batch.items():
            if (known := self._heads.get(chain)) is None:
                return False
            name, before = known
            segments, head = link(chain, before, drafts)
            heads[chain] = (name, head)
            was, moved = astuple(before)[2:], astuple(head)[2:]
            for segment in segments:
                size += len(segment.records)
                values += (
                    name,
                    *astuple(segment),
                    *moved,
                    *was,
                    *(only_sort(segment.counts) or _MANY_SORTS),
                )
                was = moved
        if (rows := len(values) // len(_COLUMNS)) > MOST_AT_ONCE:
            return False
        try:
            connection.execute(_GROW[rows], values)
        except sqlite3.IntegrityError:
            return False
        self._heads |= heads
        self.uncopied += size
        return True

    def _shown(
        self, connection: sqlite3.Connection, chain: ChainKey, head: ChainHead | None
    ) -> ChainHead | None:
        """Return the end of a chain that records are added after, as `audit_heads.shown` does."""
        which = (escaped(chain[0]), chain[1])
        newest = connection.execute(_RECORDS, (*which, TOO_HIGH)).fetchone()
        if newest is None or not is_beyond(newest, head):
            return head
        found = connection.execute(_RECORD, (*which, newest[1])).fetchone()
        return end_of(chain, head, Segment(*found[1:]))

    def _write_in_turn(self, connection: sqlite3.Connection, batch: Batch, link: Link) -> None:
        """Write after the heads in the database."""
        heads: dict[ChainKey, tuple[str, ChainHead]] = {}
        size = 0
        with connection:  # commits, or rolls back
            connection.execute("BEGIN IMMEDIATE")
            for chain, drafts in batch.items():
                tenant, writer = chain
                name = escaped(tenant)
                found = connection.execute(_HEAD, (name, writer)).fetchone()
                before = None if found is None else stored_head((tenant, *found[1:]))
                segments, head = link(chain, self._shown(connection, chain, before), drafts)
                size += sum(len(one.records) for one in segments)
                connection.executemany(_ADD, [(name, *astuple(one)) for one in segments])
                counts = [
                    {
                        "tenant": name,
                        "writer": one.writer,
                        "since": one.since,
                        "counts": one.counts,
                    }
                    for one in segments
                ]
                connection.executemany(_SUM, counts)
                connection.execute(_KEEP, (name, *astuple(head)[1:]))
                heads[chain] = (name, head)
        self._heads |= heads
        self.uncopied += size
