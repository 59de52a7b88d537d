"""All records of one database."""

import contextlib
import importlib
import logging
from collections.abc import Collection, Mapping, Set
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Delete,
    Select,
    Table,
    bindparam,
    delete,
    func,
    select,
    text,
    tuple_,
    union_all,
)

from gatepost.storage.audit import Linker
from gatepost.storage.entries import Entry, EntryValue
from gatepost.storage.errors import StoreRefused
from gatepost.storage.outbox import OutboxMessage
from gatepost.storage.sql import database_schema, sqlite_links
from gatepost.storage.sql.approvals import SqlApprovals, overdue, waiting_of
from gatepost.storage.sql.audit import SqlAuditStore
from gatepost.storage.sql.database import Database
from gatepost.storage.sql.entries import (
    SqlEntries,
    changes,
    entries_of,
    latest,
    replace_entries,
    tenants,
)
from gatepost.storage.sql.grants import SqlGrants
from gatepost.storage.sql.idempotency import SqlIdempotency
from gatepost.storage.sql.outbox import SqlOutbox, leased
from gatepost.storage.sql.revocations import SqlRevocations
from gatepost.storage.sql.sessions import SqlSessions
from gatepost.storage.sql.sqlite_audit_writer import SqliteAuditStore
from gatepost.storage.sql.sqlite_database import SqliteDatabase
from gatepost.storage.sql.tables import IDEMPOTENCY_RECORDS, METADATA, TASKS
from gatepost.storage.sql.tasks import SqlTasks, abandoned
from gatepost.storage.sql.tenant_data import SqlTenantData
from gatepost.storage.sqlite_file import SCHEME, exists, path_of
from gatepost.storage.stored_bytes import StoredUsage

log = logging.getLogger(__name__)

BATCH = 500
"""The rows that one statement of a sweep removes, so that other statements do not wait for long."""

_PING = text("SELECT 1")


def _sweep(table: Table) -> Delete:
    keys = list(table.primary_key)
    is_expired = table.c.expires_at <= bindparam("now")
    # Rows that another process sweeps are skipped (PostgreSQL; SQLite has one writer).
    batch = select(*keys).where(is_expired).limit(BATCH).with_for_update(skip_locked=True)
    return delete(table).where(tuple_(*keys).in_(batch), is_expired)


_SWEEPS = [_sweep(table) for table in METADATA.sorted_tables if "expires_at" in table.c]


def _sums(*, of_owner: bool) -> Any:
    return union_all(*(_sum(table, of_owner=of_owner) for table in (IDEMPOTENCY_RECORDS, TASKS)))


def _sum(table: Table, *, of_owner: bool) -> Select[Any]:
    conditions: list[ColumnElement[bool]] = [
        table.c.tenant == bindparam("where_tenant"),
        table.c.expires_at > bindparam("now"),
    ]
    if of_owner:
        conditions.append(table.c.owner == bindparam("where_owner"))
    return select(
        func.coalesce(func.sum(table.c.bytes), 0).label("taken"),
        func.min(table.c.expires_at).label("until"),
    ).where(*conditions)


_OF_ALL, _OF_ONE = _sums(of_owner=False), _sums(of_owner=True)


def _audit_store(database: Database, linker: Linker | None) -> SqlAuditStore:
    if isinstance(database, SqliteDatabase):
        return SqliteAuditStore(database, database.path, linker)
    # Imported here, because a SQLite file does not need it.
    module = importlib.import_module("gatepost.storage.sql.postgresql_audit_writer")
    store: SqlAuditStore = module.PostgresAuditStore(database)
    return store


class SqlRecords:
    """The `Records` of an SQL database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.revocations = SqlRevocations(database)
        self.tenant_data = SqlTenantData(database)
        self._audit_stores: list[SqlAuditStore] = []

    def for_tenant(self, tenant: str) -> "SqlTenant":
        """Return the stores of one tenant."""
        return SqlTenant(self.database, tenant)

    def open_audit(self, linker: Linker | None) -> SqlAuditStore:
        """Open the audit log; it is closed with these records."""
        self._audit_stores.append(store := _audit_store(self.database, linker))
        return store

    async def abandoned_tasks(self, now: float, limit: int) -> list[tuple[str, str]]:
        """Return tenant and id of tasks that have not ended and whose lease is over."""
        return await abandoned(self.database, now, limit)

    async def overdue_approvals(self, now: float, limit: int) -> list[tuple[str, str]]:
        """Return tenant and id of requests that were not decided, or not used, in time."""
        return await overdue(self.database, now, limit)

    async def waiting_approvals(self, keys: Set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return those of these requests that wait; a key is a tenant and an id."""
        return await waiting_of(self.database, keys)

    async def lease_messages(
        self, now: float, until: float, holder: str, limit: int
    ) -> list[tuple[str, OutboxMessage]]:
        """Lease due messages of all tenants to *holder*, *until* then."""
        return await leased(self.database, now, until, holder, limit)

    async def tenants(self, subject: str) -> list[str]:
        """Return the tenants that have an entry of that subject."""
        return await tenants(self.database, subject)

    async def latest(self, subject: str, key: str, limit: int) -> list[tuple[str, Entry]]:
        """Return the entries of all tenants with that key and their tenant, the newest first."""
        return await latest(self.database, subject, key, limit)

    async def changes(self, subjects: Collection[str]) -> dict[str, int]:
        """Return the change counters of subjects, in one cheap statement."""
        return await changes(self.database, subjects)

    async def entries_of(self, tenants: Collection[str], subject: str) -> dict[str, list[Entry]]:
        """Return the entries of a subject of several tenants; those that have none are left out."""
        return await entries_of(self.database, tenants, subject)

    async def replace_entries(
        self, subject: str, key: str, values: Mapping[str, EntryValue], *, now: float, until: float
    ) -> set[str]:
        """Store values under *key* for several tenants; return those whose entry has the value."""
        times = {"updated_at": now, "expires_at": until}
        return await replace_entries(self.database, subject, key, values, times)

    async def sweep(self, now: float) -> int:
        """Remove expired records of all kinds; return their number."""
        removed_count = 0
        for statement in _SWEEPS:
            while swept := await self.database.change(statement, {"now": now}):
                removed_count += swept
        return removed_count

    async def ping(self) -> None:
        """Raise StoreUnavailable unless the store answers."""
        await self.database.rows(_PING, {})

    async def aclose(self) -> None:
        """Close all connections."""
        for audit_store in self._audit_stores:
            await audit_store.aclose()
        await self.database.aclose()


class SqlTenant:
    """One tenant's records; all of their statements name the tenant."""

    __slots__ = ("_database", "_tenant")

    def __init__(self, database: Database, tenant: str) -> None:
        self._database, self._tenant = database, tenant

    @property
    def tasks(self) -> SqlTasks:
        """Return the tenant's tasks."""
        return SqlTasks(self._database, self._tenant)

    @property
    def idempotency(self) -> SqlIdempotency:
        """Return the tenant's idempotency keys."""
        return SqlIdempotency(self._database, self._tenant)

    @property
    def sessions(self) -> SqlSessions:
        """Return the tenant's sessions."""
        return SqlSessions(self._database, self._tenant)

    @property
    def approvals(self) -> SqlApprovals:
        """Return the tenant's approval requests."""
        return SqlApprovals(self._database, self._tenant)

    @property
    def grants(self) -> SqlGrants:
        """Return the tenant's grants."""
        return SqlGrants(self._database, self._tenant)

    @property
    def outbox(self) -> SqlOutbox:
        """Return the tenant's messages to other systems."""
        return SqlOutbox(self._database, self._tenant)

    def entries(self, subject: str) -> SqlEntries:
        """Return its entries of one subject; *subject* is a name in our own code."""
        return SqlEntries(self._database, self._tenant, subject)

    async def usage(self, owner: bytes | None, now: float) -> StoredUsage:
        """Return what its tasks and idempotency keys take: of one owner, or of all (None)."""
        values = {"where_tenant": self._tenant, "now": now}
        # The indexes alone answer this.
        if owner is None:
            rows = await self._database.rows(_OF_ALL, values)
        else:
            rows = await self._database.rows(_OF_ONE, {**values, "where_owner": owner})
        ends = [row.until for row in rows if row.until is not None]
        return StoredUsage(sum(int(row.taken) for row in rows), min(ends, default=None))


async def opened(url: str) -> SqlRecords:
    """
    Open the records at a URL; the database must have the current schema.

    A SQLite file is brought up to date; PostgreSQL is the operator's. Raises StoreRefused and
    StoreUnavailable.
    """
    if url.startswith(SCHEME):
        sqlite_links.move_logs(url)
    database = database_of(url)
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(database.aclose)
        if url.startswith(SCHEME):
            move = await database_schema.make(database)
            if move.before != move.after:
                log.info("database_migrated", extra={"before": move.before, "after": move.after})
        else:
            await database_schema.check(database)
        undo.pop_all()
    return SqlRecords(database)


async def check(url: str) -> None:
    """Raise StoreRefused unless the database is at our revision; it is left as it is."""
    if url.startswith(SCHEME) and not exists(url):
        # Looking at the database would create the file.
        raise StoreRefused(database_schema.must_migrate(None))
    database = database_of(url)
    async with contextlib.aclosing(database):
        await database_schema.check(database)


async def migrate(url: str) -> database_schema.Move:
    """Bring a database to our revision; raises StoreRefused and StoreUnavailable."""
    database = database_of(url)
    async with contextlib.aclosing(database):
        return await database_schema.migrate(database)


def database_of(url: str) -> Database:
    """Return the database at a URL, whatever its schema is."""
    if url.startswith(SCHEME):
        return SqliteDatabase(path_of(url))
    # Imported here, because its driver is an extra.
    driver = importlib.import_module("gatepost.storage.sql.postgresql")
    database: Database = driver.database(url)
    return database
