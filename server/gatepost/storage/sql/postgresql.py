"""A PostgreSQL database; needs the `postgres` extra."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import count
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg  # type: ignore[import-untyped]  # the package has no types
from sqlalchemy import URL, Connection, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.util import await_only

from gatepost.storage.errors import StoreRefused, StoreUnavailable
from gatepost.storage.sql.async_engine import AsyncConnection, create_async_engine
from gatepost.storage.sql.database import (
    ANSWER_S,
    OVER_S,
    STATEMENT_MS,
    TIMED_OUT,
    Database,
    T,
    Ts,
    answering,
    deadline_s,
    engine_options,
    error_summary,
)

CONNECTIONS = 9
"""The connections of the pool, beside the one that audit records are written with."""
RECYCLE_S = 1800
GIVE_UP_S = 3.0
"""How long the driver may take to cancel a late statement."""
CLOSE_S = 3.0
"""How long a close waits for connections, after the statements."""
STATEMENTS = 100
"""The number of prepared statements that a connection keeps."""
# An acknowledged write is on disk, whatever the role or the server has as its default.
SESSION_SETTINGS = f"SET statement_timeout = {STATEMENT_MS}; SET synchronous_commit = on"
READ_ONLY = "25006"
"""The SQLSTATE of a write to a server that is read-only: a standby, or one that has become one."""
CONNECTION_CLOSED = ("08", "57P")
"""The prefixes of SQLSTATEs after which a connection is closed."""
DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""
What a statement of the driver may raise.

The last is raised for a connection whose server has reported its end and not closed it yet.
"""

POOL_MODE = "pool_mode"
POOL_MODES = ("session", "transaction")


class PostgresDatabase(Database):
    """
    A database behind a URL, as libpq reads it; it connects lazily.

    A statement runs in a task of its own, which continues if the caller leaves. A cancelled
    statement would cost its connection, and clients that come and go would make the server connect
    again and again.

    With ``pool_mode=transaction`` in the URL, a connection leads to another session for each
    transaction. So it sets nothing for the session, and its statements have no names.
    """

    dialect = "postgresql"

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url, mode = _split(url)
        self.is_pooled = mode == "transaction"
        names, process = count(1), secrets.token_hex(6)
        self.engine = create_async_engine(
            URL.create("postgresql+asyncpg"),
            pool_size=CONNECTIONS,
            pool_recycle=RECYCLE_S,
            connect_args={
                "async_creator_fn": self.connect,
                "prepared_statement_cache_size": 0 if self.is_pooled else STATEMENTS,
                # The driver numbers the statements of each process from 1. Behind a pooler, such a
                # name may belong to a statement of another process.
                "prepared_statement_name_func": lambda: (
                    "" if self.is_pooled else f"gatepost_{process}_{next(names)}"
                ),
            },
            **engine_options(),
        )
        self.replaced_before = 0.0
        """
        A connection whose last statement began before this time (`time.monotonic`) is replaced
        before it is used again, because its server may be gone.
        """
        self._running: set[asyncio.Task[Any]] = set()
        _watch(self)

    async def transaction(
        self, at: Callable[[Connection], T], *, within_s: float | None = None
    ) -> T:
        """Implement `Database`."""
        return await self.run_in_task(self._run_in_transaction(at), within_s=within_s)

    def compute(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Implement `Database`."""
        return await_only(asyncio.to_thread(function, *arguments))

    async def run_in_task(
        self, work: Coroutine[Any, Any, T], *, within_s: float | None = None
    ) -> T:
        """Run *work* in a task of its own and return its result, by default within `ANSWER_S`."""
        within_s = deadline_s(within_s)
        task = asyncio.create_task(self._bounded(work, within_s))
        self._running.add(task)
        task.add_done_callback(self._over)
        # A driver may hang although it was told to stop: the caller waits no longer than this.
        finished, _ = await asyncio.wait([task], timeout=within_s + GIVE_UP_S)
        if not finished:
            raise StoreUnavailable(TIMED_OUT)
        if task.cancelled():
            # The caller was not cancelled, so it must not be ended by this cancellation.
            raise StoreUnavailable("the database does not serve: CancelledError")
        return task.result()

    @contextlib.asynccontextmanager
    async def open_transaction(self) -> AsyncIterator[AsyncConnection]:
        """
        Run a block in a transaction on one connection.

        If it fails, the connection is closed, and the database rolls back by itself. A ROLLBACK on
        a lost connection fails or hangs. A connection that returned to the pool within a
        transaction would take the next caller's statements into it.
        """
        async with self.engine.connect() as connection, contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(_discard, connection)
            await connection.exec_driver_sql("BEGIN")
            yield connection
            await connection.exec_driver_sql("COMMIT")
            undo.pop_all()

    def replace_connections_after(self, error: BaseException) -> bool:
        """
        Return whether *error* ended a connection; then all are replaced before they are used.

        The server has reported its end and closes it a moment later, or accepts no writes since a
        failover. The other connections lead to the same server.
        """
        state = getattr(error, "sqlstate", None) or ""
        is_lost = isinstance(error, asyncpg.InternalClientError)
        if is_lost or state == READ_ONLY or state.startswith(CONNECTION_CLOSED):
            self.replaced_before = time.monotonic()
            return True
        return False

    async def aclose(self) -> None:
        """Implement `Database`."""
        if self._running:
            await asyncio.wait(self._running, timeout=OVER_S)
        timeout = CLOSE_S
        while True:
            try:
                async with asyncio.timeout(timeout):
                    await self.engine.dispose()
                    return
            except TimeoutError:
                # This drops one connection; the others are closed at once.
                timeout = 0.0

    async def _run(
        self, at: Callable[[Connection], T], *, within_s: float, is_change: bool = False
    ) -> T:
        # In autocommit mode, a single statement is a transaction without a BEGIN and a COMMIT.
        return await self.run_in_task(self._run_sync(at), within_s=within_s)

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            # The caller may have left. Then no other code retrieves the exception.
            task.exception()

    async def _run_sync(self, at: Callable[[Connection], T]) -> T:
        async with self.engine.connect() as connection:
            return await connection.run_sync(at)

    async def _run_in_transaction(self, at: Callable[[Connection], T]) -> T:
        async with self.open_transaction() as connection:
            return await connection.run_sync(at)

    async def _bounded(self, work: Coroutine[Any, Any, T], within_s: float) -> T:
        began = time.monotonic()
        with answering(DRIVER_ERRORS):
            try:
                async with asyncio.timeout(within_s):
                    return await work
            except TimeoutError:
                # If packets vanish, each pooled connection would cost a statement this wait.
                self.replaced_before = max(self.replaced_before, began)
                raise

    async def connect(self, **_: object) -> asyncpg.Connection:
        """Return a new connection of the driver; raises StoreUnavailable."""
        try:
            return await self._connected()
        except (*DRIVER_ERRORS, ValueError) as error:
            # Do not log the text: it may repeat the address, and with it the password.
            raise StoreUnavailable(error_summary(error)) from None

    async def _connected(self) -> asyncpg.Connection:
        # The driver's own cache is off, because its statements have names that another process uses
        # as well.
        connection = await asyncpg.connect(self._url, timeout=ANSWER_S, statement_cache_size=0)
        if self.is_pooled:
            return connection
        with contextlib.ExitStack() as undo:
            undo.callback(connection.terminate)
            await connection.execute(SESSION_SETTINGS)
            undo.pop_all()
        return connection


async def _discard(connection: AsyncConnection) -> None:
    """Close a connection without sending anything, because it may be lost."""
    if connection.invalidated:
        return
    raw: Any = (await connection.get_raw_connection()).driver_connection
    raw.terminate()
    await connection.invalidate()


def database(url: str) -> PostgresDatabase:
    """Return the database of a `postgresql://` URL; raises StoreRefused."""
    return PostgresDatabase(url)


def _split(url: str) -> tuple[str, str]:
    """Return the URL for the driver, and the pool mode."""
    parts = urlsplit(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    modes = [value for name, value in options if name == POOL_MODE]
    if not modes:
        return url, POOL_MODES[0]
    if (mode := modes[-1]) not in POOL_MODES:
        raise StoreRefused(f"`{POOL_MODE}` in the database's URL must be session or transaction")
    other_options = [option for option in options if option[0] != POOL_MODE]
    return parts._replace(query=urlencode(other_options)).geturl(), mode


def _watch(database: PostgresDatabase) -> None:
    """Check connections before they are used, so that no statement meets a lost one."""
    engine = database.engine.sync_engine

    @event.listens_for(engine, "checkin")
    def served(connection: Any, record: Any) -> None:
        record.info["served"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def live(connection: Any, record: Any, proxy: object) -> None:
        # The connection was lost while it lay in the pool, because the server has restarted. This
        # check costs no round trip.
        driver = connection.driver_connection
        if record.info.get("served", database.replaced_before) < database.replaced_before:
            driver.terminate()
        if driver.is_closed():
            raise DisconnectionError

    @event.listens_for(engine, "handle_error")
    def failed(context: ExceptionContext) -> None:
        error = context.original_exception
        if database.replace_connections_after(error.__cause__ or error):
            # The driver has not seen the connection closed yet.
            context.is_disconnect = True
            context.invalidate_pool_on_disconnect = False
