"""What tenants keep, in SQL: found by the tenant that every row begins with."""

from sqlalchemy import Delete, Select, Table, bindparam, delete, func, select, tuple_

from gatepost.stores.estate import APART
from gatepost.stores.sql.database import Database
from gatepost.stores.sql.tables import METADATA

BATCH = 500
"""Rows that go with one statement."""


def _tenants(table: Table) -> Select[tuple[str]]:
    # From each tenant to the next by the index: a plain DISTINCT would read every row.
    tenant = table.c.tenant
    first = select(func.min(tenant).label("tenant")).cte("known", recursive=True)
    behind = select(func.min(tenant)).where(tenant > first.c.tenant).scalar_subquery()
    known = first.union_all(select(behind).where(first.c.tenant.is_not(None)))
    return select(known.c.tenant).where(known.c.tenant.is_not(None))


def _count(table: Table) -> Select[int]:
    return select(func.count()).select_from(table).where(table.c.tenant == bindparam("whose"))


def _clear(table: Table) -> Delete:
    keys = list(table.primary_key)
    whose = table.c.tenant == bindparam("whose")
    return delete(table).where(tuple_(*keys).in_(select(*keys).where(whose).limit(BATCH)))


_KINDS = [table for table in METADATA.sorted_tables if not table.name.startswith(APART)]
_TENANTS = {table.name: _tenants(table) for table in METADATA.sorted_tables}
_COUNTS = {table.name: _count(table) for table in _KINDS}
_CLEARS = [_clear(table) for table in _KINDS]


class SqlEstate:
    """See `Estate`."""

    __slots__ = ("_database",)

    def __init__(self, database: Database) -> None:
        self._database = database

    async def tenants(self, *kinds: str) -> list[str]:
        """See `Estate`."""
        looks = [_TENANTS[kind] for kind in kinds or _TENANTS]
        found = {row.tenant for look in looks for row in await self._database.rows(look, {})}
        # The word of changes is kept where no tenant is.
        return sorted(found - {""})

    async def count(self, tenant: str) -> dict[str, int]:
        """See `Estate`."""
        counted = {
            kind: int((await self._database.rows(one, {"whose": tenant}))[0][0])
            for kind, one in _COUNTS.items()
        }
        return {kind: number for kind, number in counted.items() if number}

    async def clear(self, tenant: str) -> int:
        """See `Estate`."""
        for one in _CLEARS:
            if gone := await self._database.change(one, {"whose": tenant}):
                return gone
        return 0
