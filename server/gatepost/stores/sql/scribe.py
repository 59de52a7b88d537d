"""
The writer of a SQLite file: the driver itself, in a thread of its own.

Two threads of this process want the interpreter's lock: each call of the driver gives it up, and
may wait milliseconds until the event loop lets go of it. So a batch is one call where it can be.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from msgspec.structs import astuple

from gatepost.stores.api import StoreUnavailable
from gatepost.stores.audit import Batch, Head, Link, Row, Segment
from gatepost.stores.segment import Added
from gatepost.stores.sql import sqlite
from gatepost.stores.sql.audit import SqlScribe
from gatepost.stores.sql.database import ANSWER_S, LATE, Database, told
from gatepost.stores.sql.tables import AUDIT_HEADS, AUDIT_SEGMENTS, escaped

MOST_AT_ONCE = 16
"""Segments that one statement adds; it is prepared once for each number of them."""

SETTLED_BYTES = 131_072
"""
So much is written before it is put in its places: SQLite does that within a commit, for thousands
of pages at once, and whoever waited for that commit waited ten times as long. As little as this is
done before the next batch comes.
"""

_SEGMENT = [column.name for column in AUDIT_SEGMENTS.columns]
_END = [column.name for column in AUDIT_HEADS.columns]
_MOVED = _END[1:]
_WAS = [f"was_{name}" for name in _MOVED]

_ADD = (
    f"INSERT INTO audit_segments ({', '.join(_SEGMENT)}) "  # noqa: S608  # our names
    f"VALUES ({', '.join('?' * len(_SEGMENT))})"
)
_HEAD = f"SELECT {', '.join(_END)} FROM audit_heads WHERE tenant = ?"  # noqa: S608  # our names
_KEEP = (
    f"INSERT OR REPLACE INTO audit_heads ({', '.join(_END)}) "  # noqa: S608  # our names
    f"VALUES ({', '.join('?' * len(_END))})"
)

# What is put into this view moves a head and adds a segment behind it, in one statement, which is
# one transaction. It fails where the head is not the one that we have left, in any column.
_COLUMNS = [*_SEGMENT, *_MOVED, *_WAS]
_VIEW = (
    f"CREATE TEMP VIEW audit_growth ({', '.join(_COLUMNS)}) "
    f"AS SELECT {', '.join('0' * len(_COLUMNS))}"
)
_TRIGGER = f"""
CREATE TEMP TRIGGER audit_grows INSTEAD OF INSERT ON audit_growth BEGIN
    UPDATE audit_heads SET {", ".join(f"{name} = NEW.{name}" for name in _MOVED)}
        WHERE tenant = NEW.tenant AND {" AND ".join(f"{name} = NEW.was_{name}" for name in _MOVED)};
    SELECT RAISE(ABORT, 'another end') WHERE changes() = 0;
    INSERT INTO audit_segments ({", ".join(_SEGMENT)})
        VALUES ({", ".join(f"NEW.{name}" for name in _SEGMENT)});
END
"""  # noqa: S608  # our names
_PLACES = f"({', '.join('?' * len(_COLUMNS))})"
_GROW = [
    f"INSERT INTO audit_growth VALUES {', '.join([_PLACES] * size)}"  # noqa: S608  # our names
    for size in range(MOST_AT_ONCE + 1)
]


class SqliteScribe(SqlScribe):
    """See `Scribe`."""

    def __init__(self, database: Database, path: str) -> None:
        super().__init__(database)
        self._writer = Writer(path)
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def write(self, make: Callable[[], Batch], link: Link) -> dict[str, Sequence[Row]]:
        """See `Scribe`."""
        made: dict[str, Sequence[Row]] = await self._done(lambda: self._writer.write(make, link))
        return made

    async def aclose(self) -> None:
        """Let the last batch be written, and close the connection."""
        if self._thread is None or self._closed:
            return
        with contextlib.suppress(StoreUnavailable):
            await self._done(self._writer.close)
        self._closed = True
        self._jobs.put(None)

    async def _done(self, work: Callable[[], Any]) -> Any:
        """What *work* answers or raises, in the thread; what is late ends by itself."""
        if self._closed:
            raise StoreUnavailable("the database is closed")
        if self._thread is None:
            # Nobody waits for a thread that a disk holds: the process has to end.
            self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
            self._thread.start()
        job = Job(work)
        late = job.loop.call_later(ANSWER_S, job.tell, None, StoreUnavailable(LATE))
        self._jobs.put(job)
        try:
            return await job.answer
        finally:
            late.cancel()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            with job:
                job.found = job.work()
            del job  # holds a batch
            self._writer.settle()


class Job:
    """Something to be done in a thread; whatever comes of it is told to whoever waits."""

    __slots__ = ("answer", "found", "loop", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work, self.found = work, None
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = self.loop.create_future()

    def __enter__(self) -> None:
        """It is begun."""

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> bool:
        """It is over; in a thread there is nobody else to hear of an error."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            self.loop.call_soon_threadsafe(self.tell, self.found, error)
        return True

    def tell(self, found: Any, error: BaseException | None) -> None:
        """Answer, unless whoever waited has left or been told something else."""
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(found)
        else:
            self.answer.set_exception(error)


class Writer:
    """The connection that records are written with; for one thread."""

    def __init__(self, path: str) -> None:
        self._open = sqlite.opener(path)
        self._connection: sqlite3.Connection | None = None
        self._left: dict[str, Head] = {}
        """The heads that this connection has written."""
        self._unsettled = 0
        """Bytes of records that may stand in the log only."""

    def write(self, make: Callable[[], Batch], link: Link) -> dict[str, Sequence[Row]]:
        """See `Scribe`."""
        batch = make()
        if not any(batch.values()):
            return {}
        try:
            connection = self._opened()
            made = self._at_once(connection, batch, link) or self._in_turn(connection, batch, link)
        except sqlite3.Error as error:
            self.close()
            raise StoreUnavailable(told(error)) from None
        except StoreUnavailable:
            self.close()
            raise
        self._unsettled += sum(len(one.records) for all_ in made.values() for one in all_)
        return {tenant: Added(segments) for tenant, segments in made.items()}

    def settle(self) -> None:
        """
        Put what was written in its place in the file, when that is much: for the time after a
        batch was told. What a reader holds back is left for the next time, or for a commit.
        """
        if self._connection is None or self._unsettled < SETTLED_BYTES:
            return
        self._unsettled = 0
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error:
            self.close()  # the next write finds out what is wrong

    def close(self) -> None:
        """Close the connection; another write opens one."""
        self._left = {}
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(self) -> sqlite3.Connection:
        kept, connection = self._connection, self._open(self._connection)
        if kept is None:
            self._connection = connection
            connection.execute(_VIEW)
            connection.execute(_TRIGGER)
        return connection

    def _at_once(
        self, connection: sqlite3.Connection, batch: Batch, link: Link
    ) -> dict[str, list[Segment]] | None:
        """
        Write behind the heads that we have left, in one statement; None: they are others now.

        They may be of another process, or of a checkpoint, or of whoever has changed the database.
        """
        made: dict[str, list[Segment]] = {}
        heads: dict[str, Head] = {}
        values: list[object] = []
        for tenant, drafts in batch.items():
            if (left := self._left.get(tenant)) is None:
                return None
            made[tenant], head = link(tenant, left, drafts)
            heads[tenant] = head
            for segment in made[tenant]:
                values += (escaped(tenant), *astuple(segment), *astuple(head)[1:])
                values += astuple(left)[1:]
                left = head
        if (size := len(values) // len(_COLUMNS)) > MOST_AT_ONCE:
            return None
        try:
            connection.execute(_GROW[size], values)
        except sqlite3.IntegrityError:
            return None
        self._left |= heads
        return made

    def _in_turn(
        self, connection: sqlite3.Connection, batch: Batch, link: Link
    ) -> dict[str, list[Segment]]:
        """Write behind the heads that are there."""
        made: dict[str, list[Segment]] = {}
        heads: dict[str, Head] = {}
        with connection:  # commits, or rolls back
            connection.execute("BEGIN IMMEDIATE")
            for tenant, drafts in batch.items():
                name = escaped(tenant)
                found = connection.execute(_HEAD, (name,)).fetchone()
                left = None if found is None else Head(tenant, *found[1:])
                made[tenant], heads[tenant] = link(tenant, left, drafts)
                values = [(name, *astuple(segment)) for segment in made[tenant]]
                connection.executemany(_ADD, values)
                connection.execute(_KEEP, (name, *astuple(heads[tenant])[1:]))
        self._left |= heads
        return made
