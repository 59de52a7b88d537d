"""Connections of the driver to a SQLite file that wait for a lock file before they write."""

import fcntl
import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Literal

LOCK = "-lock"
"""The end of the lock file's name, after that of the database."""
WRITES = ("BEGIN", "INSERT", "UPDATE", "DELETE")
"""The beginnings of statements that wait for the lock file."""


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
