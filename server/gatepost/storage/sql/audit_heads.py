"""The heads of the chains of audit records: locked while records are added, and moved."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import bindparam, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gatepost.storage.audit import Batch, ChainHead, Checkpoint, Link, Segment, Sign
from gatepost.storage.sql.database import Database
from gatepost.storage.sql.tables import (
    AUDIT_CHECKPOINTS,
    AUDIT_HEADS,
    AUDIT_SEGMENTS,
    insert_into,
)

_HEADS, _CHECKPOINTS = AUDIT_HEADS.c, AUDIT_CHECKPOINTS.c
_END = [_HEADS[name] for name in ChainHead.__struct_fields__]

_TURN = select(
    func.pg_advisory_xact_lock(
        func.hashtextextended(bindparam("its_tenant", type_=_HEADS.tenant.type), 0)
    )
)


@cache
def _keep(dialect: str) -> Any:
    put = insert_into(AUDIT_HEADS, dialect)
    fields = [name for name in ChainHead.__struct_fields__ if name != "tenant"]
    changes = {name: put.excluded[name] for name in fields}
    return put.on_conflict_do_update(index_elements=[_HEADS.tenant], set_=changes)


@cache
def _sign(dialect: str) -> Any:
    # Another process may have signed the same head a moment ago.
    put = insert_into(AUDIT_CHECKPOINTS, dialect)
    changes = {name: put.excluded[name] for name in ("statement", "signature")}
    places = [_CHECKPOINTS.tenant, _CHECKPOINTS.number]
    return put.on_conflict_do_update(index_elements=places, set_=changes)


async def checked(database: Database, tenants: Sequence[str], sign: Sign) -> dict[str, Checkpoint]:
    """Add checkpoints of these tenants' heads, all or none; *tenants* as for `locked`."""
    return await database.apart(_checked(database, tenants, sign))


async def _checked(database: Database, tenants: Sequence[str], sign: Sign) -> dict[str, Checkpoint]:
    async with database.transaction() as connection:
        heads = await locked(connection, tenants)
        made = {
            tenant: signed
            for tenant, head in heads.items()
            if head is not None and (signed := sign(head)) is not None
        }
        if made:
            values = [
                {"tenant": tenant, **msgspec.structs.asdict(checkpoint)}
                for tenant, (checkpoint, _) in made.items()
            ]
            await connection.execute(_sign(database.dialect), values)
            await keep(connection, [head for _, head in made.values()])
    return {tenant: checkpoint for tenant, (checkpoint, _) in made.items()}


async def locked(
    connection: AsyncConnection, tenants: Sequence[str]
) -> dict[str, ChainHead | None]:
    """
    Return the heads of these chains, locked until the transaction ends.

    *tenants* must be sorted, so that two processes cannot wait for each other.
    """
    found = select(*_END).where(_HEADS.tenant.in_(tenants)).order_by(_HEADS.tenant)
    heads: dict[str, ChainHead | None] = dict.fromkeys(tenants)
    heads |= {
        row.tenant: ChainHead(**row._mapping)
        for row in await connection.execute(found.with_for_update())
    }
    missing = [tenant for tenant in tenants if heads[tenant] is None]
    if missing and connection.dialect.name == "postgresql":
        # A missing row cannot be locked, so the first transaction takes an advisory lock instead.
        for tenant in missing:
            await connection.execute(_TURN, {"its_tenant": tenant})
        again = select(*_END).where(_HEADS.tenant.in_(missing)).with_for_update()
        there = await connection.execute(again)
        heads |= {row.tenant: ChainHead(**row._mapping) for row in there}
    return heads


async def add(
    connection: AsyncConnection, batch: Batch, heads: dict[str, ChainHead | None], link: Link
) -> None:
    """Add drafts after the heads."""
    made: dict[str, list[Segment]] = {}
    after: list[ChainHead] = []
    for tenant, drafts in batch.items():
        made[tenant], head = link(tenant, heads[tenant], drafts)
        after.append(head)
    if after:
        await put(connection, made)
        await keep(connection, after)


async def put(connection: AsyncConnection, made: Mapping[str, Sequence[Segment]]) -> None:
    """Add segments."""
    values = [
        {"tenant": tenant, **msgspec.structs.asdict(segment)}
        for tenant, segments in made.items()
        for segment in segments
    ]
    if values:
        await connection.execute(insert(AUDIT_SEGMENTS), values)


async def keep(connection: AsyncConnection, heads: Sequence[ChainHead]) -> None:
    """Replace the heads of these chains."""
    values = [msgspec.structs.asdict(head) for head in heads]
    await connection.execute(_keep(connection.dialect.name), values)
