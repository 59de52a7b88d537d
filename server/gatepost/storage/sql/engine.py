"""
SQLAlchemy's Core on an asynchronous driver.

`sqlalchemy.ext.asyncio` has the same classes with the same names. It imports the ORM, which
Gatepost does not use: a tenth of a start with a database, and 7 MB of each process.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sqlalchemy import (
    URL,
    Connection,
    CursorResult,
    Dialect,
    Executable,
    PoolProxiedConnection,
    create_engine,
)
from sqlalchemy.util import greenlet_spawn

Found = TypeVar("Found")


class AsyncConnection:
    """A connection whose statements are awaited; each result is in memory when it is returned."""

    __slots__ = ("_connection", "dialect")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.dialect: Dialect = connection.dialect

    @property
    def invalidated(self) -> bool:
        """Whether the connection was lost or dropped."""
        return self._connection.invalidated

    async def execute(self, statement: Executable, values: Any = None) -> CursorResult[Any]:
        """Run a statement with one set of values, or once with each of several."""
        return await greenlet_spawn(self._connection.execute, statement, values)

    async def exec_driver_sql(self, statement: str, values: Any = None) -> CursorResult[Any]:
        """Run a statement in the dialect of the driver."""
        return await greenlet_spawn(self._connection.exec_driver_sql, statement, values)

    async def run_sync(self, work: Callable[..., Found], *arguments: Any) -> Found:
        """Call *work* with the synchronous connection and return its result."""
        return await greenlet_spawn(work, self._connection, *arguments)

    async def get_raw_connection(self) -> PoolProxiedConnection:
        """Return the pool's connection, which has that of the driver."""
        return await greenlet_spawn(getattr, self._connection, "connection")

    async def invalidate(self) -> None:
        """Drop the connection of the driver; the pool makes another one."""
        await greenlet_spawn(self._connection.invalidate)


class AsyncEngine:
    """
    The connections to a database, in a pool.

    *async_creator* makes a connection of the driver; default: the driver, from the URL.
    """

    def __init__(
        self,
        url: URL,
        *,
        async_creator: Callable[[], Awaitable[object]] | None = None,
        **options: Any,
    ) -> None:
        if async_creator is not None:
            options["creator"] = lambda: self.dialect.loaded_dbapi.connect(
                async_creator_fn=async_creator
            )
        self.sync_engine = create_engine(url, **options)
        self.url = self.sync_engine.url
        self.dialect: Dialect = self.sync_engine.dialect

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        """Take a connection from the pool for the time of a block."""
        connection = await greenlet_spawn(self.sync_engine.connect)
        try:
            yield AsyncConnection(connection)
        finally:
            # Returned although the caller is cancelled; else the pool would lose it.
            closing = asyncio.create_task(greenlet_spawn(connection.close))
            await asyncio.shield(closing)

    async def dispose(self) -> None:
        """Close the connections that are in the pool."""
        await greenlet_spawn(self.sync_engine.dispose)
