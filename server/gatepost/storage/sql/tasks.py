"""Tasks in SQL."""

from typing import Any

import msgspec
from sqlalchemy import Integer, bindparam, func, insert, select, update

from gatepost.storage.sql.database import Database
from gatepost.storage.sql.tables import TASKS
from gatepost.storage.tasks import OPEN, TaskRecord

_FIELDS = [TASKS.c[name] for name in TaskRecord.__struct_fields__]
# By the values that it may have: for those that it may not have, the index would be read as a
# whole, and most tasks that are kept have ended.
_OPEN = TASKS.c.status.in_(sorted(OPEN))
_THIS = (TASKS.c.tenant == bindparam("where_tenant"), TASKS.c.id == bindparam("where_id"))

_CREATE = insert(TASKS)
_GET = select(*_FIELDS).where(*_THIS)
_REPLACE = update(TASKS).where(
    *_THIS, TASKS.c.revision == bindparam("where_revision", type_=Integer)
)
_COUNT = select(func.count()).where(
    TASKS.c.tenant == bindparam("where_tenant"), TASKS.c.owner == bindparam("where_owner"), _OPEN
)
_ABANDONED = (
    select(TASKS.c.tenant, TASKS.c.id)
    .where(_OPEN, TASKS.c.leased_until < bindparam("now"))
    .order_by(TASKS.c.leased_until)
    .limit(bindparam("max_rows", type_=Integer))
)


class SqlTasks:
    """The `TaskRecords` of one tenant, in an SQL table."""

    __slots__ = ("_database", "_tenant")

    def __init__(self, database: Database, tenant: str) -> None:
        self._database, self._tenant = database, tenant

    async def create(self, task: TaskRecord) -> None:
        """Store a new task durably."""
        await self._database.change(
            _CREATE,
            {"tenant": self._tenant, **msgspec.structs.asdict(task), "bytes": task.weight},
        )

    async def get(self, task_id: str) -> TaskRecord | None:
        """Return a task, or None; it may have expired and not be removed yet."""
        rows = await self._database.rows(_GET, {"where_tenant": self._tenant, "where_id": task_id})
        return TaskRecord(**rows[0]._mapping) if rows else None

    async def replace(self, task: TaskRecord) -> bool:
        """Replace the record that has the same id and ``revision``; its revision grows by one."""
        values: dict[str, Any] = msgspec.structs.asdict(task)
        where_values = {
            "where_tenant": self._tenant,
            "where_id": values.pop("id"),
            "where_revision": values.pop("revision"),
        }
        values |= {"revision": task.revision + 1, "bytes": task.weight}
        return await self._database.change(_REPLACE, {**values, **where_values}) == 1

    async def count(self, owner: bytes) -> int:
        """Return the number of the owner's tasks that have not ended."""
        where_values = {"where_tenant": self._tenant, "where_owner": owner}
        return int((await self._database.rows(_COUNT, where_values))[0][0])


async def abandoned(database: Database, now: float, limit: int) -> list[tuple[str, str]]:
    """Return tenant and id of tasks of any tenant whose process is gone, the oldest first."""
    rows = await database.rows(_ABANDONED, {"now": now, "max_rows": limit})
    return [(row.tenant, row.id) for row in rows]
