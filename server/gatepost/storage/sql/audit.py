"""The audit store in SQL: search, count and prune the records of tenants, and read all heads."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    case,
    delete,
    func,
    or_,
    select,
    tuple_,
    union,
)

from gatepost.storage.audit import (
    CHECKPOINTS,
    AuditQuery,
    AuditRow,
    ChainHead,
    Checkpoint,
    Count,
    Link,
    NewAuditRecord,
    RecordsByChain,
    Segment,
    Sign,
)
from gatepost.storage.audit_search import matching, newest, quoted
from gatepost.storage.audit_segments import intact, remainder
from gatepost.storage.sql import audit_sums
from gatepost.storage.sql.audit_chain import FIELDS, PAGE_SIZE, LinkPending, SqlChain, as_segments
from gatepost.storage.sql.audit_heads import (
    HEAD_COLUMNS,
    OF_WALS,
    add,
    by_tenant,
    checked,
    locked,
    put,
    stored_checkpoint,
    stored_head,
)
from gatepost.storage.sql.database import Database
from gatepost.storage.sql.tables import (
    AUDIT_CHECKPOINTS,
    AUDIT_HEADS,
    AUDIT_SEGMENTS,
)

LAST_TIME = (1 << 63) - 1
"""The last time that a database can store."""
NEWEST_SEGMENTS = 8
"""The number of segments that are read first for the newest records, which are mostly there."""

_SEGMENTS, _HEADS, _CHECKPOINTS = AUDIT_SEGMENTS.c, AUDIT_HEADS.c, AUDIT_CHECKPOINTS.c
_SIGNED = [_CHECKPOINTS[name] for name in Checkpoint.__struct_fields__]
_OF_TENANT = _SEGMENTS.tenant == bindparam("where_tenant")
_OF_WRITER = and_(_OF_TENANT, _SEGMENTS.writer == bindparam("where_writer"))

_ENDS = (
    select(*HEAD_COLUMNS).where(_HEADS.tenant == bindparam("where_tenant")).order_by(_HEADS.writer)
)
_WRITERS = union(
    select(_SEGMENTS.writer).where(_OF_TENANT),
    select(_HEADS.writer).where(_HEADS.tenant == bindparam("where_tenant")),
)
_GROWN = func.sum(case((_HEADS.writer == CHECKPOINTS, -_HEADS.number), else_=_HEADS.number)) != 0
_OTHER_KEY = func.max(case((_HEADS.proof.startswith(bindparam("key")), 0), else_=1)) == 1
_AFTER = (
    select(_HEADS.tenant)
    .where(_HEADS.tenant > bindparam("after", type_=_HEADS.tenant.type))
    .group_by(_HEADS.tenant)
    .order_by(_HEADS.tenant)
    .limit(bindparam("max_rows"))
)


def _heads_of(tenants: Select[Any]) -> Select[Any]:
    return (
        select(*HEAD_COLUMNS)
        .where(_HEADS.tenant.in_(tenants.scalar_subquery()))
        .order_by(_HEADS.tenant, _HEADS.writer)
    )


_HEADS_BEHIND = _heads_of(_AFTER)
_UNSIGNED = _heads_of(_AFTER.having(or_(_GROWN, _OTHER_KEY)))
_TENANTS = union(
    *(select(table.c.tenant) for table in (AUDIT_HEADS, AUDIT_SEGMENTS, AUDIT_CHECKPOINTS))
)
_CHECKS = (
    select(*_SIGNED)
    .where(_CHECKPOINTS.tenant == bindparam("where_tenant"))
    .order_by(_CHECKPOINTS.number)
)
_CUT = (
    select(*FIELDS)
    .where(
        _OF_WRITER, _SEGMENTS.first <= bindparam("through"), _SEGMENTS.last > bindparam("through")
    )
    .order_by(_SEGMENTS.first)
)
_PRUNE = delete(AUDIT_SEGMENTS).where(_OF_WRITER, _SEGMENTS.first <= bindparam("through"))
_FORGET = delete(AUDIT_CHECKPOINTS).where(
    _CHECKPOINTS.tenant == bindparam("where_tenant"), _CHECKPOINTS.number < bindparam("through")
)
_NEWEST = (_SEGMENTS.until, _SEGMENTS.writer, _SEGMENTS.first)
# Answered from the index alone.
_HORIZON = (
    select(_SEGMENTS.until)
    .where(_OF_TENANT, _SEGMENTS.until <= bindparam("before"))
    .order_by(*(column.desc() for column in _NEWEST))
    .offset(bindparam("segments"))
    .limit(1)
)


class SqlTenantAuditLog:
    """The `TenantAuditLog` of one tenant, in SQL tables."""

    __slots__ = ("_database", "_link_pending", "_tenant")

    def __init__(self, database: Database, link_pending: LinkPending, tenant: str) -> None:
        self._database, self._link_pending, self._tenant = database, link_pending, tenant

    def chain(self, writer: int) -> SqlChain:
        """Implement `TenantAuditLog`."""
        return SqlChain(self._database, self._link_pending, self._tenant, writer)

    async def heads(self) -> list[ChainHead]:
        """Implement `TenantAuditLog`."""
        await self._link_pending()
        rows = await self._database.rows(_ENDS, {"where_tenant": self._tenant})
        return [*map(stored_head, rows)]

    async def writers(self) -> list[int]:
        """Implement `TenantAuditLog`."""
        await self._link_pending()
        rows = await self._database.rows(_WRITERS, {"where_tenant": self._tenant})
        # SQLite accepts any value in any column.
        writers = {row.writer if isinstance(row.writer, int) else -1 for row in rows}
        return sorted(writers - {CHECKPOINTS})

    async def find(self, query: AuditQuery) -> list[AuditRow]:
        """Implement `TenantAuditLog`."""
        await self._link_pending()
        narrowed = select(*FIELDS).where(_OF_TENANT, *_narrowed(query))
        latest = narrowed.order_by(*(column.desc() for column in _NEWEST))
        latest = latest.limit(bindparam("max_rows"))
        rows: list[AuditRow] = []
        older, page_size = latest, NEWEST_SEGMENTS
        while True:
            page = await self._page(older, max_rows=page_size)
            rows += await asyncio.to_thread(matching, page, query)
            if len(page) < page_size:
                return newest(rows, query.limit)
            # The records of later segments end by this time.
            last = page[-1]
            if sum(row.at > last.until for row in rows) >= query.limit:
                return newest(rows, query.limit)
            older = latest.where(tuple_(*_NEWEST) < (last.until, last.writer, last.first))
            page_size = min(page_size * 2, PAGE_SIZE)

    async def horizon(self, before: int | None, segments: int) -> int | None:
        """Implement `TenantAuditLog`."""
        await self._link_pending()
        before = LAST_TIME if before is None else before
        where_values = {"where_tenant": self._tenant, "before": before, "segments": segments}
        rows = await self._database.rows(_HORIZON, where_values)
        return rows[0].until if rows and isinstance(rows[0].until, int) else None

    async def count(self, since: int, slice_ms: int) -> list[Count]:
        """Implement `TenantAuditLog`."""
        await self._link_pending()
        return await audit_sums.counted(self._database, self._tenant, since, slice_ms)

    async def forget_counts(self) -> None:
        """Implement `TenantAuditLog`."""
        await self._link_pending()
        await audit_sums.forget(self._database, self._tenant)

    async def checkpoints(self) -> list[Checkpoint]:
        """Implement `TenantAuditLog`."""
        rows = await self._database.rows(_CHECKS, {"where_tenant": self._tenant})
        return [*map(stored_checkpoint, rows)]

    async def check(self, sign: Sign) -> Checkpoint | None:
        """Implement `TenantAuditLog`."""
        await self._link_pending()
        return (await checked(self._database, [self._tenant], sign)).get(self._tenant)

    async def prune(
        self,
        through: Mapping[int, int],
        new_records: Mapping[int, Sequence[NewAuditRecord]],
        link: Link,
    ) -> bool:
        """Implement `TenantAuditLog`."""
        await self._link_pending()
        prune = partial(self._prune, through, new_records, link)
        return await self._database.transaction(prune)

    def _prune(
        self,
        through: Mapping[int, int],
        new_records: Mapping[int, Sequence[NewAuditRecord]],
        link: Link,
        connection: Connection,
    ) -> bool:
        tenant = self._tenant
        heads = locked(connection, [(tenant, writer) for writer in sorted(new_records)])
        signed = heads[tenant, CHECKPOINTS]
        if signed is not None and signed.pruned >= through[CHECKPOINTS]:
            return False
        base = {"where_tenant": tenant, "through": through[CHECKPOINTS]}
        conditions = _CHECKPOINTS.tenant == tenant, _CHECKPOINTS.number == through[CHECKPOINTS]
        if connection.execute(select(*_SIGNED).where(*conditions)).first() is None:
            raise LookupError(through[CHECKPOINTS])
        for writer in through.keys() - {CHECKPOINTS}:
            values = {**base, "where_writer": writer, "through": through[writer]}
            outdated = intact(as_segments(connection.execute(_CUT, values)))
            connection.execute(_PRUNE, values)
            remaining = [
                part for segment in outdated for part in remainder(segment, through[writer])
            ]
            put(connection, tenant, remaining)
        connection.execute(_FORGET, base)
        batch = {(tenant, writer): new_records[writer] for writer in new_records}
        add(connection, batch, heads, link)
        return True

    async def _page(self, statement: Select[Any], **where_values: int) -> list[Segment]:
        values = {"where_tenant": self._tenant, **where_values}
        return intact(as_segments(await self._database.rows(statement, values)))


def _narrowed(query: AuditQuery) -> Iterator[ColumnElement[bool]]:
    """Yield conditions that every segment with a matching record meets."""
    if query.before is not None:
        yield _SEGMENTS.since <= query.before[0]
    if query.since is not None:
        yield _SEGMENTS.until >= query.since
    if query.until is not None:
        yield _SEGMENTS.since < query.until
    for word in (query.kind, query.tool, query.outcome):
        if word is not None:
            yield _SEGMENTS.counts.contains(f'"{quoted(word)}"', autoescape=True)
    if query.subject is not None:
        # Within the details, the caller is JSON in JSON.
        subject = quoted(f'"subject":"{quoted(query.subject)}"')
        yield _SEGMENTS.records.contains(subject, autoescape=True)
    if query.text is not None:
        yield _SEGMENTS.records.icontains(quoted(query.text), autoescape=True)


class SqlAuditStore(ABC):
    """
    The part of `AuditStore` that all databases share; each database writes with a statement of its
    own.
    """

    is_failing = False

    def __init__(self, database: Database) -> None:
        self._database = database

    def tenant_log(self, tenant: str) -> SqlTenantAuditLog:
        """Implement `AuditStore`."""
        return SqlTenantAuditLog(self._database, self.link_pending, tenant)

    async def link_pending(self) -> None:  # noqa: B027  # only SQLite links later
        """Do nothing: no records wait to be linked, unless a database does otherwise."""

    @abstractmethod
    async def write(self, batch: RecordsByChain, link: Link) -> None:
        """Implement `AuditStore`."""

    async def sign(self, tenants: Sequence[str], sign: Sign) -> dict[str, Checkpoint]:
        """Implement `AuditStore`."""
        return await checked(self._database, sorted(tenants), sign)

    async def heads(
        self, after: str, limit: int, *, unsigned: str | None = None
    ) -> dict[str, list[ChainHead]]:
        """Implement `AuditStore`."""
        await self.link_pending()
        where_values: dict[str, Any] = {"after": after, "max_rows": limit}
        if unsigned is None:
            rows = await self._database.rows(_HEADS_BEHIND, where_values)
        else:
            rows = await self._database.rows(_UNSIGNED, {**where_values, "key": f"{unsigned}."})
        return by_tenant(rows)

    async def tenants(self) -> list[str]:
        """Implement `AuditStore`."""
        await self.link_pending()
        rows = await self._database.rows(_TENANTS, {})
        return sorted({row.tenant for row in rows} - {OF_WALS})

    async def aclose(self) -> None:  # noqa: B027  # only some have more to close
        """Do nothing, because the database is closed with the records."""
