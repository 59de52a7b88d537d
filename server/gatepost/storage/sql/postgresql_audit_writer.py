"""The audit store of PostgreSQL: a batch of any number of tenants is one statement."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # the package has no types
import msgspec
from msgspec.structs import astuple
from sqlalchemy import Column, Connection, select
from sqlalchemy.exc import IntegrityError

from gatepost.storage.audit import ChainHead, ChainKey, Link, RecordsByChain, Segment
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql.audit import SqlAuditStore
from gatepost.storage.sql.audit_heads import (
    HEAD_COLUMNS,
    TOO_HIGH,
    in_chains,
    is_beyond,
    locked,
    recorded_end,
)
from gatepost.storage.sql.audit_sums import ADD_ON_CONFLICT, COLUMNS, rows_of_segments
from gatepost.storage.sql.database import ANSWER_S, answering
from gatepost.storage.sql.postgresql import DRIVER_ERRORS, RECYCLE_S, PostgresDatabase
from gatepost.storage.sql.tables import AUDIT_HEADS, AUDIT_SEGMENTS, AUDIT_SUMS, escaped

MAX_ATTEMPTS = 5
"""How often a batch is written again because another process has added to one of its chains."""

_SEGMENT = [column.name for column in AUDIT_SEGMENTS.columns]
_END = [column.name for column in AUDIT_HEADS.columns]
_MOVED = _END[2:]
_WAS = [f"was_{name}" for name in _MOVED]
_READ = {"BIGINT": "({})::bigint", "BLOB": "decode({}, 'base64')", "DOUBLE": "({})::float8"}


def _read_from(value: str, columns: Iterable[Column[Any]], names: Iterable[str]) -> str:
    """Return the expressions that read columns from a JSON array."""
    return ", ".join(
        f"{_READ.get(str(column.type), '{}').format(f'{value} ->> {at}')} AS {name}"
        for at, (column, name) in enumerate(zip(columns, names, strict=True))
    )


def _rows(parameter: int) -> str:
    """Return the expression that reads rows from a parameter."""
    return f"string_to_array(${parameter}::text, E'\\n')::jsonb[]"


_HEADS = _read_from("row", [*AUDIT_HEADS.c, *[*AUDIT_HEADS.c][2:]], [*_END, *_WAS])
_SEGMENTS = _read_from("row", [*AUDIT_SEGMENTS.c][:-1], _SEGMENT[:-1])
_SUMS = _read_from("row", AUDIT_SUMS.c, COLUMNS)
# The parameters are rows, each a line with a JSON array, and the records of the segments. The
# driver looks at each element of an array several times, and JSON as we encode it has no line
# break. Records may have some, because they contain arguments as they were sent. A head is moved
# only if all of its columns are unchanged. Otherwise a head is added. That fails if the head exists
# already, or if it should exist, because the new one then has no number. So a batch is written
# completely, or not at all, with IntegrityError. Heads are locked in order and before records are
# added, so that two processes cannot wait for each other. The setting is part of the statement,
# because a connection pooler keeps none of the session's.
_WRITE = f"""
WITH durable AS (SELECT set_config('synchronous_commit', 'on', true)),
ends AS MATERIALIZED (SELECT {_HEADS} FROM unnest({_rows(1)}) AS row),
held AS (
    SELECT head.writer FROM audit_heads AS head JOIN ends USING (tenant, writer)
    ORDER BY tenant, writer FOR UPDATE OF head
),
moved AS (
    UPDATE audit_heads AS head SET {", ".join(f"{name} = ends.{name}" for name in _MOVED)}
    FROM ends, (SELECT count(*) FROM held) AS counted
    WHERE head.tenant = ends.tenant AND head.writer = ends.writer
        AND {" AND ".join(f"head.{name} = ends.was_{name}" for name in _MOVED)}
    RETURNING head.tenant, head.writer
),
begun AS (
    INSERT INTO audit_heads ({", ".join(_END)})
    SELECT tenant, writer, CASE WHEN was_number IS NULL THEN number END, {", ".join(_MOVED[1:])}
    FROM ends WHERE (tenant, writer) NOT IN (SELECT tenant, writer FROM moved)
    ORDER BY tenant, writer RETURNING writer
),
summed AS (
    INSERT INTO audit_sums ({", ".join(COLUMNS)})
    SELECT {_SUMS} FROM (SELECT count(*) FROM held) AS counted, unnest({_rows(4)}) AS row
    WHERE true
    {ADD_ON_CONFLICT}
)
INSERT INTO audit_segments ({", ".join(_SEGMENT)})
SELECT {_SEGMENTS}, made.records FROM durable, (SELECT count(*) FROM begun) AS counted,
    unnest({_rows(2)}, $3::text[]) AS made (row, records)
"""  # noqa: S608  # our names
_encode = msgspec.json.encode
_NONE = (None,) * len(_MOVED)
_NEWEST = f"""
SELECT chain.place, newest.last, newest.first
FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS chain (tenant, writer, place),
    LATERAL (
        SELECT last, first FROM audit_segments AS one
        WHERE one.tenant = chain.tenant AND one.writer = chain.writer AND first < {TOO_HIGH}
        ORDER BY first DESC LIMIT 1
    ) AS newest
"""  # noqa: S608  # our number


class PostgresAuditStore(SqlAuditStore):
    """The `AuditStore` in PostgreSQL."""

    def __init__(self, database: PostgresDatabase) -> None:
        super().__init__(database)
        self._postgres = database
        self._writer = PostgresWriter(database)
        self._heads: dict[ChainKey, ChainHead | None] = {}
        """The heads that this process has written last."""

    async def write(self, batch: RecordsByChain, link: Link) -> None:
        """Implement `AuditStore`."""
        if any(batch.values()) and not await self._write_at_once(batch, link):
            await self._postgres.run_in_task(self._write(batch, link))

    async def aclose(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def _write_at_once(self, batch: RecordsByChain, link: Link) -> bool:
        """
        Write a batch over the open connection if its heads are known; else return False.

        Nearly all batches are written here, without the task and the deadlines of a statement that
        may have to connect first.
        """
        if not self._writer.is_ready or any(chain not in self._heads for chain in batch):
            return False
        old_heads = {chain: self._heads.pop(chain) for chain in batch}
        new_heads, segments = _linked(batch, old_heads, link)
        with answering(DRIVER_ERRORS):
            try:
                await self._writer.add_at_once(_parameters(old_heads, new_heads, segments))
            except (
                asyncpg.IntegrityConstraintViolationError,
                asyncpg.InvalidSQLStatementNameError,
            ):
                return False  # another process has moved a head, or a pooler lost the statement
        self._heads |= new_heads
        return True

    async def _write(self, batch: RecordsByChain, link: Link) -> None:
        cached_heads = {chain: self._heads.pop(chain) for chain in batch if chain in self._heads}
        ends = cached_heads
        if len(cached_heads) < len(batch):
            read, read_ends = await self._heads_and_ends(
                [chain for chain in batch if chain not in cached_heads]
            )
            cached_heads, ends = cached_heads | read, cached_heads | read_ends
        new_heads, segments = _linked(batch, ends, link)
        try:
            await self._writer.add(_parameters(cached_heads, new_heads, segments))
        except asyncpg.IntegrityConstraintViolationError:
            new_heads = await self._write_in_turn(batch, link)
        self._heads |= new_heads

    async def _heads_and_ends(
        self, chains: Sequence[ChainKey]
    ) -> tuple[dict[ChainKey, ChainHead | None], dict[ChainKey, ChainHead | None]]:
        """Return the heads of chains, and the ends that records are added after."""
        async with self._postgres.engine.connect() as connection:
            return await connection.run_sync(_read, chains)

    async def _write_in_turn(self, batch: RecordsByChain, link: Link) -> dict[ChainKey, ChainHead]:
        """Write after the heads in the database, which wait for this meanwhile."""
        for _ in range(MAX_ATTEMPTS):
            # A head that is new may still be added by another process.
            with contextlib.suppress(IntegrityError):
                async with self._postgres.open_transaction() as connection:
                    return await connection.run_sync(_write_after_heads, batch, link)
        raise StoreUnavailable("other processes write to the same chains of audit records")


class PostgresWriter:
    """
    The connection that records are written with. It uses the driver directly, which costs half of a
    pool.

    It has one prepared statement, so that a batch is one round trip. A pooler that keeps no
    prepared statements costs a second one.
    """

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._lock = asyncio.Lock()
        self._connection: asyncpg.Connection | None = None
        self._statement: Any = None
        self._since = self._used = 0.0
        self._is_kept = True
        """Whether a prepared statement still exists in the next transaction."""

    @property
    def is_ready(self) -> bool:
        """
        Return whether a batch can be sent at once, over a connection that is open and not in use.
        """
        return not (self._statement is None or self._lock.locked() or self._is_outdated())

    def _is_outdated(self) -> bool:
        connection = self._connection
        return (
            connection is None
            or connection.is_closed()
            or time.monotonic() - self._since > RECYCLE_S
            or self._used < self._database.replaced_before
        )

    async def add_at_once(self, parameters: Sequence[Any]) -> None:
        """Write a batch where it `is_ready`; raises the errors of the driver."""
        self._used = time.monotonic()
        # Close the connection: cancelling a statement may take as long as the statement.
        deadline = asyncio.get_running_loop().call_later(ANSWER_S, self._give_up)
        try:
            await self._in_turn(partial(self._statement.fetch, *parameters))
        finally:
            deadline.cancel()

    def _give_up(self) -> None:
        self._database.replaced_before = max(self._database.replaced_before, self._used)
        self.close()

    async def add(self, parameters: Sequence[Any]) -> None:
        """Write a batch; raises the errors of the driver, and StoreUnavailable."""
        await self._in_turn(partial(self._add, parameters))

    async def _in_turn(self, write: Callable[[], Awaitable[object]]) -> None:
        """Write, and close the connection unless it can be used again."""
        is_usable = False
        async with self._lock:
            try:
                await write()
                is_usable = True
            except asyncpg.IntegrityConstraintViolationError:
                is_usable = True
                raise
            except DRIVER_ERRORS as error:
                self._database.replace_connections_after(error)
                raise
            finally:
                if not is_usable:  # the statement may still run
                    self.close()

    def close(self) -> None:
        """Close the connection without waiting; another batch opens one."""
        connection, self._connection, self._statement = self._connection, None, None
        if connection is not None:
            connection.terminate()

    async def _add(self, parameters: Sequence[Any]) -> None:
        connection = self._connection
        if connection is None or self._is_outdated():
            self.close()
            connection = self._connection = await self._database.connect()
            self._since = time.monotonic()
        self._used = time.monotonic()
        if self._statement is None:
            name = f"gatepost_audit_{secrets.token_hex(6)}" if self._is_kept else ""
            self._statement = await connection.prepare(_WRITE, name=name)
        try:
            await self._statement.fetch(*parameters)
        except asyncpg.InvalidSQLStatementNameError:
            self._is_kept = False
            self._statement = await connection.prepare(_WRITE, name="")
            await self._statement.fetch(*parameters)
        finally:
            if not self._is_kept:
                self._statement = None


def _read(
    connection: Connection, chains: Sequence[ChainKey]
) -> tuple[dict[ChainKey, ChainHead | None], dict[ChainKey, ChainHead | None]]:
    """Return the heads of chains, and the ends that records are added after."""
    heads_of_chains: dict[ChainKey, ChainHead | None] = dict.fromkeys(chains)
    rows = connection.execute(select(*HEAD_COLUMNS).where(in_chains(chains)))
    heads = [ChainHead(**row._mapping) for row in rows]
    heads_of_chains |= {head.key: head for head in heads}
    return heads_of_chains, _recorded_ends(connection, heads_of_chains)


def _write_after_heads(
    connection: Connection, batch: RecordsByChain, link: Link
) -> dict[ChainKey, ChainHead]:
    """Lock the heads in the database, and write a batch after them."""
    heads = locked(connection, sorted(batch))
    new_heads, segments = _linked(batch, _recorded_ends(connection, heads), link)
    connection.exec_driver_sql(_WRITE, _parameters(heads, new_heads, segments))
    return new_heads


def _recorded_ends(
    connection: Connection, heads: Mapping[ChainKey, ChainHead | None]
) -> dict[ChainKey, ChainHead | None]:
    """Return the ends of the chains with these heads (`audit_heads.recorded_end`) together."""
    keys = list(heads)
    names, writers = [escaped(tenant) for tenant, _ in keys], [writer for _, writer in keys]
    newest = connection.exec_driver_sql(_NEWEST, (names, writers))
    newest_by_chain = {keys[row[0] - 1]: row[1:] for row in newest}
    beyond = [
        chain for chain, numbers in newest_by_chain.items() if is_beyond(numbers, heads[chain])
    ]
    return {
        **heads,
        **{chain: recorded_end(connection, chain, heads[chain]) for chain in beyond},
    }


def _linked(
    batch: RecordsByChain, ends: Mapping[ChainKey, ChainHead | None], link: Link
) -> tuple[dict[ChainKey, ChainHead], list[tuple[str, Segment]]]:
    """Return the heads after a batch that is added after these ends, and its segments."""
    new_heads: dict[ChainKey, ChainHead] = {}
    segments: list[tuple[str, Segment]] = []
    for chain, new_records in batch.items():
        added, new_heads[chain] = link(chain, ends[chain], new_records)
        segments += [(chain[0], segment) for segment in added]
    return new_heads, segments


def _parameters(
    old_heads: Mapping[ChainKey, ChainHead | None],
    new_heads: Mapping[ChainKey, ChainHead],
    segments: Sequence[tuple[str, Segment]],
) -> tuple[str, str, list[str], str]:
    """Return the rows of the heads, the segments, their records, and the rows of the sums."""
    ends = [
        (escaped(chain[0]), *_columns(new_heads[chain])[1:], *_columns(old_heads[chain])[2:])
        for chain in new_heads
    ]
    added = [(escaped(tenant), *astuple(segment)[:-1]) for tenant, segment in segments]
    records = [segment.records for _, segment in segments]
    return _encoded(ends), _encoded(added), records, _encoded(rows_of_segments(segments))


def _encoded(rows: Iterable[tuple[Any, ...]]) -> str:
    return b"\n".join([_encode(row) for row in rows]).decode()


def _columns(head: ChainHead | None) -> tuple[Any, ...]:
    return ("", 0, *_NONE) if head is None else astuple(head)
