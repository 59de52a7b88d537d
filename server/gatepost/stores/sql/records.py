"""All records of one database."""

import contextlib
import importlib

import structlog
from sqlalchemy import Delete, Table, bindparam, delete, select, text, tuple_

from gatepost.stores.api import StoreRefused
from gatepost.stores.notices import Notice
from gatepost.stores.sql import schema, sqlite
from gatepost.stores.sql.approvals import SqlApprovals, overdue
from gatepost.stores.sql.audit import SqlScribe, SqlTrail
from gatepost.stores.sql.claims import SqlClaims
from gatepost.stores.sql.cutoffs import SqlCutoffs
from gatepost.stores.sql.database import Database
from gatepost.stores.sql.entries import SqlEntries, tenants
from gatepost.stores.sql.estate import SqlEstate
from gatepost.stores.sql.grants import SqlGrants
from gatepost.stores.sql.notices import SqlNotices, claimed
from gatepost.stores.sql.scribe import SqliteScribe
from gatepost.stores.sql.sessions import SqlSessions
from gatepost.stores.sql.tables import METADATA
from gatepost.stores.sql.tasks import SqlTasks, abandoned

log = structlog.get_logger("gatepost.database")

BATCH = 500
"""Rows that go with one statement of a sweep, so that it never holds others up for long."""

_PING = text("SELECT 1")


def _sweep(table: Table) -> Delete:
    keys = list(table.primary_key)
    over = table.c.expires_at <= bindparam("now")
    # Whoever sweeps the same rows elsewhere is left alone (PostgreSQL; SQLite has one writer).
    batch = select(*keys).where(over).limit(BATCH).with_for_update(skip_locked=True)
    return delete(table).where(tuple_(*keys).in_(batch), over)


_SWEEPS = [_sweep(table) for table in METADATA.sorted_tables if "expires_at" in table.c]


class SqlRecords:
    """See `Records`."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.cutoffs = SqlCutoffs(database)
        self.estate = SqlEstate(database)
        path = database.engine.url.database
        self.scribe = SqlScribe(database)
        if database.dialect == "sqlite" and path is not None:
            self.scribe = SqliteScribe(database, path)

    def of(self, tenant: str) -> "SqlTenant":
        """See `Records`."""
        return SqlTenant(self.database, tenant)

    async def abandoned_tasks(self, now: float, limit: int) -> list[tuple[str, str]]:
        """See `Records`."""
        return await abandoned(self.database, now, limit)

    async def overdue_approvals(self, now: float, limit: int) -> list[tuple[str, str]]:
        """See `Records`."""
        return await overdue(self.database, now, limit)

    async def claim_notices(
        self, now: float, until: float, holder: str, most: int
    ) -> list[tuple[str, Notice]]:
        """See `Records`."""
        return await claimed(self.database, now, until, holder, most)

    async def tenants(self, subject: str) -> list[str]:
        """See `Records`."""
        return await tenants(self.database, subject)

    async def sweep(self, now: float) -> int:
        """See `Records`."""
        gone = 0
        for statement in _SWEEPS:
            while swept := await self.database.change(statement, {"now": now}):
                gone += swept
        return gone

    async def ping(self) -> None:
        """See `Records`."""
        await self.database.rows(_PING, {})

    async def aclose(self) -> None:
        """See `Records`."""
        await self.scribe.aclose()
        await self.database.aclose()


class SqlTenant:
    """One tenant's records; every statement of them names the tenant."""

    __slots__ = ("_database", "_tenant", "claims", "sessions", "tasks", "trail")

    def __init__(self, database: Database, tenant: str) -> None:
        self._database, self._tenant = database, tenant
        self.tasks = SqlTasks(database, tenant)
        self.claims = SqlClaims(database, tenant)
        self.sessions = SqlSessions(database, tenant)
        self.trail = SqlTrail(database, tenant)

    @property
    def approvals(self) -> SqlApprovals:
        """See `TenantRecords`."""
        return SqlApprovals(self._database, self._tenant)

    @property
    def grants(self) -> SqlGrants:
        """See `TenantRecords`."""
        return SqlGrants(self._database, self._tenant)

    @property
    def notices(self) -> SqlNotices:
        """See `TenantRecords`."""
        return SqlNotices(self._database, self._tenant)

    def entries(self, subject: str) -> SqlEntries:
        """See `TenantRecords`."""
        return SqlEntries(self._database, self._tenant, subject)


async def opened(url: str) -> SqlRecords:
    """
    The records behind a URL, with the schema this code needs.

    A SQLite file is brought up to date; PostgreSQL is the operator's. Raises StoreRefused and
    StoreUnavailable.
    """
    database = database_of(url)
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(database.aclose)
        if url.startswith(sqlite.SCHEME):
            move = await schema.make(database)
            if move.before != move.after:
                log.info("database_migrated", before=move.before, after=move.after)
        else:
            await schema.check(database)
        undo.pop_all()
    return SqlRecords(database)


async def check(url: str) -> None:
    """Raise StoreRefused unless the database is at our revision; it is left as it is."""
    if url.startswith(sqlite.SCHEME) and not sqlite.exists(url):
        # To look at it would make it.
        raise StoreRefused(schema.behind(None))
    database = database_of(url)
    async with contextlib.aclosing(database):
        await schema.check(database)


async def migrate(url: str) -> schema.Move:
    """Bring a database to our revision; raises StoreRefused and StoreUnavailable."""
    database = database_of(url)
    async with contextlib.aclosing(database):
        return await schema.migrate(database)


def database_of(url: str) -> Database:
    """The database behind a URL, whatever its schema."""
    if url.startswith(sqlite.SCHEME):
        return sqlite.database(url)
    # By name: its driver is an extra.
    driver = importlib.import_module("gatepost.stores.sql.postgresql")
    made: Database = driver.database(url)
    return made
