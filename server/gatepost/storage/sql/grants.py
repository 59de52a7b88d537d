"""Grants, in SQL."""

from functools import partial
from typing import Any

import msgspec
from sqlalchemy import (
    Connection,
    Double,
    Integer,
    Select,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)

from gatepost.storage.approvals import GrantCount, GrantQuota, GrantRecord
from gatepost.storage.sql.database import Database, Values
from gatepost.storage.sql.tables import GRANTS, Exact

GRANT_LOCK = 1_735_549_291
"""The first number of PostgreSQL's advisory locks of grants."""

# A comparison of rows, because the databases begin to read an index there.
PLACE = tuple_(bindparam("where_time", type_=Double), bindparam("where_id", type_=Exact))
"""Time and id of the last row of the page before."""

_GRANT_FIELDS = [GRANTS.c[name] for name in GrantRecord.__struct_fields__]
_GRANTS_OF = GRANTS.c.tenant == bindparam("where_tenant")
_THIS_GRANT = (_GRANTS_OF, GRANTS.c.id == bindparam("where_id"))
_NOW = GRANTS.c.expires_at > bindparam("now", type_=Double)
_LEFT = or_(GRANTS.c.remaining.is_(None), GRANTS.c.remaining > 0)

_OF_CALLER_AND_TOOL = (
    GRANTS.c.tool == bindparam("where_tool"),
    GRANTS.c.issuer == bindparam("where_issuer"),
    GRANTS.c.subject == bindparam("where_subject"),
    GRANTS.c.subject_kind == bindparam("where_subject_kind"),
)

_ADD_GRANT = insert(GRANTS)
_COUNT_GRANTS = select(
    func.count().filter(*_OF_CALLER_AND_TOOL).label("of_caller_and_tool"),
    func.count().label("of_tenant"),
).where(_GRANTS_OF, _NOW, _LEFT)
# No row stands for the grants that a transaction has counted, so it locks their tenant instead.
# Two numbers: the keys of the audit log's locks are single ones.
_LOCK_GRANTS = select(
    func.pg_advisory_xact_lock(
        GRANT_LOCK, func.hashtext(bindparam("where_tenant", type_=GRANTS.c.tenant.type))
    )
)
_GRANTS = (
    select(*_GRANT_FIELDS).where(_GRANTS_OF, _NOW, _LEFT).order_by(GRANTS.c.created_at, GRANTS.c.id)
)
_VALID_GRANTS = _GRANTS.limit(bindparam("max_rows", type_=Integer))
_VALID_GRANTS_AFTER = _VALID_GRANTS.where(tuple_(GRANTS.c.created_at, GRANTS.c.id) > PLACE)
_GRANT = select(*_GRANT_FIELDS).where(*_THIS_GRANT, _NOW, _LEFT)
CALLERS_GRANTS = _GRANTS.where(*_OF_CALLER_AND_TOOL)
_GRANTS_PAGE = (
    select(*_GRANT_FIELDS)
    .where(_GRANTS_OF, GRANTS.c.id > bindparam("after"))
    .order_by(GRANTS.c.id)
    .limit(bindparam("max_rows", type_=Integer))
)
# One statement, so that the database counts. A grant without a number keeps none.
_SPEND = update(GRANTS).where(*_THIS_GRANT, _NOW, _LEFT).values(remaining=GRANTS.c.remaining - 1)
_REVOKE = delete(GRANTS).where(*_THIS_GRANT)


class SqlGrants:
    """The `GrantStore` of one tenant, in an SQL table."""

    __slots__ = ("_database", "_tenant")

    def __init__(self, database: Database, tenant: str) -> None:
        self._database, self._tenant = database, tenant

    async def add(self, grant: GrantRecord, quota: GrantQuota) -> GrantCount | None:
        """Store a new grant durably and return None, or return the counts that reach the quota."""
        values = {"tenant": self._tenant, **msgspec.structs.asdict(grant)}
        return await self._database.transaction(partial(_add_grant, values, quota))

    async def count(
        self, tool: str, issuer: str, subject: str, subject_kind: str, now: float
    ) -> GrantCount:
        """Count the valid grants of a caller, with any client and actor, and of the tenant."""
        values = {
            "where_tenant": self._tenant,
            "where_tool": tool,
            "where_issuer": issuer,
            "where_subject": subject,
            "where_subject_kind": subject_kind,
            "now": now,
        }
        rows = await self._database.rows(_COUNT_GRANTS, values)
        return GrantCount(**rows[0]._mapping)

    async def all(self, now: float) -> list[GrantRecord]:
        """Return all valid grants, the oldest first."""
        return await self._rows(_GRANTS, now=now)

    async def valid_page(
        self, now: float, limit: int, after: tuple[float, str] | None = None
    ) -> list[GrantRecord]:
        """Return a page of the valid grants, the oldest first."""
        if after is None:
            return await self._rows(_VALID_GRANTS, now=now, max_rows=limit)
        at, grant_id = after
        place = {"where_time": at, "where_id": grant_id}
        return await self._rows(_VALID_GRANTS_AFTER, now=now, max_rows=limit, **place)

    async def get(self, grant_id: str, now: float) -> GrantRecord | None:
        """Return a valid grant."""
        return next(iter(await self._rows(_GRANT, where_id=grant_id, now=now)), None)

    async def spend(self, grant_id: str, now: float) -> bool:
        """Use up one call durably; return False if none is left or the grant has ended."""
        return await self._change(_SPEND, where_id=grant_id, now=now) == 1

    async def revoke(self, grant_id: str) -> bool:
        """End a grant durably; return whether it existed."""
        return await self._change(_REVOKE, where_id=grant_id) == 1

    async def page(self, after: str, limit: int) -> list[GrantRecord]:
        """Return the next grants by id, valid or not; "" is before the first."""
        return await self._rows(_GRANTS_PAGE, after=after, max_rows=limit)

    async def _rows(self, statement: Select[Any], **values: Any) -> list[GrantRecord]:
        rows = await self._database.rows(statement, {"where_tenant": self._tenant, **values})
        return [GrantRecord(**row._mapping) for row in rows]

    async def _change(self, statement: Any, **values: Any) -> int:
        return await self._database.change(statement, {"where_tenant": self._tenant, **values})


def _add_grant(values: Values, quota: GrantQuota, connection: Connection) -> GrantCount | None:
    names = ("tenant", "tool", "issuer", "subject", "subject_kind")
    where_values = {f"where_{name}": values[name] for name in names}
    where_values["now"] = values["created_at"]
    if connection.dialect.name == "postgresql":
        connection.execute(_LOCK_GRANTS, where_values)
    row = connection.execute(_COUNT_GRANTS, where_values).one()
    count = GrantCount(**row._mapping)
    if count.exceeds(quota):
        return count
    connection.execute(_ADD_GRANT, values)
    return None
