"""Revocations in SQL."""

import time
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import bindparam, delete, select

from gatepost.storage.entries import CHANGE_COUNTER, NO_TENANT
from gatepost.storage.revocations import SUBJECT, RevocationRecord
from gatepost.storage.sql.database import Database
from gatepost.storage.sql.entries import SqlEntries
from gatepost.storage.sql.tables import REVOCATIONS, insert_into

_FIELDS = [REVOCATIONS.c[name] for name in RevocationRecord.__struct_fields__]
_ALL = select(*_FIELDS).order_by(REVOCATIONS.c.created_at, REVOCATIONS.c.id)
_DELETE = delete(REVOCATIONS).where(
    REVOCATIONS.c.tenant == bindparam("where_tenant"), REVOCATIONS.c.id == bindparam("where_id")
)


@cache
def _put(dialect: str) -> Any:
    key = [REVOCATIONS.c.tenant, REVOCATIONS.c.id]
    return insert_into(REVOCATIONS, dialect).on_conflict_do_nothing(index_elements=key)


class SqlRevocations:
    """The `RevocationStore` in an SQL table."""

    __slots__ = ("_changes", "_database")

    def __init__(self, database: Database) -> None:
        self._database = database
        self._changes = SqlEntries(database, NO_TENANT, SUBJECT)

    async def all(self) -> list[RevocationRecord]:
        """Return all revocations, the oldest first, including expired ones."""
        return [RevocationRecord(**row._mapping) for row in await self._database.rows(_ALL, {})]

    async def put(self, record: RevocationRecord) -> bool:
        """Store a revocation durably; return False if its tenant has one with this id already."""
        statement = _put(self._database.dialect)
        is_new = await self._database.change(statement, msgspec.structs.asdict(record)) == 1
        await self._count_change()
        return is_new

    async def delete(self, tenant: str, revocation_id: str) -> bool:
        """Delete a revocation durably; return whether there was one."""
        where_values = {"where_tenant": tenant, "where_id": revocation_id}
        existed = await self._database.change(_DELETE, where_values) == 1
        await self._count_change()
        return existed

    async def _count_change(self) -> None:
        # After the change, so that a reader of the new number finds it. Also if nothing was
        # changed, because an earlier attempt may have stopped after the change.
        await self._changes.put(CHANGE_COUNTER, b"", now=time.time())
