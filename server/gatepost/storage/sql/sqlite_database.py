"""A SQLite file as a database: changes that come together are written with one commit."""

import asyncio
import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

import msgspec
from sqlalchemy import Connection

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql.database import (
    OVER_S,
    TIMED_OUT,
    Database,
    T,
    Ts,
    answering,
    deadline_s,
    error_summary,
)
from gatepost.storage.sql.sqlite import LOCK, engine_of, prepare

READERS = 2
"""Threads that read: a search that takes long keeps one of them."""
MAX_CHANGES, GROUP_S = 64, 0.5
"""Maximum number of changes in one transaction, and how long it waits for their results."""

log = logging.getLogger(__name__)


class WorkResult(msgspec.Struct, eq=False):
    """The result of work; as a context manager, it keeps the error of a block."""

    result: Any = None
    error: BaseException | None = None

    def __enter__(self) -> None:
        """Enter the block."""

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> bool:
        """Keep the error of the block."""
        self.error = error
        return True


class QueuedWork(WorkResult, eq=False, kw_only=True):
    """Work for a thread; its result or error is handed to the event loop."""

    work: Callable[..., Any]
    answer: "asyncio.Future[Any]"
    timer: asyncio.TimerHandle | None = None


class WorkThreads:
    """
    Threads with one queue, at most *count*; each is started by work for which no thread is free.

    *serve* runs the work that it is given, and what it takes from `queue`, and returns all of it.
    Without it, work is run one by one, and work whose caller has left is not run.

    Between its work, a thread calls *look*, which returns after how many seconds it is to be called
    again; None: after the next work, or after `wake`.
    """

    def __init__(
        self,
        name: str,
        *,
        count: int = 1,
        serve: Callable[[QueuedWork], list[QueuedWork]] | None = None,
        look: Callable[[], float | None] | None = None,
    ) -> None:
        self._name, self._count, self._serve, self._look = name, count, serve, look
        self.queue: SimpleQueue[QueuedWork | None] = SimpleQueue()
        """The work that no thread has begun; None has *look* called."""
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
            try:
                self._start()
            except RuntimeError:
                if not self._threads:
                    raise StoreUnavailable("no thread can be started for the database") from None
        loop = asyncio.get_running_loop()
        queued = QueuedWork(work=work, answer=loop.create_future())
        # It also ends work whose caller has left: while a disk hangs, that would fill the memory.
        queued.timer = loop.call_later(within_s, _give_up, queued)
        self._unfinished += 1
        self.queue.put(queued)
        return await queued.answer

    def wake(self) -> None:
        """Have *look* called soon; callable in any thread."""
        self.queue.put(None)

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
        self.wake()

    def _finish(self, works: list[QueuedWork]) -> None:
        self._unfinished -= len(works)
        for queued in works:
            if queued.timer is not None:
                queued.timer.cancel()
            if queued.answer.done():
                continue  # it was late, or its caller has left
            if queued.error is None:
                queued.answer.set_result(queued.result)
            else:
                queued.answer.set_exception(queued.error)
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
            queued: QueuedWork | None = None
            works: list[QueuedWork] = []
            with suppress(Empty):
                queued = self.queue.get(timeout=timeout)
            if queued is not None and self._serve is not None:
                works = self._serve(queued)
            elif queued is not None:
                works = [queued]
                if not queued.answer.done():  # else it was late, or its caller has left
                    with queued:
                        queued.result = queued.work()
            by_loop: dict[asyncio.AbstractEventLoop, list[QueuedWork]] = {}
            for ended in works:
                by_loop.setdefault(ended.answer.get_loop(), []).append(ended)
            for loop, of_loop in by_loop.items():
                with suppress(RuntimeError):  # the event loop is closed
                    loop.call_soon_threadsafe(self._finish, of_loop)
            works, queued, by_loop = [], None, {}  # the work may hold a batch
            if self._closed and self.queue.empty():
                self.wake()  # so that the next thread ends, too
                return
            timeout = None if self._look is None else self._look()


def _give_up(queued: QueuedWork) -> None:
    # What was to be written must not be written later.
    queued.work = _nothing
    if not queued.answer.done():
        queued.answer.set_exception(StoreUnavailable(TIMED_OUT))


def _nothing(*_: object) -> None:
    """Do nothing, in place of work whose caller was told that it failed."""


class SqliteDatabase(Database):
    """
    A SQLite file: one thread changes it, and others read meanwhile.

    A commit synchronises the file, which takes longer than the change itself. So the changes that
    wait while the thread is busy become one transaction. Each of them sees those before it, and
    one that fails is undone alone. Their callers get the results after the commit.

    A thread that hangs in SQLite cannot be stopped. Its callers get an error in time.
    """

    dialect = "sqlite"

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path, self._file = path, prepare(path)
        self._engine = engine_of(path, READERS + 1)
        self._idle: list[Connection] = []
        """
        Open connections that no thread uses. To close one after each statement and to open it again
        takes SQLAlchemy longer than most statements.
        """
        self._is_closing = False
        self._reads = WorkThreads("database reads", count=READERS)
        self._changes = WorkThreads("database changes", serve=self._commit)

    async def transaction(
        self, at: Callable[[Connection], T], *, within_s: float | None = None
    ) -> T:
        """Implement `Database`."""
        change = partial(_savepoint, at)
        result: T = await self._changes.run(change, within_s=deadline_s(within_s))
        return result

    def compute(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Implement `Database`."""
        return function(*arguments)

    async def aclose(self) -> None:
        """Implement `Database`."""
        both = self._changes, self._reads
        drained = await asyncio.gather(*(threads.drained(within_s=OVER_S) for threads in both))
        if not all(drained):
            # A thread runs a statement that cannot be stopped. The process ends without waiting for
            # it.
            log.warning("database_not_closed", extra={"reason": TIMED_OUT})
            return
        self._is_closing = True
        with suppress(StoreUnavailable):
            # In the thread, because closing the last connection writes SQLite's log into the file.
            await self._reads.run(self._close_connections, within_s=OVER_S)
        for threads in both:
            threads.close()

    async def _run(
        self, at: Callable[[Connection], T], *, within_s: float, is_change: bool = False
    ) -> T:
        # SQLite undoes a single statement that fails, so a change needs no savepoint.
        threads, work = (self._changes, at) if is_change else (self._reads, partial(self._read, at))
        result: T = await threads.run(work, within_s=within_s)
        return result

    def _read(self, at: Callable[[Connection], T]) -> T:
        with answering((sqlite3.Error,)):
            check_file(self.path, self._file)
            with self._connection() as connection:
                return at(connection)

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """Yield a connection that only this thread uses; one that fails is closed."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._engine.connect()
        with ExitStack() as undo:
            undo.callback(connection.close)
            yield connection
            undo.pop_all()
        self._idle.append(connection)
        if self._is_closing:
            self._close_connections()

    def _close_connections(self) -> None:
        # Several threads may do so at once: a statement may come after the wait for all of them.
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                connection.invalidate()  # the pool may be another one than that of the connection
                connection.close()
        self._engine.dispose()

    def _commit(self, first: QueuedWork) -> list[QueuedWork]:
        """Commit a change, and those that come until it is made; return them."""
        group, commit, queue = [first], WorkResult(), self._changes.queue
        with commit, answering((sqlite3.Error,)):
            check_file(self.path, self._file)
            with self._connection() as connection, write_lock(self.path), ExitStack() as undo:
                undo.callback(connection.invalidate)  # closed, the connection rolls back
                # A writer takes the lock at once: after a read in the same transaction, SQLite
                # would refuse it.
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                # The list grows while it is read.
                until = time.monotonic() + GROUP_S
                for change in group:
                    with change, answering((sqlite3.Error,)):
                        change.result = change.work(connection)
                    driver: Any = connection.connection.dbapi_connection
                    if not driver.in_transaction:
                        raise change.error or LookupError("a change has ended its transaction")
                    has_room = len(group) < MAX_CHANGES and time.monotonic() < until
                    if has_room and not queue.empty():  # only this thread takes
                        group += filter(None, [queue.get_nowait()])
                # The file may have been removed since the first change.
                check_file(self.path, self._file)
                connection.exec_driver_sql("COMMIT")
                undo.pop_all()
        if (error := commit.error) is not None:
            # The text of another error may contain values of one caller.
            is_outage = isinstance(error, StoreUnavailable)
            reason = str(error) if is_outage else error_summary(error)
            for change in group:
                change.error = StoreUnavailable(reason)
        return group


def _savepoint(at: Callable[[Connection], T], connection: Connection) -> T:
    """Call *at*; if it raises an error, undo what it changed, within the transaction."""
    connection.exec_driver_sql("SAVEPOINT change")
    with ExitStack() as undo:
        undo.callback(_undo, connection)
        result = at(connection)
        undo.pop_all()
    connection.exec_driver_sql("RELEASE change")
    return result


def _undo(connection: Connection) -> None:
    driver: Any = connection.connection.dbapi_connection
    if not driver.in_transaction:
        return  # SQLite has undone everything
    with ExitStack() as undo:
        undo.callback(connection.invalidate)  # what cannot be undone alone must not be committed
        connection.exec_driver_sql("ROLLBACK TO change")
        connection.exec_driver_sql("RELEASE change")
        undo.pop_all()


@contextmanager
def write_lock(path: str) -> Iterator[None]:
    """
    Have the lock file during a block, which changes the database at *path* in a transaction.

    SQLite waits for its own lock by sleeping and trying again, up to 100 ms at a time. A process
    that comes back at once then writes again and again before another one tries: with two busy
    writers, one waited up to 3 seconds. With a lock file, the kernel wakes the next writer at once,
    and releases the lock of a process that ends. SQLite's lock still decides. If the file system
    has no such locks, or the lock file cannot be opened, writers have only SQLite's.
    """
    with ExitStack() as undo:
        with suppress(OSError):
            file = os.open(path + LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            undo.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX)
            # Closing is not enough while a process that is being started has the file open, too.
            undo.callback(fcntl.flock, file, fcntl.LOCK_UN)
        yield


def check_file(path: str, opened: os.stat_result) -> None:
    """Raise StoreUnavailable unless the file at *path* is the one that was *opened*."""
    # If the file was removed, SQLite would continue in it and lose its records, and create an empty
    # file for the next connection.
    try:
        if os.path.samestat(os.stat(path), opened):
            return
    except OSError:
        pass
    raise StoreUnavailable("the database's file is gone or another one: start anew")


def place_of(file: int) -> str:
    """
    Return the path at which the kernel knows an open file; "" if it does not say.

    The path changes when the file is removed, renamed or replaced, or a folder above it. Unlike
    `os.stat` this does not read the time of the last change: from Linux 6.13 on, each write after
    such a reading stores that time, and synchronising takes half as long again.
    """
    try:
        return os.readlink(f"/proc/self/fd/{file}")
    except OSError:
        return ""
