"""The record of what happened, in SQL."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import bindparam, delete, func, insert, or_, select, union, update
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
    Sign,
)
from gatepost.stores.sql.database import Database, told
from gatepost.stores.sql.tables import (
    AUDIT_CHECKPOINTS,
    AUDIT_HEADS,
    AUDIT_RECORDS,
    insert_into,
)

AT_ONCE = 500
"""Rows that one statement changes or removes."""

_RECORDS, _HEADS, _CHECKPOINTS = AUDIT_RECORDS.c, AUDIT_HEADS.c, AUDIT_CHECKPOINTS.c
_FIELDS = [_RECORDS[name] for name in Row.__struct_fields__]
_END = [_HEADS[name] for name in Head.__struct_fields__]
_SIGNED = [_CHECKPOINTS[name] for name in Checkpoint.__struct_fields__]
_OURS = _RECORDS.tenant == bindparam("its_tenant")

_BEGIN = {"sqlite": "BEGIN IMMEDIATE", "postgresql": "BEGIN"}
_HEAD = select(*_END).where(_HEADS.tenant == bindparam("its_tenant"))
_ALL_HEADS = select(*_END)
_TENANTS = union(
    *(select(table.c.tenant) for table in (AUDIT_HEADS, AUDIT_RECORDS, AUDIT_CHECKPOINTS))
)
_ROWS = (
    select(*_FIELDS)
    .where(_OURS, _RECORDS.number > bindparam("after"))
    .order_by(_RECORDS.number)
    .limit(bindparam("most"))
)
_CHECKS = (
    select(*_SIGNED)
    .where(_CHECKPOINTS.tenant == bindparam("its_tenant"))
    .order_by(_CHECKPOINTS.number)
)
_ERASE = (
    update(AUDIT_RECORDS)
    .where(_OURS, _RECORDS.number == bindparam("its_number"))
    .values(side=None, subject=None)
)
_PRUNE = delete(AUDIT_RECORDS).where(_OURS, _RECORDS.number <= bindparam("through"))
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
        which = {"its_tenant": self._tenant, "after": after, "most": limit}
        return [Row(**row._mapping) for row in await self._database.rows(_ROWS, which)]

    async def find(self, question: Question) -> list[Row]:
        """See `TenantTrail`."""
        wanted = [_RECORDS.tenant == self._tenant]
        wanted += [
            _RECORDS[name] == value
            for name in ("tool", "subject", "outcome", "kind")
            if (value := getattr(question, name)) is not None
        ]
        if question.text is not None:
            # As it stands in JSON.
            text = msgspec.json.encode(question.text)[1:-1].decode()
            columns = (_RECORDS.body, _RECORDS.side)
            wanted.append(or_(*(each.icontains(text, autoescape=True) for each in columns)))
        if question.since is not None:
            wanted.append(_RECORDS.at >= question.since)
        if question.until is not None:
            wanted.append(_RECORDS.at < question.until)
        if question.before is not None:
            wanted.append(_RECORDS.number < question.before)
        newest = select(*_FIELDS).where(*wanted).order_by(_RECORDS.number.desc())
        return [
            Row(**row._mapping)
            for row in await self._database.rows(newest.limit(question.limit), {})
        ]

    async def count(self, since: int, slice_ms: int) -> list[Count]:
        """See `TenantTrail`."""
        at = (_RECORDS.at - _RECORDS.at % slice_ms).label("at")
        key = (at, _RECORDS.kind, _RECORDS.tool, _RECORDS.outcome)
        wanted = (_RECORDS.tenant == self._tenant, _RECORDS.at >= since)
        statement = select(*key, func.count().label("records")).where(*wanted).group_by(*key)
        found = [Count(**row._mapping) for row in await self._database.rows(statement, {})]
        return sorted(found, key=lambda one: (one.at, one.kind, one.tool, one.outcome))

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
            which = [{"its_tenant": self._tenant, "its_number": number} for number in numbers]
            if which:
                await connection.execute(_ERASE, which)
            await add(connection, {self._tenant: drafts}, {self._tenant: head}, link)

    async def _prune(self, through: int, drafts: Sequence[Draft], link: Link) -> None:
        async with transaction(self._database) as connection:
            head = (await locked(connection, [self._tenant]))[self._tenant]
            which = {"its_tenant": self._tenant, "through": through}
            base = _CHECKPOINTS.tenant == self._tenant, _CHECKPOINTS.number == through
            if (await connection.execute(select(*_SIGNED).where(*base))).first() is None:
                raise LookupError(through)
            await connection.execute(_PRUNE, which)
            await connection.execute(_FORGET, which)
            await add(connection, {self._tenant: drafts}, {self._tenant: head}, link)


class SqlScribe:
    """See `Scribe`; for a database whose driver answers the loop."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(self, make: Callable[[], Batch], link: Link) -> dict[str, list[Row]]:
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

    async def _write(self, batch: Batch, link: Link) -> dict[str, list[Row]]:
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
) -> dict[str, list[Row]]:
    """Put drafts behind the heads."""
    written: dict[str, list[Row]] = {}
    after: list[Head] = []
    values: list[dict[str, Any]] = []
    for tenant, drafts in batch.items():
        rows, head = link(tenant, heads[tenant], drafts)
        written[tenant] = rows
        after.append(head)
        values += [{"tenant": tenant, **msgspec.structs.asdict(row)} for row in rows]
    if values:
        await connection.execute(insert(AUDIT_RECORDS), values)
        await keep(connection, after)
    return written


async def keep(connection: AsyncConnection, heads: Sequence[Head]) -> None:
    """Put these heads in the place of those before."""
    values = [msgspec.structs.asdict(head) for head in heads]
    await connection.execute(_keep(connection.dialect.name), values)
