"""A SQLite file as a database: changes that come together are written with one commit."""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection

from gatepost.permissions import close_to_others
from gatepost.storage.errors import StoreRefused, StoreUnavailable
from gatepost.storage.sql.database import (
    ENGINE_OPTIONS,
    OVER_S,
    TIMED_OUT,
    Database,
    T,
    Ts,
    answering,
    deadline_s,
    error_summary,
)
from gatepost.storage.sql.sqlite import (
    COMPANION_FILES,
    QueuedWork,
    WorkResult,
    WorkThreads,
    check_file,
    path_of,
    set_pragmas,
    wals,
)
from gatepost.storage.sql.sqlite_connection import LOCK, QueuedConnection

READERS = 2
"""Threads that read: a search that takes long keeps one of them."""
MAX_CHANGES = 64
"""Maximum number of changes in one transaction."""

log = logging.getLogger(__name__)


class SqliteDatabase(Database):
    """
    A SQLite file: one thread changes it, and others read meanwhile.

    A commit synchronises the file, which takes longer than the change itself. So the changes that
    wait while the thread is busy become one transaction. Each of them sees those before it, and
    one that fails is undone alone. Their callers get the results after the commit.

    A thread that hangs in SQLite cannot be stopped. Its callers get an error in time.
    """

    dialect = "sqlite"

    def __init__(self, path: str, engine: Engine) -> None:
        self.path, self._engine = path, engine
        self._reads = WorkThreads("database reads", count=READERS)
        self._changes = WorkThreads("database changes", serve=self._commit)

    async def run_sync(self, at: Callable[[Connection], T]) -> T:
        """Implement `Database`."""
        result: T = await self._reads.run(partial(self._read, at), within_s=deadline_s())
        return result

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
        with suppress(StoreUnavailable):
            # In the thread, because closing the last connection writes SQLite's log into the file.
            await self._reads.run(self._engine.dispose, within_s=OVER_S)
        for threads in both:
            threads.close()

    async def _change(self, at: Callable[[Connection], T]) -> T:
        # SQLite undoes a single statement that fails, so it needs no savepoint.
        result: T = await self._changes.run(at, within_s=deadline_s())
        return result

    def _read(self, at: Callable[[Connection], T]) -> T:
        with answering((sqlite3.Error,)), self._engine.connect() as connection:
            return at(connection)

    def _commit(self, first: QueuedWork) -> list[QueuedWork]:
        """Commit a change, and those that come until it is made; return them."""
        group, commit = [first], WorkResult()
        with commit, answering((sqlite3.Error,)), self._transaction() as connection:
            # The list grows while it is read.
            for change in group:
                _make(change, connection)
                if len(group) < MAX_CHANGES and (waiting := self._changes.take()) is not None:
                    group.append(waiting)
        if (error := commit.error) is not None:
            # The text of another error may contain values of one caller.
            is_outage = isinstance(error, StoreUnavailable)
            reason = str(error) if is_outage else error_summary(error)
            for change in group:
                change.error = StoreUnavailable(reason)
        return group

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._engine.connect() as connection, ExitStack() as undo:
            undo.callback(connection.invalidate)  # closed, the connection rolls back
            # A writer takes the lock at once: after a read in the same transaction, SQLite would
            # refuse it.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
            connection.exec_driver_sql("COMMIT")
            undo.pop_all()


def _make(change: QueuedWork, connection: Connection) -> None:
    """Make a change in a transaction; raises an error if that was rolled back."""
    if change.is_late:
        return
    with change, answering((sqlite3.Error,)):
        change.result = change.work(connection)
    if not _in_transaction(connection):
        raise change.error or LookupError("a change has ended its transaction")


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
    if not _in_transaction(connection):
        return  # SQLite has undone everything
    with ExitStack() as undo:
        undo.callback(connection.invalidate)  # what cannot be undone alone must not be committed
        connection.exec_driver_sql("ROLLBACK TO change")
        connection.exec_driver_sql("RELEASE change")
        undo.pop_all()


def _in_transaction(connection: Connection) -> bool:
    driver: Any = connection.connection.dbapi_connection
    return bool(driver.in_transaction)


def database(url: str) -> SqliteDatabase:
    """Open the file of a `sqlite:///` URL, readable by this user only; raises StoreRefused."""
    path = path_of(url)
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
        # Created before SQLite creates it: the files beside it get its permissions, and it contains
        # arguments.
        _close(path, os.O_RDWR | os.O_CREAT)
        for companion in (*(path + end for end in COMPANION_FILES), *wals(path).values()):
            with suppress(FileNotFoundError):
                _close(companion, os.O_RDWR)
        _close(path + LOCK, os.O_RDWR | os.O_CREAT)
        opened = os.stat(path)
    except OSError as error:
        file = error.filename or path
        raise StoreRefused(f"the database {file} cannot be opened: {error.strerror}") from None
    engine = create_engine(
        URL.create("sqlite", database=path),
        pool_size=READERS + 1,
        # A connection is used by one thread after another.
        connect_args={"factory": QueuedConnection, "check_same_thread": False},
        **ENGINE_OPTIONS,
    )

    @event.listens_for(engine, "connect")
    def configure(connection: DBAPIConnection, _: object) -> None:
        cursor = connection.cursor()
        set_pragmas(path, cursor)
        cursor.close()

    @event.listens_for(engine, "do_connect")
    @event.listens_for(engine, "checkout")
    def check(*_: object) -> None:
        check_file(path, opened)

    return SqliteDatabase(path, engine)


def _close(path: str, flags: int) -> None:
    """Open the file, or make it, and close it to other users; OSError."""
    handle = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        close_to_others(handle, path)
    finally:
        os.close(handle)
