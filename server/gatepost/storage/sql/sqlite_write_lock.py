"""SQLite connections whose writes queue for one lock file, among the threads of all processes."""

import fcntl
import os
import sqlite3
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal

LOCK = "-lock"
"""The end of the lock file's name, after that of the database."""
WRITES = ("BEGIN", "INSERT", "UPDATE", "DELETE")


class WriteLock:
    """
    The right to write in a database, which the kernel gives in turn.

    SQLite waits for its own lock by sleeping and trying again, up to 100 ms at a time. A process
    that comes back at once then writes again and again before another one tries: with two that
    write all the time, one waited up to 3 seconds. The kernel wakes the next at once, and gives
    back the lock of a process that ends. SQLite's lock still decides; where the file system knows
    no such locks, writers have only that.
    """

    def __init__(self, path: str) -> None:
        """Open the lock file of the database at *path*; raises OSError."""
        self._handle = os.open(path + LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._is_held = False

    def take(self) -> None:
        """Wait for the lock, unless this object has it."""
        if not self._is_held:
            with suppress(OSError):
                fcntl.flock(self._handle, fcntl.LOCK_EX)
                self._is_held = True

    def release(self) -> None:
        """Give the lock back, if this object has it."""
        if self._is_held:
            self._is_held = False
            fcntl.flock(self._handle, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file, which gives the lock back."""
        handle, self._handle, self._is_held = self._handle, -1, False
        if handle >= 0:
            os.close(handle)

    def __del__(self) -> None:
        self.close()


class QueuedConnection(sqlite3.Connection):
    """
    A connection that has the `WriteLock` while it writes, and from BEGIN to the end.

    It waits in the thread that executes the statement, so use it in a thread of its own.
    """

    def __init__(self, database: str, *arguments: Any, **named: Any) -> None:
        try:
            self.write_lock = WriteLock(database)
        except OSError as error:
            reason = f"unable to open {database}{LOCK}: {error.strerror}"
            raise sqlite3.OperationalError(reason) from None
        super().__init__(database, *arguments, **named)

    def cursor(self, factory: Any = None) -> Any:
        """Return a cursor whose writes wait for the lock."""
        return super().cursor(factory or QueuedCursor)

    # The methods of the class above would make cursors of its own.
    def execute(self, sql: str, parameters: Any = (), /) -> "QueuedCursor":
        """Execute a statement with a new cursor."""
        return QueuedCursor(self).execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> "QueuedCursor":
        """Execute a statement for each set of parameters with a new cursor."""
        return QueuedCursor(self).executemany(sql, parameters)

    def commit(self) -> None:
        """End the transaction, and give the lock back."""
        try:
            super().commit()
        finally:
            self.release()

    def rollback(self) -> None:
        """End the transaction, and give the lock back."""
        try:
            super().rollback()
        finally:
            self.release()

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
            self.release()

    def close(self) -> None:
        """Close the connection and the lock file."""
        try:
            super().close()
        finally:
            self.write_lock.close()

    def release(self) -> None:
        """Give the lock back, except within a transaction."""
        if not self.in_transaction:
            self.write_lock.release()


class QueuedCursor(sqlite3.Cursor):
    """A cursor of a `QueuedConnection`."""

    connection: QueuedConnection

    def execute(self, sql: str, parameters: Any = (), /) -> "QueuedCursor":
        """Execute a statement; one that writes waits for the lock."""
        if sql.lstrip()[:6].upper().startswith(WRITES):
            self.connection.write_lock.take()
        try:
            super().execute(sql, parameters)
        finally:
            self.connection.release()
        return self

    def executemany(self, sql: str, parameters: Any, /) -> "QueuedCursor":
        """Execute a statement that writes, once for each set of parameters."""
        self.connection.write_lock.take()
        try:
            super().executemany(sql, parameters)
        finally:
            self.connection.release()
        return self
