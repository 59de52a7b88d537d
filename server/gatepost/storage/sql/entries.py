"""The values that tenants store by subject and key, in SQL."""

import time
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from sqlalchemy import Connection, Integer, bindparam, func, null, select, update

from gatepost.storage.entries import CHANGE_COUNTER, NO_TENANT, Entry, EntryValue, fits
from gatepost.storage.sql.database import Database
from gatepost.storage.sql.tables import ENTRIES, insert_into

REMEMBERED_S = 86_400.0
"""How long the revision of a deleted entry is known: longer than any reader uses what it read."""

_KEY = [ENTRIES.c.tenant, ENTRIES.c.subject, ENTRIES.c.key]
_FIELDS = [ENTRIES.c[name] for name in Entry.__struct_fields__]
_ALL = select(*_FIELDS).where(
    ENTRIES.c.tenant == bindparam("where_tenant"),
    ENTRIES.c.subject == bindparam("where_subject"),
    ENTRIES.c.value.is_not(None),
)
_OF_THESE = select(ENTRIES.c.tenant, *_FIELDS).where(
    ENTRIES.c.tenant.in_(bindparam("tenants", expanding=True)),
    ENTRIES.c.subject == bindparam("where_subject"),
    ENTRIES.c.value.is_not(None),
)
_VALUES = _OF_THESE.with_only_columns(ENTRIES.c.tenant, ENTRIES.c.value).where(
    ENTRIES.c.key == bindparam("where_key")
)
_COUNT = select(func.count()).select_from(_ALL.subquery())
_TENANTS = (
    select(ENTRIES.c.tenant)
    .where(ENTRIES.c.subject == bindparam("where_subject"), ENTRIES.c.value.is_not(None))
    .distinct()
)
_LATEST = (
    select(ENTRIES.c.tenant, *_FIELDS)
    .where(
        ENTRIES.c.subject == bindparam("where_subject"),
        ENTRIES.c.key == bindparam("where_key"),
        ENTRIES.c.value.is_not(None),
    )
    .order_by(ENTRIES.c.updated_at.desc())
    .limit(bindparam("max_rows", type_=Integer))
)
_CHANGES = select(ENTRIES.c.subject, ENTRIES.c.revision).where(
    ENTRIES.c.tenant == NO_TENANT,
    ENTRIES.c.subject.in_(bindparam("subjects", expanding=True)),
    ENTRIES.c.key == CHANGE_COUNTER,
    ENTRIES.c.value.is_not(None),
)
_THIS = (
    ENTRIES.c.tenant == bindparam("where_tenant"),
    ENTRIES.c.subject == bindparam("where_subject"),
    ENTRIES.c.key == bindparam("where_key"),
    ENTRIES.c.value.is_not(None),
)
_GET = select(*_FIELDS).where(*_THIS)
_REPLACE = update(ENTRIES).where(
    *_THIS, ENTRIES.c.revision == bindparam("where_revision", type_=Integer)
)
# The row of a deleted entry stays a while, so that a new entry does not get a revision that was
# read before.
_DELETE = update(ENTRIES).where(*_THIS).values(value=null())


@cache
def _put(dialect: str, *, anew: bool) -> Any:
    # One statement, so that the database counts and decides which process is first.
    insert = insert_into(ENTRIES, dialect)
    return insert.on_conflict_do_update(
        index_elements=_KEY,
        set_={
            "value": insert.excluded.value,
            "revision": ENTRIES.c.revision + 1,
            "updated_at": insert.excluded.updated_at,
            "expires_at": insert.excluded.expires_at,
        },
        where=ENTRIES.c.value.is_(None) if anew else None,
    )


class SqlEntries:
    """The `Entries` of one tenant and subject, in an SQL table."""

    __slots__ = ("_database", "_subject", "_tenant")

    def __init__(self, database: Database, tenant: str, subject: str) -> None:
        self._database, self._tenant, self._subject = database, tenant, subject

    async def get(self, key: str) -> Entry | None:
        """Return the entry with a key."""
        rows = await self._database.rows(_GET, self._condition_values(key))
        return Entry(**rows[0]._mapping) if rows else None

    async def all(self) -> list[Entry]:
        """Return all entries of the subject, sorted by key."""
        where_values = {"where_tenant": self._tenant, "where_subject": self._subject}
        rows = await self._database.rows(_ALL, where_values)
        # Not in the database's order, which depends on its locale.
        return sorted((Entry(**row._mapping) for row in rows), key=lambda entry: entry.key)

    async def count(self) -> int:
        """Return how many entries the subject has."""
        where_values = {"where_tenant": self._tenant, "where_subject": self._subject}
        rows = await self._database.rows(_COUNT, where_values)
        return int(rows[0][0])

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        now: float,
        revision: int | None = None,
        expires_at: float | None = None,
    ) -> bool:
        """Store *value* under *key* durably; raises EntryRefused."""
        fits(key, value)
        values: dict[str, Any] = {"value": value, "updated_at": now, "expires_at": expires_at}
        if revision:
            values |= {
                **self._condition_values(key),
                "where_revision": revision,
                "revision": revision + 1,
            }
            return await self._database.change(_REPLACE, values) == 1
        values |= {"tenant": self._tenant, "subject": self._subject, "key": key, "revision": 1}
        statement = _put(self._database.dialect, anew=revision == 0)
        return await self._database.change(statement, values) == 1

    async def delete(self, key: str) -> bool:
        """Delete an entry durably; return whether there was one."""
        values = {**self._condition_values(key), "expires_at": time.time() + REMEMBERED_S}
        return await self._database.change(_DELETE, values) == 1

    def _condition_values(self, key: str) -> dict[str, Any]:
        return {"where_tenant": self._tenant, "where_subject": self._subject, "where_key": key}


async def tenants(database: Database, subject: str) -> list[str]:
    """Return the tenants that have an entry of a subject."""
    return sorted(row.tenant for row in await database.rows(_TENANTS, {"where_subject": subject}))


async def latest(database: Database, subject: str, key: str, limit: int) -> list[tuple[str, Entry]]:
    """Return the entries of all tenants with that key and their tenant, the newest first."""
    where_values = {"where_subject": subject, "where_key": key, "max_rows": limit}
    return [_of_tenant(row) for row in await database.rows(_LATEST, where_values)]


async def changes(database: Database, subjects: Collection[str]) -> dict[str, int]:
    """Return the change counters of subjects."""
    rows = await database.rows(_CHANGES, {"subjects": sorted(subjects)})
    return {row.subject: row.revision for row in rows}


async def entries_of(
    database: Database, tenants: Collection[str], subject: str
) -> dict[str, list[Entry]]:
    """Return the entries of a subject of several tenants; those that have none are left out."""
    entries_by_tenant: dict[str, list[Entry]] = {}
    where_values = {"tenants": [*tenants], "where_subject": subject}
    for row in await database.rows(_OF_THESE, where_values):
        tenant, entry = _of_tenant(row)
        entries_by_tenant.setdefault(tenant, []).append(entry)
    return entries_by_tenant


def _of_tenant(row: Any) -> tuple[str, Entry]:
    values = dict(row._mapping)
    return values.pop("tenant"), Entry(**values)


async def replace_entries(
    database: Database,
    subject: str,
    key: str,
    values: Mapping[str, EntryValue],
    times: Mapping[str, float],
) -> set[str]:
    """
    Store values under *key* for several tenants in one transaction.

    Return the tenants whose entry had the revision, and has the value.
    """
    changed, added = list[dict[str, Any]](), list[dict[str, Any]]()
    # Sorted: two processes that change the same rows must not deadlock.
    for tenant, (value, revision) in sorted(values.items()):
        fits(key, value)
        row = {"value": value, "revision": revision + 1, **times}
        if revision:
            where_values = {"where_tenant": tenant, "where_subject": subject, "where_key": key}
            changed.append({**where_values, **row, "where_revision": revision})
        else:
            added.append({"tenant": tenant, "subject": subject, "key": key, **row})

    def replace(connection: Connection) -> set[str]:
        if changed:
            connection.execute(_REPLACE, changed)
        if added:
            connection.execute(_put(database.dialect, anew=True), added)
        where_values = {"tenants": [*values], "where_subject": subject, "where_key": key}
        rows = connection.execute(_VALUES, where_values).all()
        return {row.tenant for row in rows if row.value == values[row.tenant][0]}

    return await database.transaction(replace) if values else set()
