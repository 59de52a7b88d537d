"""A PostgreSQL database; needs the `postgres` extra."""

import contextlib
import secrets
import time
from itertools import count
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg  # type: ignore[import-untyped]  # the package has no types
from sqlalchemy import URL, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DisconnectionError

from gatepost.storage.errors import StoreRefused, StoreUnavailable
from gatepost.storage.sql.database import ANSWER_S, STATEMENT_MS, Database, engine_of, error_summary

CONNECTIONS = 9
"""The connections of the pool, beside the one that audit records are written with."""
RECYCLE_S = 1800
STATEMENTS = 100
"""The number of prepared statements that a connection keeps."""
# An acknowledged write is on disk, whatever the role or the server has as its default.
SESSION_SETTINGS = f"SET statement_timeout = {STATEMENT_MS}; SET synchronous_commit = on"
READ_ONLY = "25006"
"""The SQLSTATE of a write to a server that is read-only: a standby, or one that has become one."""
CONNECTION_CLOSED = ("08", "57P")
"""The prefixes of SQLSTATEs after which a connection is closed."""


POOL_MODE = "pool_mode"
POOL_MODES = ("session", "transaction")


class PostgresDatabase(Database):
    """
    A database behind a URL, as libpq reads it; it connects lazily.

    With ``pool_mode=transaction`` in the URL, a connection leads to another session for each
    transaction. So it sets nothing for the session, and its statements have no names.
    """

    def __init__(self, url: str) -> None:
        self._url, mode = _split(url)
        self.is_pooled = mode == "transaction"
        names, process = count(1), secrets.token_hex(6)
        engine = engine_of(
            URL.create("postgresql+asyncpg"),
            connections=CONNECTIONS,
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
        )
        errors = (asyncpg.PostgresError, asyncpg.InterfaceError)
        super().__init__(engine, interruptible=True, errors=errors)
        _watch(self)

    async def connect(self, **_: object) -> asyncpg.Connection:
        """Return a new connection of the driver; raises StoreUnavailable."""
        try:
            return await self._connected()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
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


def _watch(database: Database) -> None:
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
        state = getattr(context.original_exception, "sqlstate", None) or ""
        if state == READ_ONLY:
            # After a failover, the connections lead to a server that no longer accepts writes.
            database.replaced_before = time.monotonic()
        if state == READ_ONLY or state.startswith(CONNECTION_CLOSED):
            # The server reports the end before it closes the connection, and the driver has not
            # seen that yet.
            context.is_disconnect = True
            context.invalidate_pool_on_disconnect = False
