"""The statements that read and move audit records in a SQLite file, over the driver itself."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from msgspec.structs import astuple

from gatepost.storage.audit import ChainHead, ChainKey, Checkpoint, Segment
from gatepost.storage.audit_segments import end_of
from gatepost.storage.sql.audit_heads import TOO_HIGH, is_beyond, stored_checkpoint, stored_head
from gatepost.storage.sql.audit_sums import ADD_ON_CONFLICT
from gatepost.storage.sql.tables import (
    AUDIT_CHECKPOINTS,
    AUDIT_HEADS,
    AUDIT_SEGMENTS,
    escaped,
)

MAX_ROWS = 64
"""The number of rows that one statement adds or reads."""

Execute = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
"""Execute a statement with its parameters, and return its rows."""

_END = [column.name for column in AUDIT_HEADS.columns]
_SEGMENT = [column.name for column in AUDIT_SEGMENTS.columns]
_CHECKPOINT = [column.name for column in AUDIT_CHECKPOINTS.columns]
_MOVED = ", ".join(f"{name} = excluded.{name}" for name in _END[2:])
_OF_CHAIN = f"SELECT {', '.join(_SEGMENT)} FROM audit_segments WHERE tenant = ? AND writer = ? "  # noqa: S608  # our names
_SEGMENT_AT = f"{_OF_CHAIN} AND first = ?"
_RECORDS_SINCE = "SELECT records FROM audit_segments WHERE tenant = ? AND writer = ? AND until >= ?"
_SEGMENTS_SINCE = f"{_OF_CHAIN} AND until >= ? ORDER BY first"
_ENDS = f"SELECT {', '.join(_END)} FROM audit_heads WHERE tenant = ? ORDER BY writer"  # noqa: S608  # our names
_NEWEST_CHECKPOINT = (
    f"SELECT {', '.join(_CHECKPOINT)} FROM audit_checkpoints "  # noqa: S608  # our names
    "WHERE tenant = ? ORDER BY number DESC LIMIT 1"
)


def executing(connection: sqlite3.Connection) -> Execute:
    """Return what executes statements on a connection."""
    return lambda statement, values: connection.execute(statement, values).fetchall()


@cache
def _heads(size: int) -> str:
    return (
        f"SELECT {', '.join(f'head.{name}' for name in _END)} "  # noqa: S608  # our names
        f"FROM (VALUES {', '.join(['(?, ?)'] * size)}) AS wanted "
        "CROSS JOIN audit_heads AS head "
        "ON head.tenant = wanted.column1 AND head.writer = wanted.column2"
    )


@cache
def _recorded_ends_statement(size: int) -> str:
    return (
        f"SELECT {', '.join(f'head.{name}' for name in _END)}, newest.last, newest.first "  # noqa: S608  # our names
        f"FROM (VALUES {', '.join(['(?, ?)'] * size)}) AS wanted "
        "LEFT JOIN audit_heads AS head "
        "ON head.tenant = wanted.column1 AND head.writer = wanted.column2 "
        "LEFT JOIN audit_segments AS newest "
        "ON newest.tenant = wanted.column1 AND newest.writer = wanted.column2 AND newest.first = ("
        "SELECT max(first) FROM audit_segments AS one WHERE one.tenant = wanted.column1 "
        f"AND one.writer = wanted.column2 AND one.first < {TOO_HIGH})"
    )


@cache
def _insert(table: str, columns: int, size: int, conflict: str) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"INSERT INTO {table} VALUES {', '.join([row] * size)} {conflict}"  # noqa: S608  # the same


def heads_of(execute: Execute, chains: Sequence[ChainKey]) -> dict[ChainKey, tuple[Any, ...]]:
    """Return the columns of the heads of these chains; a missing head is left out."""
    rows_by_chain: dict[ChainKey, tuple[Any, ...]] = {}
    for part in _parts(chains):
        rows = execute(_heads(len(part)), [field for chain in part for field in chain])
        rows_by_chain |= {(row[0], row[1]): row for row in rows}
    return rows_by_chain


def ends_of(execute: Execute, tenant: str) -> list[tuple[Any, ...]]:
    """Return the columns of all heads of a tenant."""
    return execute(_ENDS, (escaped(tenant),))


def newest_checkpoint(execute: Execute, tenant: str) -> Checkpoint | None:
    """Return the checkpoint of a tenant with the highest number."""
    rows = execute(_NEWEST_CHECKPOINT, (escaped(tenant),))
    return stored_checkpoint(rows[0][1:]) if rows else None


def segments_since(execute: Execute, chain: ChainKey, at: int) -> list[Segment]:
    """Return the segments of a chain that ended at that time or later."""
    rows = execute(_SEGMENTS_SINCE, (escaped(chain[0]), chain[1], at))
    return [Segment(*row[1:]) for row in rows]


def records_since(execute: Execute, chain: ChainKey, at: int) -> list[str]:
    """Return the column `records` of the segments of a chain that ended at that time or later."""
    rows = execute(_RECORDS_SINCE, (escaped(chain[0]), chain[1], at))
    return [row[0] for row in rows if isinstance(row[0], str)]


def recorded_ends(
    execute: Execute, chains: Mapping[ChainKey, ChainKey]
) -> Iterator[tuple[ChainKey, ChainHead | None]]:
    """Yield the end of each chain that records are added after (`audit_heads.recorded_end`)."""
    for part in _parts([*chains.items()]):
        rows = execute(
            _recorded_ends_statement(len(part)), [value for _, key in part for value in key]
        )
        for (chain, key), (_, *columns, last, first) in zip(part, rows, strict=True):
            head = None if columns[0] is None else stored_head((chain[0], *columns))
            if first is not None and is_beyond((last, first), head):
                (segment,) = execute(_SEGMENT_AT, (*key, first))
                head = end_of(chain, head, Segment(*segment[1:]))
            yield chain, head


def put(
    execute: Execute,
    segments: Sequence[tuple[str, Segment]] = (),
    heads: Sequence[tuple[Any, ...]] = (),
    sums: Sequence[tuple[Any, ...]] = (),
    checkpoints: Sequence[tuple[Any, ...]] = (),
) -> None:
    """
    Add rows to the tables of records, and move heads.

    Tenants are spelt as the database does.
    """
    rows = [(tenant, *astuple(segment)) for tenant, segment in segments]
    _put(execute, "audit_segments", rows)
    moved = f"ON CONFLICT (tenant, writer) DO UPDATE SET {_MOVED}"
    _put(execute, "audit_heads", heads, moved)
    _put(execute, "audit_sums", sums, ADD_ON_CONFLICT)
    signed = "ON CONFLICT DO UPDATE SET statement = excluded.statement, "
    signed += "signature = excluded.signature"
    _put(execute, "audit_checkpoints", checkpoints, signed)


def _put(execute: Execute, table: str, rows: Sequence[tuple[Any, ...]], conflict: str = "") -> None:
    for part in _parts(rows):
        values = [value for row in part for value in row]
        execute(_insert(table, len(part[0]), len(part), conflict), values)


def _parts(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (rows[at : at + MAX_ROWS] for at in range(0, len(rows), MAX_ROWS))
