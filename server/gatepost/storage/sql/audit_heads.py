"""The heads of chains: lock them while records are erased, removed or signed, and move them."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, bindparam, func, insert, select, tuple_

from gatepost.storage.audit import (
    CHECKPOINTS,
    ChainHead,
    ChainKey,
    Checkpoint,
    Link,
    RecordsByChain,
    Segment,
    Sign,
)
from gatepost.storage.audit_segments import end_of
from gatepost.storage.sql.database import Database
from gatepost.storage.sql.tables import (
    AUDIT_CHECKPOINTS,
    AUDIT_HEADS,
    AUDIT_SEGMENTS,
    NOT_TEXT,
    insert_into,
)

_HEADS, _CHECKPOINTS = AUDIT_HEADS.c, AUDIT_CHECKPOINTS.c
HEAD_COLUMNS = [_HEADS[name] for name in ChainHead.__struct_fields__]
_KEY = [_HEADS.tenant, _HEADS.writer]

_LOCK_HEAD = select(
    func.pg_advisory_xact_lock(
        func.hashtextextended(
            bindparam("where_tenant", type_=_HEADS.tenant.type), bindparam("where_writer")
        )
    )
)


_NUMBERED = (
    select(_CHECKPOINTS.tenant, func.max(_CHECKPOINTS.number))
    .where(_CHECKPOINTS.tenant.in_(bindparam("tenants", expanding=True)))
    .group_by(_CHECKPOINTS.tenant)
)
_LATEST = select(
    _CHECKPOINTS.tenant, *(_CHECKPOINTS[name] for name in Checkpoint.__struct_fields__)
).where(tuple_(_CHECKPOINTS.tenant, _CHECKPOINTS.number).in_(_NUMBERED))


@cache
def _replace_statement(dialect: str) -> Any:
    upsert = insert_into(AUDIT_HEADS, dialect)
    fields = [name for name in ChainHead.__struct_fields__ if name not in {"tenant", "writer"}]
    changes = {name: upsert.excluded[name] for name in fields}
    return upsert.on_conflict_do_update(index_elements=_KEY, set_=changes)


@cache
def _sign(dialect: str) -> Any:
    # Another process may have signed the same heads a moment ago.
    upsert = insert_into(AUDIT_CHECKPOINTS, dialect)
    changes = {name: upsert.excluded[name] for name in ("statement", "signature")}
    columns = [_CHECKPOINTS.tenant, _CHECKPOINTS.number]
    return upsert.on_conflict_do_update(index_elements=columns, set_=changes)


_SEGMENTS = AUDIT_SEGMENTS.c
_NEWEST_RECORDS = (
    select(_SEGMENTS.last, _SEGMENTS.first)
    .where(
        _SEGMENTS.tenant == bindparam("where_tenant"),
        _SEGMENTS.writer == bindparam("where_writer"),
        # SQLite accepts any value in any column, and sorts texts after numbers.
        _SEGMENTS.first < bindparam("too_high"),
    )
    .order_by(_SEGMENTS.first.desc())
    .limit(1)
)
_SEGMENT = select(*(_SEGMENTS[name] for name in Segment.__struct_fields__)).where(
    _SEGMENTS.tenant == bindparam("where_tenant"),
    _SEGMENTS.writer == bindparam("where_writer"),
    _SEGMENTS.first == bindparam("where_first"),
)

OF_WALS = ""
"""The tenant of the heads that record how far write-ahead logs are merged (`sqlite_audit_wal`)."""
TOO_HIGH = 1 << 62
"""
The highest number of a chain that is accepted: a few numbers later a database cannot store the next
one.
"""
_TYPES = (str, int, int, bytes, int, str)
"""The types of the columns of a head."""


def stored_head(row: Iterable[Any]) -> ChainHead:
    """
    Return a head from the columns `HEAD_COLUMNS`; a value of another type becomes an impossible
    one.
    """
    # SQLite accepts any value in any column.
    values = (*row,)
    if (*map(type, values),) == _TYPES and max(values[1], values[2], values[4]) < TOO_HIGH:
        return ChainHead(*values)  # nearly always
    return ChainHead(*_typed(values, ("", -1, -1, b"", -1, "")))


def stored_checkpoint(row: Iterable[Any]) -> Checkpoint:
    """Return a checkpoint from its columns, as `stored_head` does."""
    return Checkpoint(*_typed(row, (-1, "", "")))


def _typed(row: Iterable[Any], otherwise: Sequence[Any]) -> list[Any]:
    return [
        value
        if type(value) is type(default) and not (isinstance(value, int) and value >= TOO_HIGH)
        else default
        for value, default in zip(row, otherwise, strict=True)
    ]


async def checked(database: Database, tenants: Sequence[str], sign: Sign) -> dict[str, Checkpoint]:
    """Add checkpoints of these tenants, all or none; *tenants* must be sorted."""
    return await database.transaction(partial(_checked, tenants, sign))


def _checked(tenants: Sequence[str], sign: Sign, connection: Connection) -> dict[str, Checkpoint]:
    # Writers are not locked: a checkpoint covers the records that are there now.
    locked(connection, [(tenant, CHECKPOINTS) for tenant in tenants])
    ends = select(*HEAD_COLUMNS).where(_HEADS.tenant.in_(tenants)).order_by(*_KEY)
    heads = by_tenant(connection.execute(ends))
    latest = connection.execute(_LATEST, {"tenants": list(tenants)})
    newest = {tenant: stored_checkpoint(signed) for tenant, *signed in latest}
    new_checkpoints = {
        tenant: signed
        for tenant in heads
        if (signed := sign(heads[tenant], newest.get(tenant))) is not None
    }
    if new_checkpoints:
        values = [
            {"tenant": tenant, **msgspec.structs.asdict(checkpoint)}
            for tenant, (checkpoint, _) in new_checkpoints.items()
        ]
        connection.execute(_sign(connection.dialect.name), values)
        replace_heads(connection, [head for _, head in new_checkpoints.values()])
    return {tenant: checkpoint for tenant, (checkpoint, _) in new_checkpoints.items()}


def by_tenant(rows: Iterable[Row[Any]]) -> dict[str, list[ChainHead]]:
    """Return heads by tenant, in their order; those of a value that is no text are left out."""
    heads_by_tenant: dict[str, list[ChainHead]] = {}
    for row in rows:
        if row.tenant != NOT_TEXT:
            heads_by_tenant.setdefault(row.tenant, []).append(stored_head(row))
    return heads_by_tenant


def locked(connection: Connection, chains: Sequence[ChainKey]) -> dict[ChainKey, ChainHead | None]:
    """
    Return the heads of these chains, locked until the transaction ends.

    *chains* must be sorted, so that two processes cannot wait for each other.
    """
    heads: dict[ChainKey, ChainHead | None] = dict.fromkeys(chains)
    heads |= _ends(connection, chains)
    missing = [chain for chain in chains if heads[chain] is None]
    if missing and connection.dialect.name == "postgresql":
        # A missing row cannot be locked, so the first transaction takes an advisory lock instead.
        for tenant, writer in missing:
            connection.execute(_LOCK_HEAD, {"where_tenant": tenant, "where_writer": writer})
        heads |= _ends(connection, missing)
    return heads


def _ends(connection: Connection, chains: Sequence[ChainKey]) -> dict[ChainKey, ChainHead]:
    query = select(*HEAD_COLUMNS).where(in_chains(chains)).order_by(*_KEY).with_for_update()
    heads = map(stored_head, connection.execute(query))
    return {head.key: head for head in heads}


def recorded_end(
    connection: Connection, chain: ChainKey, head: ChainHead | None
) -> ChainHead | None:
    """
    Return the end of a chain that records are added after.

    It is the head unless records stand after that one, because it was set back. Records that are
    added after such a head would get the numbers of those that are there.
    """
    where_values: dict[str, Any] = {"where_tenant": chain[0], "where_writer": chain[1]}
    result = connection.execute(_NEWEST_RECORDS, {**where_values, "too_high": TOO_HIGH})
    newest = result.first()
    if newest is None or not is_beyond(newest, head):
        return head
    result = connection.execute(_SEGMENT, {**where_values, "where_first": newest.first})
    values: Sequence[Any] = result.one()
    return end_of(chain, head, Segment(*values))


def is_beyond(newest: Sequence[Any], head: ChainHead | None) -> bool:
    """Return whether a segment with this ``last`` and ``first`` stands after the head."""
    number = 0 if head is None else head.number
    return any(
        isinstance(stored_number, int) and number < stored_number < TOO_HIGH
        for stored_number in newest
    )


def in_chains(chains: Sequence[ChainKey]) -> Any:
    """Return the condition that a head is that of one of these chains."""
    return tuple_(*_KEY, types=[column.type for column in _KEY]).in_(chains)


def add(
    connection: Connection,
    batch: RecordsByChain,
    heads: Mapping[ChainKey, ChainHead | None],
    link: Link,
) -> None:
    """Add new records after the heads, or after the records behind them."""
    after: list[ChainHead] = []
    for chain, new_records in batch.items():
        current_head = (
            heads[chain] if not new_records else recorded_end(connection, chain, heads[chain])
        )
        segments, head = link(chain, current_head, new_records)
        put(connection, chain[0], segments)
        after.append(head)
    if after:
        replace_heads(connection, after)


def put(connection: Connection, tenant: str, segments: Sequence[Segment]) -> None:
    """Add segments."""
    if segments:
        values = [{"tenant": tenant, **msgspec.structs.asdict(segment)} for segment in segments]
        connection.execute(insert(AUDIT_SEGMENTS), values)


def replace_heads(connection: Connection, heads: Sequence[ChainHead]) -> None:
    """Replace the heads of these chains."""
    values = [msgspec.structs.asdict(head) for head in heads]
    connection.execute(_replace_statement(connection.dialect.name), values)
