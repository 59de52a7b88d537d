"""The audit store in SQL: reading, searching, counting, erasing and pruning records."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    bindparam,
    delete,
    func,
    not_,
    or_,
    select,
    union,
    update,
)
from sqlalchemy.exc import IntegrityError

from gatepost.storage.audit import (
    AuditDraft,
    AuditQuery,
    AuditRow,
    Batch,
    ChainHead,
    Checkpoint,
    Count,
    Link,
    Segment,
    Sign,
)
from gatepost.storage.audit_segments import (
    Counts,
    answers,
    behind,
    erased,
    listed,
    quoted,
    remainder,
    repeated,
    summed,
)
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql.audit_heads import add, checked, locked, put
from gatepost.storage.sql.database import Database, told
from gatepost.storage.sql.tables import (
    AUDIT_CHECKPOINTS,
    AUDIT_HEADS,
    AUDIT_SEGMENTS,
)

PAGE = 100
"""Segments that are read at once."""
FEW = 8
"""Where the newest answers are wanted, which are mostly in the newest segments."""

_SEGMENTS, _HEADS, _CHECKPOINTS = AUDIT_SEGMENTS.c, AUDIT_HEADS.c, AUDIT_CHECKPOINTS.c
_FIELDS = [_SEGMENTS[name] for name in Segment.__struct_fields__]
_END = [_HEADS[name] for name in ChainHead.__struct_fields__]
_SIGNED = [_CHECKPOINTS[name] for name in Checkpoint.__struct_fields__]
_OURS = _SEGMENTS.tenant == bindparam("its_tenant")

_HEAD = select(*_END).where(_HEADS.tenant == bindparam("its_tenant"))
_HEADS_BEHIND = (
    select(*_END)
    .where(_HEADS.tenant > bindparam("after", type_=_HEADS.tenant.type))
    .order_by(_HEADS.tenant)
    .limit(bindparam("most"))
)
_UNSIGNED = _HEADS_BEHIND.where(
    or_(_HEADS.number != _HEADS.checkpoint, not_(_HEADS.proof.startswith(bindparam("key"))))
)
_TENANTS = union(
    *(select(table.c.tenant) for table in (AUDIT_HEADS, AUDIT_SEGMENTS, AUDIT_CHECKPOINTS))
)
_FROM = (
    select(*_FIELDS)
    .where(_OURS, _SEGMENTS.first >= bindparam("start"))
    .order_by(_SEGMENTS.first)
    .limit(bindparam("most"))
)
# From the one on that holds the record behind that number.
_START = select(func.max(_SEGMENTS.first)).where(_OURS, _SEGMENTS.first <= bindparam("after") + 1)
_BEHIND = (
    select(*_FIELDS)
    .where(
        _OURS,
        _SEGMENTS.first >= func.coalesce(_START.scalar_subquery(), bindparam("after")),
        _SEGMENTS.last > bindparam("after"),
    )
    .order_by(_SEGMENTS.first)
    .limit(bindparam("most"))
)
_CHECKS = (
    select(*_SIGNED)
    .where(_CHECKPOINTS.tenant == bindparam("its_tenant"))
    .order_by(_CHECKPOINTS.number)
)
_CHANGE = (
    update(AUDIT_SEGMENTS)
    .where(_OURS, _SEGMENTS.first == bindparam("its_first"))
    .values(records=bindparam("left"))
)
_CUT = (
    select(*_FIELDS)
    .where(_OURS, _SEGMENTS.first <= bindparam("through"), _SEGMENTS.last > bindparam("through"))
    .order_by(_SEGMENTS.first)
)
_PRUNE = delete(AUDIT_SEGMENTS).where(_OURS, _SEGMENTS.first <= bindparam("through"))
_FORGET = delete(AUDIT_CHECKPOINTS).where(
    _CHECKPOINTS.tenant == bindparam("its_tenant"), _CHECKPOINTS.number < bindparam("through")
)


class SqlTrail:
    """Implement `TenantTrail`."""

    __slots__ = ("_database", "_tenant")

    def __init__(self, database: Database, tenant: str) -> None:
        self._database, self._tenant = database, tenant

    async def head(self) -> ChainHead | None:
        """Implement `TenantTrail`."""
        found = await self._database.rows(_HEAD, {"its_tenant": self._tenant})
        return ChainHead(**found[0]._mapping) if found else None

    async def rows(self, after: int, limit: int) -> list[AuditRow]:
        """Implement `TenantTrail`."""
        rows: list[AuditRow] = []
        while (most := min(limit - len(rows), PAGE)) > 0:
            page = await self._page(_BEHIND, after=after, most=most)
            # Not in the loop's thread: a page may be megabytes.
            rows += await asyncio.to_thread(behind, page, after)
            if len(page) < most:
                break
            after = page[-1].last
        return rows[:limit]

    async def segments(self, start: int, limit: int) -> list[Segment]:
        """Implement `TenantTrail`."""
        return await self._page(_FROM, start=start, most=limit)

    async def find(self, question: AuditQuery) -> list[AuditRow]:
        """Implement `TenantTrail`."""
        narrowed = select(*_FIELDS).where(_OURS, *_narrowed(question))
        newest = narrowed.order_by(_SEGMENTS.first.desc()).limit(bindparam("most"))
        rows: list[AuditRow] = []
        older, most = newest, FEW
        while len(rows) < question.limit:
            page = await self._page(older, most=most)
            rows += await asyncio.to_thread(answers, page, question)
            if len(page) < most:
                break
            older = newest.where(_SEGMENTS.first < page[-1].first)
            most = min(most * 2, PAGE)
        return rows[: question.limit]

    async def count(self, since: int, slice_ms: int) -> list[Count]:
        """Implement `TenantTrail`."""
        at = _SEGMENTS.since - _SEGMENTS.since % slice_ms
        within = and_(_SEGMENTS.since >= since, at == _SEGMENTS.until - _SEGMENTS.until % slice_ms)
        wanted = (_SEGMENTS.tenant == self._tenant, _SEGMENTS.until >= since)
        said = (func.min(_SEGMENTS.first).label("first"), func.count().label("times"))
        alike = select(*said, at.label("at"), _SEGMENTS.counts).where(*wanted, within)
        alike = alike.group_by(at, _SEGMENTS.counts)
        counts: Counts = Counter()
        for row in await self._database.rows(alike, {}):
            counts.update(repeated(**row._mapping))
        others = select(*_FIELDS).where(*wanted, not_(within)).order_by(_SEGMENTS.first)
        page = await self._page(others.limit(PAGE))
        while page:
            counts.update(await asyncio.to_thread(summed, page, since, slice_ms))
            page = await self._page(others.where(_SEGMENTS.first > page[-1].first).limit(PAGE))
        return listed(counts)

    async def checkpoints(self) -> list[Checkpoint]:
        """Implement `TenantTrail`."""
        found = await self._database.rows(_CHECKS, {"its_tenant": self._tenant})
        return [Checkpoint(**row._mapping) for row in found]

    async def check(self, sign: Sign) -> Checkpoint | None:
        """Implement `TenantTrail`."""
        return (await checked(self._database, [self._tenant], sign)).get(self._tenant)

    async def erase(self, numbers: Sequence[int], drafts: Sequence[AuditDraft], link: Link) -> None:
        """Implement `TenantTrail`."""
        await self._database.apart(self._erase(numbers, drafts, link))

    async def prune(self, through: int, drafts: Sequence[AuditDraft], link: Link) -> None:
        """Implement `TenantTrail`."""
        await self._database.apart(self._prune(through, drafts, link))

    async def _erase(
        self, numbers: Sequence[int], drafts: Sequence[AuditDraft], link: Link
    ) -> None:
        async with self._database.transaction() as connection:
            head = (await locked(connection, [self._tenant]))[self._tenant]
            wanted, after = frozenset(numbers), min(numbers, default=0) - 1
            while after < max(wanted, default=after):
                which = {"its_tenant": self._tenant, "after": after, "most": PAGE}
                page = _segments(await connection.execute(_BEHIND, which))
                left = await asyncio.to_thread(lambda: [erased(one, wanted) for one in page])  # noqa: B023  # at once
                changes = [
                    {"its_tenant": self._tenant, "its_first": one.first, "left": one.records}
                    for one, before in zip(left, page, strict=True)
                    if one is not before
                ]
                if changes:
                    await connection.execute(_CHANGE, changes)
                if len(page) < PAGE:
                    break
                after = page[-1].last
            await add(connection, {self._tenant: drafts}, {self._tenant: head}, link)

    async def _prune(self, through: int, drafts: Sequence[AuditDraft], link: Link) -> None:
        async with self._database.transaction() as connection:
            head = (await locked(connection, [self._tenant]))[self._tenant]
            which = {"its_tenant": self._tenant, "through": through}
            base = _CHECKPOINTS.tenant == self._tenant, _CHECKPOINTS.number == through
            if (await connection.execute(select(*_SIGNED).where(*base))).first() is None:
                raise LookupError(through)
            cut = _segments(await connection.execute(_CUT, which))
            await connection.execute(_PRUNE, which)
            await put(
                connection, {self._tenant: [x for one in cut for x in remainder(one, through)]}
            )
            await connection.execute(_FORGET, which)
            await add(connection, {self._tenant: drafts}, {self._tenant: head}, link)

    async def _page(self, statement: Select[Any], **which: int) -> list[Segment]:
        values = {"its_tenant": self._tenant, **which}
        return _segments(await self._database.rows(statement, values))


def _segments(rows: Iterable[Any]) -> list[Segment]:
    return [Segment(*row) for row in rows]


def _narrowed(question: AuditQuery) -> Iterator[ColumnElement[bool]]:
    """Yield conditions that every segment with a matching record meets."""
    if question.before is not None:
        yield _SEGMENTS.first < question.before
    if question.since is not None:
        yield _SEGMENTS.until >= question.since
    if question.until is not None:
        yield _SEGMENTS.since < question.until
    for word in (question.kind, question.tool, question.outcome):
        if word is not None:
            yield _SEGMENTS.counts.contains(f'"{quoted(word)}"', autoescape=True)
    if question.subject is not None:
        # In a side the caller is JSON in JSON.
        subject = quoted(f'"subject":"{quoted(question.subject)}"')
        yield _SEGMENTS.records.contains(subject, autoescape=True)
    if question.text is not None:
        yield _SEGMENTS.records.icontains(quoted(question.text), autoescape=True)


class SqlAuditStore:
    """Implement `AuditStore` for a database with an asynchronous driver."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(self, batch: Batch, link: Link) -> None:
        """Implement `AuditStore`."""
        try:
            await self._database.apart(self._write(batch, link))
        except IntegrityError as error:
            # Another process has added the next record.
            raise StoreUnavailable(told(error.orig or error)) from None

    async def sign(self, tenants: Sequence[str], sign: Sign) -> dict[str, Checkpoint]:
        """Implement `AuditStore`."""
        return await checked(self._database, sorted(tenants), sign)

    async def heads(
        self, after: str, limit: int, *, unsigned: str | None = None
    ) -> list[ChainHead]:
        """Implement `AuditStore`."""
        which: dict[str, Any] = {"after": after, "most": limit}
        if unsigned is None:
            found = await self._database.rows(_HEADS_BEHIND, which)
        else:
            found = await self._database.rows(_UNSIGNED, {**which, "key": f"{unsigned}."})
        return [ChainHead(**row._mapping) for row in found]

    async def tenants(self) -> list[str]:
        """Implement `AuditStore`."""
        return sorted(row.tenant for row in await self._database.rows(_TENANTS, {}))

    async def aclose(self) -> None:
        """Do nothing, because the database is closed with the records."""

    async def _write(self, batch: Batch, link: Link) -> None:
        async with self._database.transaction() as connection:
            heads = await locked(connection, sorted(batch))
            await add(connection, batch, heads, link)
