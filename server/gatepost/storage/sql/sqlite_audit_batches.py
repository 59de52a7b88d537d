"""
Batches of audit records in a SQLite file: each is one row until it is merged into the tables.

A batch with records of many tenants changes a page or more for each of them in each table. As a row
of `audit_batches` it is as durable, and takes only the pages of its own bytes. Merging moves many
batches at once: the segments of a chain are joined, its head is moved once, and its sums are added
once. Whatever reads or changes records merges first, in any process.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec.structs import astuple
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from gatepost.storage.audit import Segment, Stored
from gatepost.storage.audit_segments import Damaged, joined
from gatepost.storage.audit_sums import Sums, sums_of
from gatepost.storage.sql.audit_sums import ADDED, rows_of
from gatepost.storage.sql.database import Database
from gatepost.storage.sql.tables import AUDIT_HEADS, AUDIT_SEGMENTS

OF_BATCHES = ""
"""
The tenant of batches and of their heads.

The number of such a head is that of the writer's last batch, and the hash is its digest; `pruned`
is the last batch that was merged, or `DAMAGED`.
"""
DAMAGED = -1
"""Says for ever that a batch of a writer was removed or changed before it was merged."""
MOST_BATCHES = 1 << 62
"""No writer reaches this number."""
MOST_ROWS = 64
"""Rows that one statement adds or reads."""

End = tuple[Stored, bytes, Stored, str]
"""The columns `number`, `hash`, `pruned` and `proof` of a head."""
Key = tuple[str, int]
"""A chain: its tenant, as the database spells it, and its writer."""
RowKey = tuple[Any, Any, Any]
"""The columns `tenant`, `writer` and `number` of a row of `audit_batches`."""
Execute = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
"""Execute a statement with its parameters, and return its rows."""


class ChainGrowth(msgspec.Struct, array_like=True, frozen=True):
    """What a batch adds to one chain."""

    tenant: str
    """As the database spells it."""
    before: bytes
    """The hash of the record before."""
    after: End
    segments: Annotated[list[Segment], msgspec.Meta(min_length=1)]


class StoredBatch(msgspec.Struct, array_like=True, frozen=True):
    """What a row of `audit_batches` contains."""

    writer: Stored
    number: Stored
    growths: list[ChainGrowth]


class Row(NamedTuple):
    """A row of `audit_batches` without the batch; SQLite keeps anything in any column."""

    tenant: Any
    writer: Any
    number: Any
    previous: Any
    digest: Any


encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(StoredBatch).decode

_END = [column.name for column in AUDIT_HEADS.columns]
_SEGMENT = [column.name for column in AUDIT_SEGMENTS.columns]
_MOVED = ", ".join(f"{name} = excluded.{name}" for name in _END[2:])
_ANY = "SELECT 1 FROM audit_batches LIMIT 1"
_ROWS = f"SELECT {', '.join(Row._fields)} FROM audit_batches ORDER BY writer, number"  # noqa: S608  # our names
_KEY = "tenant, writer, number"
_BATCHES = f"SELECT {_KEY}, batch FROM audit_batches WHERE ({_KEY}) IN "  # noqa: S608  # the same
_DELETE = "DELETE FROM audit_batches"
_EXCEPT = f" WHERE ({_KEY}) NOT IN "


@cache
def _heads(size: int) -> str:
    return (
        f"SELECT {', '.join(f'head.{name}' for name in _END)} "  # noqa: S608  # our names
        f"FROM (VALUES {', '.join(['(?, ?)'] * size)}) AS wanted "
        "CROSS JOIN audit_heads AS head "
        "ON head.tenant = wanted.column1 AND head.writer = wanted.column2"
    )


@cache
def _insert(table: str, columns: int, size: int, conflict: str) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"INSERT INTO {table} VALUES {', '.join([row] * size)} {conflict}"  # noqa: S608  # the same


def heads_of(execute: Execute, chains: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
    """Return the columns of the heads of these chains; a missing head is left out."""
    found: dict[Key, tuple[Any, ...]] = {}
    for part in _parts(chains):
        rows = execute(_heads(len(part)), [one for chain in part for one in chain])
        found |= {(row[0], row[1]): row for row in rows}
    return found


def put(
    execute: Execute,
    segments: Sequence[tuple[str, Segment]],
    heads: Sequence[tuple[Any, ...]],
    sums: Sequence[tuple[Any, ...]],
    *,
    conflict: str = "",
) -> None:
    """Add segments with their tenants, and sums, and move heads."""
    rows = [(tenant, *astuple(one)) for tenant, one in segments]
    _put(execute, "audit_segments", rows, conflict)
    moved = f"ON CONFLICT (tenant, writer) DO UPDATE SET {_MOVED}"
    _put(execute, "audit_heads", heads, moved)
    _put(execute, "audit_sums", sums, ADDED)


def _put(execute: Execute, table: str, rows: Sequence[tuple[Any, ...]], conflict: str) -> None:
    for part in _parts(rows):
        values = [value for row in part for value in row]
        execute(_insert(table, len(part[0]), len(part), conflict), values)


def _parts(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (rows[at : at + MOST_ROWS] for at in range(0, len(rows), MOST_ROWS))


def end_of_batches(execute: Execute, writer: int) -> End:
    """Return the end of a writer's batches, all of which are merged; it is made if need be."""
    chain = (OF_BATCHES, writer)
    head = heads_of(execute, [chain]).get(chain)
    found = end = _sound(head)
    if end is None:
        end = (0, b"", 0 if head is None else DAMAGED, "")
    elif end[2] not in (end[0], DAMAGED):
        end = (*end[:2], DAMAGED, end[3])
    if end != found:
        put(execute, (), [(*chain, *end)], ())
    return end


def merge(execute: Execute, kept: Mapping[bytes, StoredBatch]) -> dict[int, End]:
    """
    Move all batches into the tables, within a transaction; return the heads of their writers.

    *kept* are batches that this process has written, by their digests; others are read. A row that
    was changed stays, and the head of its writer's batches becomes `DAMAGED`. A chain whose head is
    not the one that a batch continues was changed by hand: it keeps all records, and its head loses
    its proof, so that the next record of it is a `break`, and `gatepost audit verify` reports it.
    """
    rows = [Row(*row) for row in execute(_ROWS, ())]
    if not rows:
        return {}
    batches = _read(execute, rows, kept)
    grown: dict[Key, list[ChainGrowth]] = {}
    for batch in batches.values():
        for growth in batch.growths:
            grown.setdefault((growth.tenant, batch.writer), []).append(growth)
    chains = sorted(grown)
    writers = sorted({row.writer for row in rows if isinstance(row.writer, int)})
    known = heads_of(execute, [*chains, *((OF_BATCHES, writer) for writer in writers)])
    segments: list[tuple[str, Segment]] = []
    heads: list[tuple[Any, ...]] = []
    sums: list[tuple[Any, ...]] = []
    for chain in chains:
        added, summed = _joined(grown[chain])
        segments += [(chain[0], one) for one in added]
        sums += rows_of(*chain, summed)
        heads.append((*chain, *_end(known.get(chain), grown[chain])))
    ends = dict[int, End]()
    for writer in writers:
        ours = [row for row in rows if row.writer == writer and row[:3] in batches]
        ends[writer] = _end_of_batches(_sound(known.get((OF_BATCHES, writer))), ours)
    heads += [(OF_BATCHES, writer, *end) for writer, end in ends.items()]
    # Records with the number of others can only be copies that were added by hand.
    put(execute, segments, heads, sums, conflict="ON CONFLICT DO NOTHING")
    left = [row[:3] for row in rows if row[:3] not in batches]
    where = _EXCEPT + _keys(len(left)) if left else ""
    execute(_DELETE + where, [one for key in left for one in key])
    return ends


def _read(
    execute: Execute, rows: Sequence[Row], kept: Mapping[bytes, StoredBatch]
) -> dict[RowKey, StoredBatch]:
    """Return the batches of rows, in their order; those that cannot be read are left out."""
    stored: dict[RowKey, object] = {}
    for part in _parts([row[:3] for row in rows if row.digest not in kept]):
        values = [one for key in part for one in key]
        stored |= {row[:3]: row[3] for row in execute(_BATCHES + _keys(len(part)), values)}
    found: dict[RowKey, StoredBatch] = {}
    for row in rows:
        batch = kept.get(row.digest)
        if batch is None:
            batch = _decoded(row, stored[row[:3]])
        if batch is not None and (OF_BATCHES, batch.writer, batch.number) == row[:3]:
            found[row[:3]] = batch
    return found


def _decoded(row: Row, batch: Any) -> StoredBatch | None:
    """Return the batch of a row; None if it was changed."""
    try:
        if sha256(row.previous + batch).digest() == row.digest:
            return _decode(batch)
    except (msgspec.DecodeError, TypeError, RecursionError):
        pass
    return None


def _keys(size: int) -> str:
    return f"(VALUES {', '.join(['(?, ?, ?)'] * size)})"


def _joined(growths: Iterable[ChainGrowth]) -> tuple[list[Segment], Sums]:
    """Return the segments of a chain, and their sums."""
    segments = [one for growth in growths for one in growth.segments]
    try:
        made = joined(segments)
        sums = sums_of(made)
    except Damaged:
        return segments, Counter()
    return made, sums


def _end(head: Sequence[Any] | None, growths: Sequence[ChainGrowth]) -> End:
    """Return the end of a chain behind these growths; without a proof if they do not fit."""
    number, digest = (0, b"") if head is None else head[2:4]
    for growth in growths:
        # The head may have values of any type.
        if growth.before != digest or growth.segments[0].first - 1 != number:
            break
        number, digest, _, _ = growth.after
    else:
        return growths[-1].after
    number, digest, pruned, _ = max((growth.after for growth in growths), key=lambda one: one[0])
    return number, digest, pruned, ""


def _sound(head: Sequence[Any] | None) -> End | None:
    """Return the end that a head of batches says; None if no writer can have left it so."""
    if head is None or [type(one) for one in head[2:]] != [int, bytes, int, str]:
        return None
    number, digest, pruned, proof = head[2:]
    # Behind the largest numbers, the next one could not be stored.
    return (number, digest, pruned, proof) if 0 <= number < MOST_BATCHES else None


def _end_of_batches(end: End | None, rows: Sequence[Row]) -> End:
    """Return the end of a writer's batches once these are merged; `DAMAGED` if one is missing."""
    last = rows[-1] if rows else None
    if end is None:
        return (0, b"", DAMAGED, "") if last is None else (last.number, last.digest, DAMAGED, "")
    number, digest, pruned, proof = end
    # Somebody may have written any number, and so long a list would fill the memory.
    whole = pruned != DAMAGED and len(rows) == number - pruned
    whole = whole and [row.number for row in rows] == [*range(pruned + 1, number + 1)]
    whole = whole and last is not None and last.digest == digest
    whole = whole and all(one.digest == next.previous for one, next in pairwise(rows))
    return number, digest, number if whole else DAMAGED, proof


async def merge_in(connection: AsyncConnection) -> None:
    """Merge in a transaction of SQLAlchemy, which holds the lock for writing."""
    if connection.dialect.name == "sqlite":
        await connection.run_sync(lambda one: merge(_executing(one), {}))


async def merged(database: Database) -> None:
    """Merge if there is any batch, so that what is read next has the records of all."""
    if database.dialect != "sqlite" or not await database.look(
        lambda one: one.exec_driver_sql(_ANY).first()
    ):
        return
    await database.apart(_merge(database))


async def _merge(database: Database) -> None:
    async with database.transaction() as connection:
        await merge_in(connection)


def _executing(connection: Connection) -> Execute:
    def execute(statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        found = connection.exec_driver_sql(statement, tuple(values))
        return [(*row,) for row in found] if found.returns_rows else []

    return execute
