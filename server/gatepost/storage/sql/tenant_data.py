"""Find the data of tenants in SQL, by the tenant that every primary key begins with."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Delete,
    Executable,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    func,
    select,
    tuple_,
)

from gatepost.storage.sql.database import Database, Values
from gatepost.storage.sql.tables import METADATA
from gatepost.storage.tenant_data import NOT_CLEARED, ErasureSubject

BATCH = 500
"""The number of rows that one statement removes."""


def _tenants(table: Table) -> Select[tuple[str]]:
    # This goes from each tenant to the next by the index; a plain DISTINCT would read every row.
    tenant = table.c.tenant
    first = select(func.min(tenant).label("tenant")).cte("known", recursive=True)
    next_tenant = select(func.min(tenant)).where(tenant > first.c.tenant).scalar_subquery()
    tenants = first.union_all(select(next_tenant).where(first.c.tenant.is_not(None)))
    return select(tenants.c.tenant).where(tenants.c.tenant.is_not(None))


def _count(table: Table, condition: ColumnElement[bool]) -> Select[int]:
    return select(func.count()).select_from(table).where(condition)


def _clear(table: Table, condition: ColumnElement[bool]) -> Delete:
    keys = list(table.primary_key)
    return delete(table).where(tuple_(*keys).in_(select(*keys).where(condition).limit(BATCH)))


def _everything(table: Table) -> ColumnElement[bool]:
    return table.c.tenant == bindparam("whose")


def _persons(table: Table) -> ColumnElement[bool] | None:
    """Return the person that a row belongs to; None if the row does not say."""
    if {"issuer", "subject"} <= {*table.c.keys()}:
        conditions = (
            table.c.issuer == bindparam("issuer"),
            table.c.subject == bindparam("subject"),
        )
        return and_(_everything(table), *conditions)
    if "owner" in table.c:
        return and_(_everything(table), table.c.owner.in_(bindparam("owners", expanding=True)))
    return None


_KINDS = [table for table in METADATA.sorted_tables if not table.name.startswith(NOT_CLEARED)]


class _Statements(NamedTuple):
    """The statements that count records and that clear them, by kind."""

    counts: Mapping[str, Executable]
    clears: Sequence[Executable]


# Created at first use, because only commands need them, and creating them takes 10 ms.
@cache
def _tenants_by_kind() -> Mapping[str, Executable]:
    return {table.name: _tenants(table) for table in METADATA.sorted_tables}


@cache
def _of_tenant() -> _Statements:
    return _statements({table: _everything(table) for table in _KINDS})


@cache
def _of_person() -> _Statements:
    return _statements(
        {table: condition for table in _KINDS if (condition := _persons(table)) is not None}
    )


def _statements(conditions: Mapping[Table, ColumnElement[bool]]) -> _Statements:
    return _Statements(
        {table.name: _count(table, rows) for table, rows in conditions.items()},
        [_clear(table, rows) for table, rows in conditions.items()],
    )


class SqlTenantData:
    """The `TenantDataStore` over all tables of an SQL database."""

    __slots__ = ("_database",)

    def __init__(self, database: Database) -> None:
        self._database = database

    async def tenants(self, *kinds: str) -> list[str]:
        """Return the tenants that have records of these kinds, or of any kind, sorted."""
        by_kind = _tenants_by_kind()
        looks = [by_kind[kind] for kind in kinds or by_kind]
        tenants = {row.tenant for look in looks for row in await self._database.rows(look, {})}
        # Change counters belong to no tenant.
        return sorted(tenants - {""})

    async def count(self, tenant: str) -> dict[str, int]:
        """Return the number of records of each kind that has any, except those of `NOT_CLEARED`."""
        return await self._count(_of_tenant().counts, {"whose": tenant})

    async def clear(self, tenant: str) -> int:
        """Remove some records durably and return their number; 0 means that none is left."""
        return await self._clear(_of_tenant().clears, {"whose": tenant})

    async def count_of(self, tenant: str, person: ErasureSubject) -> dict[str, int]:
        """Return the number of records of each kind that belong to a person."""
        return await self._count(_of_person().counts, _values(tenant, person))

    async def clear_of(self, tenant: str, person: ErasureSubject) -> int:
        """Remove some records of a person durably and return their number; 0 if none is left."""
        return await self._clear(_of_person().clears, _values(tenant, person))

    async def _count(self, looks: Mapping[str, Executable], values: Values) -> dict[str, int]:
        counted = {
            kind: int((await self._database.rows(look, values))[0][0])
            for kind, look in looks.items()
        }
        return {kind: number for kind, number in counted.items() if number}

    async def _clear(self, clears: Sequence[Executable], values: Values) -> int:
        for clear in clears:
            if removed_count := await self._database.change(clear, values):
                return removed_count
        return 0


def _values(tenant: str, person: ErasureSubject) -> dict[str, Any]:
    return {
        "whose": tenant,
        "issuer": person.issuer,
        "subject": person.subject,
        "owners": list(person.owners),
    }
