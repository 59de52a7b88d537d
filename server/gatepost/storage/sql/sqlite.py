"""A SQLite file as a database."""

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from types import TracebackType
from typing import Any, Literal
from urllib.parse import unquote

from sqlalchemy.engine.interfaces import DBAPICursor

from gatepost.storage.errors import StoreRefused, StoreUnavailable
from gatepost.storage.sql.database import STATEMENT_MS

SCHEME = "sqlite:///"
COMPANION_FILES = ("-wal", "-shm")
"""
The files that SQLite creates beside the database. New ones get the database's permissions; existing
ones keep theirs.
"""
WAL = "-audit-"
"""The end of the names of write-ahead logs, before their numbers (`sqlite_audit_wal`)."""
LOCK = "-lock"
"""The end of the lock file's name, after that of the database."""
ZEROS = bytes(65_536)
WRITES = ("BEGIN", "INSERT", "UPDATE", "DELETE")
"""The beginnings of statements that wait for the lock file."""

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


def _nothing() -> None:
    """Do what a closed connection does for its lock."""


class QueuedConnection(sqlite3.Connection):
    """
    A connection that has the lock file while it writes, and from BEGIN to the end.

    SQLite waits for its own lock by sleeping and trying again, up to 100 ms at a time. A process
    that comes back at once then writes again and again before another one tries: with two busy
    writers, one waited up to 3 seconds. With a lock file, the kernel wakes the next writer at once,
    and releases the lock of a process that ends. SQLite's lock still decides. If the file system
    has no such locks, writers have only SQLite's. The connection waits in the thread that executes
    the statement.
    """

    def __init__(self, database: str, *arguments: Any, **keywords: Any) -> None:
        self._file = -1
        try:
            self._file = os.open(database + LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            reason = f"unable to open {database}{LOCK}: {error.strerror}"
            raise sqlite3.OperationalError(reason) from None
        # Taking the lock twice, or releasing another connection's lock, does nothing.
        self.lock: Callable[[], None] = partial(fcntl.flock, self._file, fcntl.LOCK_EX)
        self.unlock: Callable[[], None] = partial(fcntl.flock, self._file, fcntl.LOCK_UN)
        super().__init__(database, *arguments, **keywords)

    def cursor(self, factory: Any = None) -> Any:
        """Return a cursor whose writes wait for the lock."""
        return super().cursor(factory or QueuedCursor)

    # Each batch of audit records takes this path, so no cursor of ours is created for it.
    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Execute a statement with a new cursor; one that writes waits for the lock."""
        self.begin(sql)
        try:
            return super().execute(sql, parameters)
        finally:
            self.end()

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        """Execute a statement for each set of parameters with a new cursor."""
        return QueuedCursor(self).executemany(sql, parameters)

    def commit(self) -> None:
        """End the transaction, and give the lock back."""
        try:
            super().commit()
        finally:
            self.end()

    def rollback(self) -> None:
        """End the transaction, and give the lock back."""
        try:
            super().rollback()
        finally:
            self.end()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        # The class above ends the transaction without calling the methods of this one.
        try:
            return super().__exit__(kind, error, traceback)
        finally:
            self.end()

    def begin(self, sql: str) -> None:
        """Wait for the lock before a statement that writes, except within a transaction."""
        if sql.startswith(WRITES) and not self.in_transaction:
            with suppress(OSError):
                self.lock()

    def end(self) -> None:
        """Give the lock back, except within a transaction."""
        if not self.in_transaction:
            with suppress(OSError):
                self.unlock()

    def close(self) -> None:
        """Close the connection and the lock file, which gives the lock back."""
        try:
            super().close()
        finally:
            self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, -1
        # Another file may soon get the same descriptor number.
        self.lock = self.unlock = _nothing
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self._close_file()


class QueuedCursor(sqlite3.Cursor):
    """A cursor of a `QueuedConnection`, whose writes wait for the lock."""

    connection: QueuedConnection

    def execute(self, sql: str, parameters: Any = (), /) -> "QueuedCursor":
        """Execute a statement; one that writes waits for the lock."""
        self.connection.begin(sql)
        try:
            super().execute(sql, parameters)
        finally:
            self.connection.end()
        return self

    def executemany(self, sql: str, parameters: Any, /) -> "QueuedCursor":
        """Execute a statement that writes for each set of parameters."""
        with suppress(OSError):
            self.connection.lock()
        try:
            super().executemany(sql, parameters)
        finally:
            self.connection.end()
        return self
