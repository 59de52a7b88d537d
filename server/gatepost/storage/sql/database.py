"""A database: its connections, statements with a deadline, and its errors as StoreUnavailable."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, CursorResult, Executable, Row
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql.async_engine import AsyncConnection, AsyncEngine, create_async_engine

ANSWER_S = 6.0
"""The deadline of a statement, including the wait for a connection."""
STATEMENT_MS = 5_000
"""The deadline of the database server or of SQLite's lock; shorter than `ANSWER_S`."""
GIVE_UP_S = 3.0
"""How long a driver may take to cancel a late statement."""
OVER_S = 8.0
"""How long a close waits for statements: `ANSWER_S` and the driver's cancellation."""
CLOSE_S = 3.0
"""How long a close then waits for connections."""

UNKNOWN_STATEMENT = "26000"
"""The SQLSTATE after a pooler has lost a prepared statement."""

TIMED_OUT = "the database does not answer in time"

# A writer of SQLite takes the lock at once: after a read in the same transaction, SQLite would
# refuse it.
_BEGIN = {"sqlite": ("BEGIN IMMEDIATE",), "postgresql": ("BEGIN",)}

log = logging.getLogger(__name__)

Values = Mapping[str, Any]
SqlStatement = tuple[Executable, Values]
T = TypeVar("T")


class Database:
    """
    Runs statements, each in its own transaction except in `change_both`; raises StoreUnavailable.

    A statement runs in a task of its own, which continues if the caller leaves. A cancelled
    statement would cost its connection, and clients that come and go would make the server connect
    again and again. *interruptible* says whether the driver can cancel a late statement. The driver
    of SQLite cannot, because the statement runs in a thread. That statement ends by itself, and its
    caller gets the error in time.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        interruptible: bool,
        errors: tuple[type[Exception], ...] = (),
    ) -> None:
        """
        Create the database; *errors* are exceptions of the driver that SQLAlchemy may let through.
        """
        self.engine = engine
        self.dialect = engine.dialect.name
        self.replaced_before = 0.0
        """
        A connection whose last statement began before this time (`time.monotonic`) is replaced
        before it is used again, because its server may be gone.
        """
        self._interruptible, self._errors = interruptible, errors
        self._running: set[asyncio.Task[Any]] = set()

    async def rows(self, statement: Executable, values: Values) -> Sequence[Row[Any]]:
        """Return the rows of a SELECT, or of a change with RETURNING."""
        return (await self.run_in_task(self._execute(statement, values))).all()

    async def change(self, statement: Executable, values: Values) -> int:
        """Change rows durably and return their number."""
        return (await self.run_in_task(self._execute(statement, values))).rowcount

    async def change_both(self, first: SqlStatement, second: SqlStatement) -> int:
        """
        Execute *first* and, if it changed any rows, *second*, durably in one transaction.

        Return the number of rows that *first* changed.
        """
        return await self.run_in_task(self._execute_both(first, second))

    async def run_sync(self, at: Callable[[Connection], T]) -> T:
        """Call *at* with a connection and return its result."""
        return await self.run_in_task(self._run_sync(at))

    async def run_in_task(
        self, work: Coroutine[Any, Any, T], *, within_s: float | None = None
    ) -> T:
        """Run *work* in a task of its own and return its result, by default within `ANSWER_S`."""
        within_s = ANSWER_S if within_s is None else within_s
        task = asyncio.create_task(self._bounded(work, within_s))
        self._running.add(task)
        task.add_done_callback(self._over)
        # A driver may hang although it was told to stop: the caller waits no longer than this.
        waits_s = within_s + GIVE_UP_S if self._interruptible else within_s
        finished, _ = await asyncio.wait([task], timeout=waits_s)
        if not finished:
            raise StoreUnavailable(TIMED_OUT)
        if task.cancelled():
            # The caller was not cancelled, so it must not be ended by this cancellation.
            raise StoreUnavailable("the database does not serve: CancelledError")
        return task.result()

    @contextlib.asynccontextmanager
    async def transaction(self, *begin: str) -> AsyncIterator[AsyncConnection]:
        """
        Run a block in a transaction on one connection.

        If it fails, the connection is closed, and the database rolls back by itself. A ROLLBACK on
        a lost connection fails or hangs. A connection that returned to the pool within a
        transaction would take the next caller's statements into it.
        """
        async with self.engine.connect() as connection, contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._discard, connection)
            for statement in begin or _BEGIN[self.dialect]:
                await connection.exec_driver_sql(statement)
            yield connection
            await connection.exec_driver_sql("COMMIT")
            undo.pop_all()

    async def _discard(self, connection: AsyncConnection) -> None:
        """Close a connection without sending anything, because it may be lost."""
        if connection.invalidated:
            return
        if self._interruptible:
            raw: Any = (await connection.get_raw_connection()).driver_connection
            raw.terminate()
        await connection.invalidate()

    async def aclose(self) -> None:
        """Wait for running statements, then close the connections, both within a deadline."""
        if self._running:
            await asyncio.wait(self._running, timeout=OVER_S)
        if self._running:
            # A thread runs a statement that cannot be stopped. The process ends without waiting for
            # it.
            log.warning("database_not_closed", extra={"reason": TIMED_OUT})
            return
        timeout = CLOSE_S
        while True:
            try:
                async with asyncio.timeout(timeout if self._interruptible else None):
                    await self.engine.dispose()
                    return
            except TimeoutError:
                # This drops one connection; the others are closed at once.
                timeout = 0.0

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            # The caller may have left. Then no other code retrieves the exception.
            task.exception()

    async def _run_sync(self, at: Callable[[Connection], T]) -> T:
        async with self.engine.connect() as connection:
            return await connection.run_sync(at)

    async def _execute(self, statement: Executable, values: Values) -> CursorResult[Any]:
        async with self.engine.connect() as connection:
            return await connection.execute(statement, values)

    async def _execute_both(self, first: SqlStatement, second: SqlStatement) -> int:
        async with self.transaction() as connection:
            changed = (await connection.execute(*first)).rowcount
            if changed:
                await connection.execute(*second)
        return changed

    async def _bounded(self, work: Coroutine[Any, Any, T], within_s: float) -> T:
        began = time.monotonic()
        with answering(self._errors):
            try:
                async with asyncio.timeout(within_s if self._interruptible else None):
                    return await work
            except TimeoutError:
                # If packets vanish, each pooled connection would cost a statement this wait.
                self.replaced_before = max(self.replaced_before, began)
                raise


def engine_of(url: URL, *, connections: int, **options: Any) -> AsyncEngine:
    """Return an engine in autocommit mode whose errors and logs contain no values."""
    return create_async_engine(
        url,
        isolation_level="AUTOCOMMIT",
        skip_autocommit_rollback=True,
        pool_reset_on_return=None,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=ANSWER_S,
        hide_parameters=True,
        **options,
    )


@contextlib.contextmanager
def answering(errors: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """
    Raise StoreUnavailable for an error of SQLAlchemy, of the connection, or among *errors*.

    Its message holds no secret.
    """
    # This includes SQLAlchemy's error for a connection that was lost within a transaction.
    error_types: tuple[type[Exception], ...] = (SQLAlchemyError, *errors)
    try:
        yield
    except IntegrityError:
        # This is no outage: our statement violates a constraint.
        raise
    except DBAPIError as error:
        raise StoreUnavailable(error_summary(error.orig or error)) from None
    except PoolExhausted:
        raise StoreUnavailable("the database is busy: no connection was free in time") from None
    except TimeoutError:
        raise StoreUnavailable(TIMED_OUT) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StoreUnavailable(f"the database cannot be reached: {reason}") from None
    except error_types as error:
        raise StoreUnavailable(error_summary(error)) from None


def error_summary(error: BaseException) -> str:
    """Describe an error by its name and code, because its text may contain values."""
    cause = error.__cause__ or error
    code = getattr(cause, "sqlstate", None) or getattr(cause, "sqlite_errorname", None)
    name = type(cause).__name__
    hint = ": set pool_mode=transaction in its URL" if code == UNKNOWN_STATEMENT else ""
    return f"the database does not serve: {name}" + (f" ({code})" if code else "") + hint
