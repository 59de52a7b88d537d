"""Approval requests, in SQL."""

from collections.abc import Sequence, Set
from functools import cache, partial
from typing import Any

import msgspec
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Double,
    Integer,
    Row,
    Select,
    bindparam,
    column,
    func,
    select,
    text,
    tuple_,
    update,
)

from gatepost.storage.approvals import (
    ApprovalMatches,
    ApprovalQuery,
    ApprovalRecord,
    GrantRecord,
    WaitingCount,
)
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.outbox import OutboxMessage
from gatepost.storage.sql import outbox
from gatepost.storage.sql.database import Database, Values
from gatepost.storage.sql.grants import CALLERS_GRANTS, PLACE
from gatepost.storage.sql.idempotency import ATTEMPTS
from gatepost.storage.sql.tables import (
    APPROVAL_REQUESTS,
    OPEN_REQUESTS,
    PAST_REQUESTS,
    WAITING_REQUESTS,
    Exact,
    escaped,
    insert_into,
)

_FIELDS = [APPROVAL_REQUESTS.c[name] for name in ApprovalRecord.__struct_fields__]
_OF = APPROVAL_REQUESTS.c.tenant == bindparam("where_tenant")
_THIS = (_OF, APPROVAL_REQUESTS.c.id == bindparam("where_id"))


def _place_by(time: ColumnElement[float]) -> Any:
    return tuple_(time, APPROVAL_REQUESTS.c.id)


_GET = select(*_FIELDS).where(*_THIS)
_MET = select(*_FIELDS).where(_OF, APPROVAL_REQUESTS.c.binding == bindparam("where_binding"))
_REPLACE = update(APPROVAL_REQUESTS).where(
    *_THIS, APPROVAL_REQUESTS.c.revision == bindparam("where_revision", type_=Integer)
)
_WAITING = (
    select(*_FIELDS)
    .where(_OF, WAITING_REQUESTS)
    .order_by(APPROVAL_REQUESTS.c.created_at, APPROVAL_REQUESTS.c.id)
    .limit(bindparam("max_rows", type_=Integer))
)
_WAITING_AFTER = _WAITING.where(_place_by(APPROVAL_REQUESTS.c.created_at) > PLACE)
_PAST = (
    select(*_FIELDS)
    .where(_OF, PAST_REQUESTS)
    .order_by(APPROVAL_REQUESTS.c.changed_at.desc(), APPROVAL_REQUESTS.c.id.desc())
    .limit(bindparam("max_rows", type_=Integer))
)
_BEFORE = _PAST.where(_place_by(APPROVAL_REQUESTS.c.changed_at) < PLACE)
_UNDECIDED = select(APPROVAL_REQUESTS.c.id).where(_OF, OPEN_REQUESTS)
_OF_CALLER = (
    APPROVAL_REQUESTS.c.issuer == bindparam("where_issuer"),
    APPROVAL_REQUESTS.c.subject == bindparam("where_subject"),
    APPROVAL_REQUESTS.c.subject_kind == bindparam("where_subject_kind"),
)
_COUNT = select(
    func.count().filter(*_OF_CALLER).label("of_caller"), func.count().label("of_tenant")
).where(_OF, WAITING_REQUESTS)
_OVERDUE = (
    select(APPROVAL_REQUESTS.c.tenant, APPROVAL_REQUESTS.c.id)
    .where(OPEN_REQUESTS, APPROVAL_REQUESTS.c.until <= bindparam("now", type_=Double))
    .order_by(APPROVAL_REQUESTS.c.until)
    .limit(bindparam("max_rows", type_=Integer))
)


# SQLite reads the whole table for a list of pairs. In this order it finds each by the index.
_STATES_OF_JSON = text(
    "SELECT pair.key AS place, request.state AS state FROM json_each(:pairs) AS pair "
    "CROSS JOIN approval_requests AS request ON request.tenant = json_extract(pair.value, '$[0]') "
    "AND request.id = json_extract(pair.value, '$[1]')"
)

_PAIRS = (
    func.unnest(
        bindparam("where_tenants", type_=ARRAY(Exact)), bindparam("where_ids", type_=ARRAY(Exact))
    )
    .table_valued(column("tenant", Exact), column("id", Exact))
    .render_derived(name="pairs")
)
# Not a join, for which PostgreSQL may read the open requests of all tenants.
_STATE_OF_PAIR = select(APPROVAL_REQUESTS.c.state).where(
    APPROVAL_REQUESTS.c.tenant == _PAIRS.c.tenant, APPROVAL_REQUESTS.c.id == _PAIRS.c.id
)
_STATES_OF_PAIRS = select(
    _PAIRS.c.tenant, _PAIRS.c.id, _STATE_OF_PAIR.scalar_subquery().label("state")
)


@cache
def _open(dialect: str) -> Any:
    # One statement, so that the database decides which process is first.
    return insert_into(APPROVAL_REQUESTS, dialect).on_conflict_do_nothing(
        index_elements=[APPROVAL_REQUESTS.c.tenant, APPROVAL_REQUESTS.c.binding]
    )


_QUERIED = [name for name in ApprovalQuery.__struct_fields__ if name != "now"]


def _matches(values: Values, connection: Connection) -> list[Sequence[Row[Any]]]:
    """Return the rows of the first statement that has some, and of those before it."""
    results: list[Sequence[Row[Any]]] = []
    for statement in (CALLERS_GRANTS, _MET, _COUNT):
        results.append(connection.execute(statement, values).all())
        if results[-1]:
            break
    return results


class SqlApprovals:
    """The `ApprovalStore` of one tenant, in an SQL table."""

    __slots__ = ("_database", "_tenant")

    def __init__(self, database: Database, tenant: str) -> None:
        self._database, self._tenant = database, tenant

    async def open(
        self, record: ApprovalRecord, message: OutboxMessage | None = None
    ) -> ApprovalRecord | None:
        """Store a new request durably and return None, or return the request with its binding."""
        statement = _open(self._database.dialect)
        values = {"tenant": self._tenant, **msgspec.structs.asdict(record)}
        for _ in range(ATTEMPTS):
            if await self._change(statement, values, message):
                return None
            if (
                record.binding is not None
                and (stored := await self.find(record.binding)) is not None
            ):
                return stored
            # The other request released its binding between the two statements.
        raise StoreUnavailable("a request changes hands faster than it can be read")

    async def get(self, approval_id: str) -> ApprovalRecord | None:
        """Return the request, in any state."""
        return self._single(await self._rows(_GET, where_id=approval_id))

    async def find(self, binding: bytes) -> ApprovalRecord | None:
        """Return the request of calls with this binding."""
        return self._single(await self._rows(_MET, where_binding=binding))

    async def match(self, query: ApprovalQuery) -> ApprovalMatches:
        """Return the grants for a call, else its request, else the numbers of waiting requests."""
        # One function for all statements, because each trip to the database costs as much as they.
        names = {f"where_{name}": getattr(query, name) for name in _QUERIED}
        values = {"where_tenant": self._tenant, "now": query.now, **names}
        grants, *further_rows = await self._database.run_sync(partial(_matches, values))
        match further_rows:
            case [[row]]:
                return ApprovalMatches([], ApprovalRecord(**row._mapping))
            case [_, [row]]:
                return ApprovalMatches([], None, WaitingCount(**row._mapping))
        return ApprovalMatches([GrantRecord(**row._mapping) for row in grants])

    async def replace(self, record: ApprovalRecord, message: OutboxMessage | None = None) -> bool:
        """Replace the record with the same id and ``revision`` durably, and raise the revision."""
        values: dict[str, Any] = msgspec.structs.asdict(record)
        where_values = {
            "where_tenant": self._tenant,
            "where_id": values.pop("id"),
            "where_revision": values.pop("revision"),
        }
        values["revision"] = record.revision + 1
        return await self._change(_REPLACE, {**values, **where_values}, message) == 1

    async def waiting(
        self, limit: int, after: tuple[float, str] | None = None
    ) -> list[ApprovalRecord]:
        """Return requests in the state `waiting`, the oldest first."""
        if after is None:
            return await self._rows(_WAITING, max_rows=limit)
        at, approval_id = after
        return await self._rows(_WAITING_AFTER, max_rows=limit, where_time=at, where_id=approval_id)

    async def ended(self, before: tuple[float, str] | None, limit: int) -> list[ApprovalRecord]:
        """Return requests in other states, the last changed first."""
        if before is None:
            return await self._rows(_PAST, max_rows=limit)
        at, approval_id = before
        return await self._rows(_BEFORE, max_rows=limit, where_time=at, where_id=approval_id)

    async def count(self, issuer: str, subject: str, subject_kind: str) -> WaitingCount:
        """Count waiting requests of a caller, with any client and actor, and of the tenant."""
        values = {
            "where_tenant": self._tenant,
            "where_issuer": issuer,
            "where_subject": subject,
            "where_subject_kind": subject_kind,
        }
        rows = await self._database.rows(_COUNT, values)
        return WaitingCount(**rows[0]._mapping)

    async def undecided(self) -> list[str]:
        """Return the ids of all requests that wait, or are approved and not used."""
        rows = await self._database.rows(_UNDECIDED, {"where_tenant": self._tenant})
        return [row.id for row in rows]

    async def _change(self, statement: Any, values: Values, message: OutboxMessage | None) -> int:
        if message is None:
            return await self._database.change(statement, values)
        message_insert = (
            outbox.adding(self._database.dialect),
            outbox.values_of(self._tenant, message),
        )
        return await self._database.change_both((statement, values), message_insert)

    async def _rows(self, statement: Select[Any], **values: Any) -> list[ApprovalRecord]:
        rows = await self._database.rows(statement, {"where_tenant": self._tenant, **values})
        return [ApprovalRecord(**row._mapping) for row in rows]

    def _single(self, records: list[ApprovalRecord]) -> ApprovalRecord | None:
        return records[0] if records else None


async def overdue(database: Database, now: float, limit: int) -> list[tuple[str, str]]:
    """
    Return tenant and id of the open requests of any tenant whose time is over, the oldest first.
    """
    rows = await database.rows(_OVERDUE, {"now": now, "max_rows": limit})
    return [(row.tenant, row.id) for row in rows]


async def waiting_of(database: Database, keys: Set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return those of these requests of any tenant (tenant and id) that wait."""
    pairs = list(keys)
    if database.dialect == "sqlite":
        encoded = msgspec.json.encode([(escaped(tenant), escaped(name)) for tenant, name in pairs])
        rows = await database.rows(_STATES_OF_JSON, {"pairs": encoded.decode()})
        return {pairs[row.place] for row in rows if row.state == "waiting"}
    values = {
        "where_tenants": [tenant for tenant, _ in pairs],
        "where_ids": [approval_id for _, approval_id in pairs],
    }
    rows = await database.rows(_STATES_OF_PAIRS, values)
    return {(row.tenant, row.id) for row in rows if row.state == "waiting"}
