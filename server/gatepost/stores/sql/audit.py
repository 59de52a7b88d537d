"""The record of what happened, in SQL."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    not_,
    select,
    union,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gatepost.stores.api import StoreUnavailable
from gatepost.stores.audit import (
    Batch,
    Checkpoint,
    Count,
    Draft,
    Head,
    Link,
    Question,
    Row,
    Segment,
    Sign,
)
from gatepost.stores.segment import (
    Added,
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
from gatepost.stores.sql.database import Database, told
from gatepost.stores.sql.tables import (
    AUDIT_CHECKPOINTS,
    AUDIT_HEADS,
    AUDIT_SEGMENTS,
    insert_into,
)

PAGE = 100
"""Segments that are read at once."""
FEW = 8
"""Where the newest answers are wanted, which are mostly in the newest segments."""

_SEGMENTS, _HEADS, _CHECKPOINTS = AUDIT_SEGMENTS.c, AUDIT_HEADS.c, AUDIT_CHECKPOINTS.c
_FIELDS = [_SEGMENTS[name] for name in Segment.__struct_fields__]
_END = [_HEADS[name] for name in Head.__struct_fields__]
_SIGNED = [_CHECKPOINTS[name] for name in Checkpoint.__struct_fields__]
_OURS = _SEGMENTS.tenant == bindparam("its_tenant")

_BEGIN = {"sqlite": "BEGIN IMMEDIATE", "postgresql": "BEGIN"}
_HEAD = select(*_END).where(_HEADS.tenant == bindparam("its_tenant"))
_ALL_HEADS = select(*_END)
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

_TURN = select(
    func.pg_advisory_xact_lock(
        func.hashtextextended(bindparam("its_tenant", type_=_HEADS.tenant.type), 0)
    )
)


@cache
def _keep(dialect: str) -> Any:
    put = insert_into(AUDIT_HEADS, dialect)
    fields = [name for name in Head.__struct_fields__ if name != "tenant"]
    changes = {name: put.excluded[name] for name in fields}
    return put.on_conflict_do_update(index_elements=[_HEADS.tenant], set_=changes)


@cache
def _sign(dialect: str) -> Any:
    # Another process may have signed the same head a moment ago.
    put = insert_into(AUDIT_CHECKPOINTS, dialect)
    changes = {name: put.excluded[name] for name in ("statement", "signature")}
    places = [_CHECKPOINTS.tenant, _CHECKPOINTS.number]
    return put.on_conflict_do_update(index_elements=places, set_=changes)


class SqlTrail:
    """See `TenantTrail`."""

    __slots__ = ("_database", "_tenant")

    def __init__(self, database: Database, tenant: str) -> None:
        self._database, self._tenant = database, tenant

    async def head(self) -> Head | None:
        """See `TenantTrail`."""
        found = await self._database.rows(_HEAD, {"its_tenant": self._tenant})
        return Head(**found[0]._mapping) if found else None

    async def rows(self, after: int, limit: int) -> list[Row]:
        """See `TenantTrail`."""
        rows: list[Row] = []
        while (most := min(limit - len(rows), PAGE)) > 0:
            page = await self._page(_BEHIND, after=after, most=most)
            # Not in the loop's thread: a page may be megabytes.
            rows += await asyncio.to_thread(behind, page, after)
            if len(page) < most:
                break
            after = page[-1].last
        return rows[:limit]

    async def segments(self, start: int, limit: int) -> list[Segment]:
        """See `TenantTrail`."""
        return await self._page(_FROM, start=start, most=limit)

    async def find(self, question: Question) -> list[Row]:
        """See `TenantTrail`."""
        narrowed = select(*_FIELDS).where(_OURS, *_narrowed(question))
        newest = narrowed.order_by(_SEGMENTS.first.desc()).limit(bindparam("most"))
        rows: list[Row] = []
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
        """See `TenantTrail`."""
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
        """See `TenantTrail`."""
        found = await self._database.rows(_CHECKS, {"its_tenant": self._tenant})
        return [Checkpoint(**row._mapping) for row in found]

    async def check(self, sign: Sign) -> Checkpoint | None:
        """See `TenantTrail`."""
        return await self._database.apart(self._check(sign))

    async def erase(self, numbers: Sequence[int], drafts: Sequence[Draft], link: Link) -> None:
        """See `TenantTrail`."""
        await self._database.apart(self._erase(numbers, drafts, link))

    async def prune(self, through: int, drafts: Sequence[Draft], link: Link) -> None:
        """See `TenantTrail`."""
        await self._database.apart(self._prune(through, drafts, link))

    async def _check(self, sign: Sign) -> Checkpoint | None:
        async with transaction(self._database) as connection:
            head = (await locked(connection, [self._tenant]))[self._tenant]
            if head is None or (made := sign(head)) is None:
                return None
            checkpoint, head = made
            values = {"tenant": self._tenant, **msgspec.structs.asdict(checkpoint)}
            await connection.execute(_sign(self._database.dialect), values)
            await keep(connection, [head])
            return checkpoint

    async def _erase(self, numbers: Sequence[int], drafts: Sequence[Draft], link: Link) -> None:
        async with transaction(self._database) as connection:
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

    async def _prune(self, through: int, drafts: Sequence[Draft], link: Link) -> None:
        async with transaction(self._database) as connection:
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


def _narrowed(question: Question) -> Iterator[ColumnElement[bool]]:
    """What segments must be like that hold an answer; more may be."""
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


class SqlScribe:
    """See `Scribe`; for a database whose driver answers the loop."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(self, make: Callable[[], Batch], link: Link) -> dict[str, Sequence[Row]]:
        """See `Scribe`."""
        batch = await asyncio.to_thread(make)
        try:
            return await self._database.apart(self._write(batch, link))
        except IntegrityError as error:
            # Somebody else has put a record where the next one goes.
            raise StoreUnavailable(told(error.orig or error)) from None

    async def heads(self) -> list[Head]:
        """See `Scribe`."""
        return [Head(**row._mapping) for row in await self._database.rows(_ALL_HEADS, {})]

    async def tenants(self) -> list[str]:
        """See `Scribe`."""
        return sorted(row.tenant for row in await self._database.rows(_TENANTS, {}))

    async def aclose(self) -> None:
        """There is nothing of its own to close."""

    async def _write(self, batch: Batch, link: Link) -> dict[str, Sequence[Row]]:
        async with transaction(self._database) as connection:
            heads = await locked(connection, sorted(batch))
            return await add(connection, batch, heads, link)


@contextlib.asynccontextmanager
async def transaction(database: Database) -> AsyncIterator[AsyncConnection]:
    """A connection whose statements count all together, or none."""
    async with database.engine.connect() as connection:
        await connection.exec_driver_sql(_BEGIN[database.dialect])
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(connection.exec_driver_sql, "ROLLBACK")
            yield connection
            undo.pop_all()
        await connection.exec_driver_sql("COMMIT")


async def locked(connection: AsyncConnection, tenants: Sequence[str]) -> dict[str, Head | None]:
    """
    Where these chains end, for nobody else to move until the transaction is over.

    *tenants* are sorted: two processes that want the same ones must not wait for each other.
    """
    found = select(*_END).where(_HEADS.tenant.in_(tenants)).order_by(_HEADS.tenant)
    heads: dict[str, Head | None] = dict.fromkeys(tenants)
    heads |= {
        row.tenant: Head(**row._mapping)
        for row in await connection.execute(found.with_for_update())
    }
    missing = [tenant for tenant in tenants if heads[tenant] is None]
    if missing and connection.dialect.name == "postgresql":
        # A row that is not there cannot be locked: who is second here waits for who is first.
        for tenant in missing:
            await connection.execute(_TURN, {"its_tenant": tenant})
        again = select(*_END).where(_HEADS.tenant.in_(missing)).with_for_update()
        there = await connection.execute(again)
        heads |= {row.tenant: Head(**row._mapping) for row in there}
    return heads


async def add(
    connection: AsyncConnection, batch: Batch, heads: dict[str, Head | None], link: Link
) -> dict[str, Sequence[Row]]:
    """Put drafts behind the heads."""
    made: dict[str, list[Segment]] = {}
    after: list[Head] = []
    for tenant, drafts in batch.items():
        made[tenant], head = link(tenant, heads[tenant], drafts)
        after.append(head)
    if after:
        await put(connection, made)
        await keep(connection, after)
    return {tenant: Added(segments) for tenant, segments in made.items()}


async def put(connection: AsyncConnection, made: Mapping[str, Sequence[Segment]]) -> None:
    """Add segments."""
    values = [
        {"tenant": tenant, **msgspec.structs.asdict(segment)}
        for tenant, segments in made.items()
        for segment in segments
    ]
    if values:
        await connection.execute(insert(AUDIT_SEGMENTS), values)


async def keep(connection: AsyncConnection, heads: Sequence[Head]) -> None:
    """Put these heads in the place of those before."""
    values = [msgspec.structs.asdict(head) for head in heads]
    await connection.execute(_keep(connection.dialect.name), values)
