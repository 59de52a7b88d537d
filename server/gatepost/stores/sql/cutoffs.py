"""Cut-offs in SQL."""

import time
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import bindparam, delete, select

from gatepost.stores.cutoffs import CutOff
from gatepost.stores.sql.database import Database
from gatepost.stores.sql.entries import SqlEntries
from gatepost.stores.sql.tables import CUTOFFS, insert_into

NO_TENANT, SUBJECT, CHANGES = "", "cutoffs", "changes"
"""Where the number of changes is kept; no tenant has this id."""

_FIELDS = [CUTOFFS.c[name] for name in CutOff.__struct_fields__]
_ALL = select(*_FIELDS).order_by(CUTOFFS.c.made_at, CUTOFFS.c.id)
_DELETE = delete(CUTOFFS).where(
    CUTOFFS.c.tenant == bindparam("its_tenant"), CUTOFFS.c.id == bindparam("its_id")
)


@cache
def _put(dialect: str) -> Any:
    key = [CUTOFFS.c.tenant, CUTOFFS.c.id]
    return insert_into(CUTOFFS, dialect).on_conflict_do_nothing(index_elements=key)


class SqlCutoffs:
    """See `Cutoffs`."""

    __slots__ = ("_changes", "_database")

    def __init__(self, database: Database) -> None:
        self._database = database
        self._changes = SqlEntries(database, NO_TENANT, SUBJECT)

    async def changes(self) -> int:
        """See `Cutoffs`."""
        found = await self._changes.get(CHANGES)
        return 0 if found is None else found.revision

    async def all(self) -> list[CutOff]:
        """See `Cutoffs`."""
        return [CutOff(**row._mapping) for row in await self._database.rows(_ALL, {})]

    async def put(self, cut: CutOff) -> bool:
        """See `Cutoffs`."""
        statement = _put(self._database.dialect)
        put = await self._database.change(statement, msgspec.structs.asdict(cut)) == 1
        await self._tell()
        return put

    async def delete(self, tenant: str, cut_id: str) -> bool:
        """See `Cutoffs`."""
        which = {"its_tenant": tenant, "its_id": cut_id}
        there = await self._database.change(_DELETE, which) == 1
        await self._tell()
        return there

    async def _tell(self) -> None:
        # After the change: whoever sees the number finds it. Also where nothing was changed, since
        # an earlier attempt may have got no further than the change itself.
        await self._changes.put(CHANGES, b"", now=time.time())
