"""Calls that were granted beforehand, in SQL."""

from typing import Any

import msgspec
from sqlalchemy import Double, Integer, Select, bindparam, delete, insert, or_, select, update

from gatepost.stores.approvals import GrantRecord
from gatepost.stores.sql.database import Database
from gatepost.stores.sql.tables import GRANTS

_FIELDS = [GRANTS.c[name] for name in GrantRecord.__struct_fields__]
_OF = GRANTS.c.tenant == bindparam("its_tenant")
_THIS = (_OF, GRANTS.c.id == bindparam("its_id"))
_NOW = GRANTS.c.expires_at > bindparam("now", type_=Double)
_LEFT = or_(GRANTS.c.remaining.is_(None), GRANTS.c.remaining > 0)

_ADD = insert(GRANTS)
_ALL = select(*_FIELDS).where(_OF, _NOW, _LEFT).order_by(GRANTS.c.created_at, GRANTS.c.id)
_CALLERS = _ALL.where(
    GRANTS.c.tool == bindparam("its_tool"),
    GRANTS.c.issuer == bindparam("its_issuer"),
    GRANTS.c.subject == bindparam("its_subject"),
)
_PAGE = (
    select(*_FIELDS)
    .where(_OF, GRANTS.c.id > bindparam("after"))
    .order_by(GRANTS.c.id)
    .limit(bindparam("most", type_=Integer))
)
# One statement, so that the database counts; what has no number stays without one.
_SPEND = update(GRANTS).where(*_THIS, _NOW, _LEFT).values(remaining=GRANTS.c.remaining - 1)
_REVOKE = delete(GRANTS).where(*_THIS)


class SqlGrants:
    """See `Grants`."""

    __slots__ = ("_database", "_tenant")

    def __init__(self, database: Database, tenant: str) -> None:
        self._database, self._tenant = database, tenant

    async def add(self, grant: GrantRecord) -> None:
        """See `Grants`."""
        await self._database.change(_ADD, {"tenant": self._tenant, **msgspec.structs.asdict(grant)})

    async def all(self, now: float) -> list[GrantRecord]:
        """See `Grants`."""
        return await self._rows(_ALL, now=now)

    async def of(self, tool: str, issuer: str, subject: str, now: float) -> list[GrantRecord]:
        """See `Grants`."""
        values = {"its_tool": tool, "its_issuer": issuer, "its_subject": subject, "now": now}
        return await self._rows(_CALLERS, **values)

    async def spend(self, grant_id: str, now: float) -> bool:
        """See `Grants`."""
        return await self._change(_SPEND, its_id=grant_id, now=now) == 1

    async def revoke(self, grant_id: str) -> bool:
        """See `Grants`."""
        return await self._change(_REVOKE, its_id=grant_id) == 1

    async def page(self, after: str, most: int) -> list[GrantRecord]:
        """See `Grants`."""
        return await self._rows(_PAGE, after=after, most=most)

    async def _rows(self, statement: Select[Any], **values: Any) -> list[GrantRecord]:
        found = await self._database.rows(statement, {"its_tenant": self._tenant, **values})
        return [GrantRecord(**row._mapping) for row in found]

    async def _change(self, statement: Any, **values: Any) -> int:
        return await self._database.change(statement, {"its_tenant": self._tenant, **values})
