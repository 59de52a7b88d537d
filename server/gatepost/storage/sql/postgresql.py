"""A PostgreSQL database; needs the `postgres` extra."""

import contextlib
import time
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it has no types
from sqlalchemy import URL, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DisconnectionError

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql.database import ANSWER_S, STATEMENT_MS, Database, engine_of, told

CONNECTIONS = 10
RECYCLE_S = 1800
# Acknowledged means on disk, whatever the role or the server has as its default.
SETTLE = f"SET statement_timeout = {STATEMENT_MS}; SET synchronous_commit = on"
READ_ONLY = "25006"
"""SQLSTATE of a write on a server that only reads: a standby, or one that has become one."""
ENDED = ("08", "57P")
"""The prefixes of SQLSTATEs after which a connection is closed."""


def database(url: str) -> Database:
    """Return the database of a `postgresql://` URL, as libpq reads it; it connects lazily."""

    async def connect() -> asyncpg.Connection:
        try:
            return await _connected(url)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
            # Not its text: that may repeat the address, and with it the password.
            raise StoreUnavailable(told(error)) from None

    engine = engine_of(
        URL.create("postgresql+asyncpg"),
        connections=CONNECTIONS,
        async_creator=connect,
        pool_recycle=RECYCLE_S,
    )
    errors = (asyncpg.PostgresError, asyncpg.InterfaceError)
    made = Database(engine, interruptible=True, errors=errors)
    _watch(made)
    return made


async def _connected(url: str) -> asyncpg.Connection:
    connection = await asyncpg.connect(url, timeout=ANSWER_S)
    with contextlib.ExitStack() as undo:
        undo.callback(connection.terminate)
        await connection.execute(SETTLE)
        undo.pop_all()
    return connection


def _watch(database: Database) -> None:
    """Check connections before they are used, so that no statement meets a lost one."""
    engine = database.engine.sync_engine

    @event.listens_for(engine, "checkin")
    def served(connection: Any, record: Any) -> None:
        record.info["served"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def live(connection: Any, record: Any, proxy: object) -> None:
        # Noticed while it lay in the pool: the server has restarted. Costs no round trip.
        driver = connection.driver_connection
        if record.info.get("served", database.doubted) < database.doubted:
            driver.terminate()
        if driver.is_closed():
            raise DisconnectionError

    @event.listens_for(engine, "handle_error")
    def failed(context: ExceptionContext) -> None:
        state = getattr(context.original_exception, "sqlstate", None) or ""
        if state == READ_ONLY:
            # After a failover: the connections lead to a server that takes nothing any more.
            database.doubted = time.monotonic()
        if state == READ_ONLY or state.startswith(ENDED):
            # The word of the end comes before the end itself, and the driver has not seen that yet.
            context.is_disconnect = True
            context.invalidate_pool_on_disconnect = False
