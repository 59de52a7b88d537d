"""One database: its connections, its statements with a deadline, and its errors told as ours."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, CursorResult, Executable, Row
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from gatepost.stores.api import StoreUnavailable

ANSWER_S = 6.0
"""Waiting for a connection, connecting and the statement together."""
STATEMENT_MS = 5_000
"""What the server, or SQLite's wait for its lock, may take; ends before nobody listens."""

Values = Mapping[str, Any]
Found = TypeVar("Found")


class Database:
    """Statements, each a transaction of its own; raises StoreUnavailable."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.dialect = engine.dialect.name
        self._running: set[asyncio.Task[CursorResult[Any]]] = set()

    async def rows(self, statement: Executable, values: Values) -> Sequence[Row[Any]]:
        """What a SELECT finds."""
        return (await self._run(statement, values)).all()

    async def change(self, statement: Executable, values: Values) -> int:
        """How many rows a statement changed, durably."""
        return (await self._run(statement, values)).rowcount

    async def look(self, at: Callable[[Connection], Found]) -> Found:
        """What *at* finds, which asks for more than one statement can."""
        with answering():
            async with asyncio.timeout(ANSWER_S), self.engine.connect() as connection:
                return await connection.run_sync(at)

    async def aclose(self) -> None:
        """Close its connections, once the statements are over that run on them."""
        if self._running:
            await asyncio.wait(self._running)
        await self.engine.dispose()

    async def _run(self, statement: Executable, values: Values) -> CursorResult[Any]:
        # In a task of its own: a connection whose statement is cancelled has to be thrown away,
        # and clients that come and go would have us connect all the time.
        task = asyncio.create_task(self._execute(statement, values))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _execute(self, statement: Executable, values: Values) -> CursorResult[Any]:
        with answering():
            async with asyncio.timeout(ANSWER_S), self.engine.connect() as connection:
                return await connection.execute(statement, values)


def engine_of(url: URL, *, connections: int, **options: Any) -> AsyncEngine:
    """An engine whose statements are transactions of their own and never tell their values."""
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
def answering() -> Iterator[None]:
    """Tell a driver's errors as StoreUnavailable; what is in the message is no secret."""
    try:
        yield
    except IntegrityError:
        # No outage: we have asked for something that cannot be.
        raise
    except DBAPIError as error:
        raise StoreUnavailable(told(error.orig or error)) from None
    except PoolExhausted:
        raise StoreUnavailable("the database is busy: no connection was free in time") from None
    except TimeoutError:
        raise StoreUnavailable("the database does not answer in time") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StoreUnavailable(f"the database cannot be reached: {reason}") from None


def told(error: BaseException) -> str:
    """An error by its name and code: its text might repeat a row or an address."""
    cause = error.__cause__ or error
    code = getattr(cause, "sqlstate", None) or getattr(cause, "sqlite_errorname", None)
    name = type(cause).__name__
    return f"the database does not serve: {name}" + (f" ({code})" if code else "")
