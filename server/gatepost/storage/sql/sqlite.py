"""A SQLite file as a database: its path, the files beside it, and the threads that use it."""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any
from urllib.parse import unquote

import msgspec
from sqlalchemy.engine.interfaces import DBAPICursor

from gatepost.storage.errors import StoreRefused, StoreUnavailable
from gatepost.storage.sql.database import STATEMENT_MS, TIMED_OUT
from gatepost.storage.sql.sqlite_connection import QueuedConnection

SCHEME = "sqlite:///"
COMPANION_FILES = ("-wal", "-shm")
"""
The files that SQLite creates beside the database. New ones get the database's permissions; existing
ones keep theirs.
"""
WAL = "-audit-"
"""The end of the names of write-ahead logs, before their numbers (`sqlite_audit_wal`)."""
ZEROS = bytes(65_536)

# The first pragma makes the others wait for a lock instead of failing at once.
PRAGMAS: Mapping[str, int | str] = {
    "busy_timeout": STATEMENT_MS,
    "journal_mode": "wal",
    # FULL: a transaction that was acknowledged survives the loss of power.
    "synchronous": 2,
    "fullfsync": 1,
    # Pages in the log after which a commit copies them into the file. `SqliteAuditStore`, which
    # writes most of them, copies them sooner, between two batches.
    "wal_autocheckpoint": 4_000,
    # Deleted or erased data is overwritten; otherwise it could be read from the file for years.
    "secure_delete": 1,
    "foreign_keys": 1,
    # KiB of pages that each connection caches. SQLite's 2,000 for each of three took 6 MB of a
    # process and saved no time that could be measured: the system caches the file, too.
    "cache_size": -512,
}


def connect(path: str) -> sqlite3.Connection:
    """Return a connection of the driver itself to a file that is there."""
    os.stat(path)  # SQLite would create the file
    connection = sqlite3.connect(path, isolation_level=None, factory=QueuedConnection)
    set_pragmas(path, connection.cursor())
    return connection


def empty_log(url: str) -> bool:
    """
    Truncate the logs beside the file (`-wal`, `-audit-1`…), which may still contain deleted data.

    Return False if a reader prevents it. Raises the driver's errors.
    """
    path = path_of(url)
    with closing(connect(path)) as connection:
        # Write-ahead logs continue at their beginning only within such a transaction.
        connection.execute("BEGIN IMMEDIATE")
        merged = connection.execute("SELECT writer, pruned FROM audit_heads WHERE tenant = ''")
        ends = {number: end for number, end in merged if isinstance(end, int)}
        for number, name in wals(path).items():
            with suppress(FileNotFoundError, PermissionError), open(name, "r+b") as file:
                size = os.fstat(file.fileno()).st_size
                overwrite(file.fileno(), min(ends.get(number, 0), size))
        connection.execute("COMMIT")
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def wals(path: str) -> dict[int, str]:
    """Return the paths of the write-ahead logs beside a file, by their numbers."""
    folder, name = os.path.split(path)
    paths: dict[int, str] = {}
    with os.scandir(folder or ".") as entries:
        for entry in entries:
            if entry.name.startswith(name + WAL):
                number = entry.name.removeprefix(name + WAL)
                if number.isascii() and number.isdecimal() and number == str(int(number)):
                    paths[int(number)] = entry.path
    return dict(sorted(paths.items()))


def overwrite(file: int, end: int) -> None:
    """Overwrite an open file up to an offset; OSError."""
    for offset in range(0, end, len(ZEROS)):
        os.pwrite(file, ZEROS[: end - offset], offset)


def set_pragmas(path: str, cursor: DBAPICursor | sqlite3.Cursor) -> None:
    """Configure a new connection; raises StoreRefused."""
    for name, value in PRAGMAS.items():
        _set(cursor, f"PRAGMA {name} = {value}")
        cursor.execute(f"PRAGMA {name}")
        row = cursor.fetchone()
        # SQLite ignores a pragma that it cannot apply, without an error.
        if row is None or row[0] != value:
            raise StoreRefused(f"the database {path} refuses PRAGMA {name} = {value}")


def _set(cursor: DBAPICursor | sqlite3.Cursor, pragma: str) -> None:
    # If several processes open a new file at once, one of them turns the log on. SQLite refuses the
    # others at once, without the busy timeout, because they could wait for each other. So wait for
    # the write lock, for which SQLite does wait, and try again.
    until = time.monotonic() + STATEMENT_MS / 1000
    while True:
        try:
            cursor.execute(pragma)
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() >= until:
                raise
        cursor.execute("BEGIN IMMEDIATE")
        cursor.execute("COMMIT")


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


def path_of(url: str) -> str:
    """Return the path of the file."""
    return unquote(url.removeprefix(SCHEME))


def exists(url: str) -> bool:
    """Return whether the file exists."""
    return os.path.exists(path_of(url))


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

    @property
    def is_late(self) -> bool:
        """Return whether the caller was told that it took too long."""
        return self.answer.done() and not self.answer.cancelled()


class WorkThreads:
    """
    Threads with one queue, at most *count*; each is started by work for which no thread is free.

    *serve* runs the work that it is given, and what it gets from `take`, and returns all of it.
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
        queued = QueuedWork(work=work, answer=loop.create_future())
        timer = loop.call_later(within_s, _give_up, queued)
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
        self.wake()

    def _finish(self, works: list[QueuedWork]) -> None:
        self._unfinished -= len(works)
        for queued in works:
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
                queued = self._queue.get(timeout=timeout)
            if queued is not None and self._serve is not None:
                works = self._serve(queued)
            elif queued is not None:
                works = [queued]
                if not queued.answer.done():  # else it was late, or its caller has left
                    with queued:
                        queued.result = queued.work()
            if works:
                with suppress(RuntimeError):  # the event loop is closed
                    works[0].answer.get_loop().call_soon_threadsafe(self._finish, works)
            del works, queued  # the work may hold a batch
            if self._closed and self._queue.empty():
                self.wake()  # so that the next thread ends, too
                return
            timeout = None if self._look is None else self._look()


def _give_up(queued: QueuedWork) -> None:
    queued.work = _nothing  # while a disk hangs, what was to be written must not fill the memory
    if not queued.answer.done():
        queued.answer.set_exception(StoreUnavailable(TIMED_OUT))


def _nothing(*_: object) -> None:
    """Do nothing, in place of work whose caller was told that it failed."""
