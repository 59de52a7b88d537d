"""What waits for a person, in SQL."""

from functools import cache
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Double, Integer, Select, bindparam, func, or_, select, update

from gatepost.stores.api import StoreUnavailable
from gatepost.stores.approvals import ApprovalRecord, Whose
from gatepost.stores.notices import Notice
from gatepost.stores.sql import notices
from gatepost.stores.sql.claims import ATTEMPTS
from gatepost.stores.sql.database import Database, Values
from gatepost.stores.sql.tables import APPROVALS, insert_into

OPEN = ("waiting", "approved")

_FIELDS = [APPROVALS.c[name] for name in ApprovalRecord.__struct_fields__]
_OF = APPROVALS.c.tenant == bindparam("its_tenant")
_THIS = (_OF, APPROVALS.c.id == bindparam("its_id"))
_WAITS = APPROVALS.c.state == "waiting"

_GET = select(*_FIELDS).where(*_THIS)
_MET = select(*_FIELDS).where(_OF, APPROVALS.c.meets == bindparam("its_binding"))
_REPLACE = update(APPROVALS).where(
    *_THIS, APPROVALS.c.revision == bindparam("its_revision", type_=Integer)
)
_WAITING = (
    select(*_FIELDS)
    .where(_OF, _WAITS)
    .order_by(APPROVALS.c.created_at, APPROVALS.c.id)
    .limit(bindparam("most", type_=Integer))
)
_PAST = (
    select(*_FIELDS)
    .where(_OF, APPROVALS.c.state != "waiting")
    .order_by(APPROVALS.c.changed_at.desc(), APPROVALS.c.id.desc())
    .limit(bindparam("most", type_=Integer))
)
_BEFORE = _PAST.where(
    or_(
        APPROVALS.c.changed_at < bindparam("its_time", type_=Double),
        (APPROVALS.c.changed_at == bindparam("its_time", type_=Double))
        & (APPROVALS.c.id < bindparam("its_id")),
    )
)
_OVERDUE = (
    select(APPROVALS.c.tenant, APPROVALS.c.id)
    .where(APPROVALS.c.state.in_(OPEN), APPROVALS.c.until <= bindparam("now", type_=Double))
    .order_by(APPROVALS.c.until)
    .limit(bindparam("most", type_=Integer))
)


@cache
def _open(dialect: str) -> Any:
    # One statement, so that the database decides who is first.
    return insert_into(APPROVALS, dialect).on_conflict_do_nothing(
        index_elements=[APPROVALS.c.tenant, APPROVALS.c.meets]
    )


def whose(table: Any, meant: Whose) -> list[ColumnElement[bool]]:
    """The callers that are meant, as conditions on a table."""
    wanted = msgspec.structs.asdict(meant)
    return [table.c[name] == value for name, value in wanted.items() if value is not None]


class SqlApprovals:
    """See `Approvals`."""

    __slots__ = ("_database", "_tenant")

    def __init__(self, database: Database, tenant: str) -> None:
        self._database, self._tenant = database, tenant

    async def open(
        self, record: ApprovalRecord, notice: Notice | None = None
    ) -> ApprovalRecord | None:
        """See `Approvals`."""
        statement = _open(self._database.dialect)
        values = {"tenant": self._tenant, **msgspec.structs.asdict(record)}
        for _ in range(ATTEMPTS):
            if await self._change(statement, values, notice):
                return None
            if record.meets is not None and (kept := await self.met(record.meets)) is not None:
                return kept
            # It let go of its binding between the two statements.
        raise StoreUnavailable("a request changes hands faster than it can be read")

    async def get(self, approval_id: str) -> ApprovalRecord | None:
        """See `Approvals`."""
        return self._one(await self._rows(_GET, its_id=approval_id))

    async def met(self, binding: bytes) -> ApprovalRecord | None:
        """See `Approvals`."""
        return self._one(await self._rows(_MET, its_binding=binding))

    async def replace(self, record: ApprovalRecord, notice: Notice | None = None) -> bool:
        """See `Approvals`."""
        values: dict[str, Any] = msgspec.structs.asdict(record)
        which = {
            "its_tenant": self._tenant,
            "its_id": values.pop("id"),
            "its_revision": values.pop("revision"),
        }
        values["revision"] = record.revision + 1
        return await self._change(_REPLACE, {**values, **which}, notice) == 1

    async def waiting(self, most: int) -> list[ApprovalRecord]:
        """See `Approvals`."""
        return await self._rows(_WAITING, most=most)

    async def past(self, before: tuple[float, str] | None, most: int) -> list[ApprovalRecord]:
        """See `Approvals`."""
        if before is None:
            return await self._rows(_PAST, most=most)
        at, approval_id = before
        return await self._rows(_BEFORE, most=most, its_time=at, its_id=approval_id)

    async def count(self, caller: Whose | None = None) -> int:
        """See `Approvals`."""
        meant = whose(APPROVALS, caller or Whose())
        statement = select(func.count()).where(_OF, _WAITS, *meant)
        found = await self._database.rows(statement, {"its_tenant": self._tenant})
        return int(found[0][0])

    async def undecided(self, meant: Whose) -> list[ApprovalRecord]:
        """See `Approvals`."""
        open_ones = (_OF, APPROVALS.c.state.in_(OPEN), *whose(APPROVALS, meant))
        return await self._rows(select(*_FIELDS).where(*open_ones))

    async def _change(self, statement: Any, values: Values, notice: Notice | None) -> int:
        if notice is None:
            return await self._database.change(statement, values)
        told = notices.adding(self._database.dialect), notices.values_of(self._tenant, notice)
        return await self._database.change_both((statement, values), told)

    async def _rows(self, statement: Select[Any], **values: Any) -> list[ApprovalRecord]:
        found = await self._database.rows(statement, {"its_tenant": self._tenant, **values})
        return [ApprovalRecord(**row._mapping) for row in found]

    def _one(self, found: list[ApprovalRecord]) -> ApprovalRecord | None:
        return found[0] if found else None


async def overdue(database: Database, now: float, limit: int) -> list[tuple[str, str]]:
    """Tenant and id of open requests of any tenant whose time is over, the longest first."""
    found = await database.rows(_OVERDUE, {"now": now, "most": limit})
    return [(row.tenant, row.id) for row in found]
