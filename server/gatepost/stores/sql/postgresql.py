"""A PostgreSQL as a database; needs the `postgres` extra."""

from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it has no types
from sqlalchemy import URL, event
from sqlalchemy.exc import DisconnectionError

from gatepost.stores.api import StoreUnavailable
from gatepost.stores.sql.database import ANSWER_S, STATEMENT_MS, Database, engine_of, told

CONNECTIONS = 10
RECYCLE_S = 1800
# Acknowledged means on disk, whatever the role or the server has as its default.
SETTLE = f"SET statement_timeout = {STATEMENT_MS}; SET synchronous_commit = on"


def database(url: str) -> Database:
    """The database of a `postgresql://` URL, as libpq reads it; connects when first used."""

    async def connect() -> asyncpg.Connection:
        try:
            connection = await asyncpg.connect(url, timeout=ANSWER_S)
            await connection.execute(SETTLE)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
            # Not its text: that may repeat the address, and with it the password.
            raise StoreUnavailable(told(error)) from None
        return connection

    engine = engine_of(
        URL.create("postgresql+asyncpg"),
        connections=CONNECTIONS,
        async_creator=connect,
        pool_recycle=RECYCLE_S,
    )

    @event.listens_for(engine.sync_engine, "checkout")
    def live(connection: Any, *_: object) -> None:
        # Noticed while it lay in the pool: the server has restarted. Costs no round trip.
        if connection.driver_connection.is_closed():
            raise DisconnectionError

    return Database(engine, interruptible=True)
