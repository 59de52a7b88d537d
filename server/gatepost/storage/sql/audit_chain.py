"""The records of one chain in SQL: reading and erasing them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, Select, and_, bindparam, func, select, update

from gatepost.storage.audit import AuditRow, Link, NewAuditRecord, Segment
from gatepost.storage.audit_segments import erased, intact, rows_after
from gatepost.storage.sql.audit_heads import add, locked
from gatepost.storage.sql.database import Database
from gatepost.storage.sql.tables import AUDIT_SEGMENTS

LinkPending = Callable[[], Awaitable[None]]
"""Links all records that were written, so that they can be read (`AuditStore.link_pending`)."""

PAGE_SIZE = 100
"""The number of segments that are read at once."""

_SEGMENTS = AUDIT_SEGMENTS.c
FIELDS = [_SEGMENTS[name] for name in Segment.__struct_fields__]
_OF_CHAIN = and_(
    _SEGMENTS.tenant == bindparam("where_tenant"), _SEGMENTS.writer == bindparam("where_writer")
)

_FROM = (
    select(*FIELDS)
    .where(_OF_CHAIN, _SEGMENTS.first >= bindparam("start"))
    .order_by(_SEGMENTS.first)
    .limit(bindparam("max_rows"))
)
# Begin with the segment that contains the record after that number.
_START = select(func.max(_SEGMENTS.first)).where(
    _OF_CHAIN, _SEGMENTS.first <= bindparam("after") + 1
)
_BEHIND = (
    select(*FIELDS)
    .where(
        _OF_CHAIN,
        _SEGMENTS.first >= func.coalesce(_START.scalar_subquery(), bindparam("after")),
        _SEGMENTS.last > bindparam("after"),
    )
    .order_by(_SEGMENTS.first)
    .limit(bindparam("max_rows"))
)
_CHANGE = (
    update(AUDIT_SEGMENTS)
    .where(_OF_CHAIN, _SEGMENTS.first == bindparam("where_first"))
    .values(records=bindparam("left"))
)


class SqlChain:
    """A `TenantChain` in SQL tables."""

    __slots__ = ("_database", "_link_pending", "_tenant", "_where_chain", "_writer")

    def __init__(
        self, database: Database, link_pending: LinkPending, tenant: str, writer: int
    ) -> None:
        self._database, self._link_pending = database, link_pending
        self._tenant, self._writer = tenant, writer
        self._where_chain = {"where_tenant": tenant, "where_writer": writer}

    async def rows(self, after: int, limit: int) -> list[AuditRow]:
        """Implement `TenantChain`."""
        await self._link_pending()
        rows: list[AuditRow] = []
        while (page_size := min(limit - len(rows), PAGE_SIZE)) > 0:
            page = await self._page(_BEHIND, after=after, max_rows=page_size)
            # In a thread, because a page may contain megabytes.
            rows += await asyncio.to_thread(rows_after, intact(page), after)
            if len(page) < page_size:
                break
            after = page[-1].last
        return rows[:limit]

    async def segments(self, start: int, limit: int) -> list[Segment]:
        """Implement `TenantChain`."""
        await self._link_pending()
        return await self._page(_FROM, start=start, max_rows=limit)

    async def erase(
        self, numbers: Sequence[int], new_records: Sequence[NewAuditRecord], link: Link
    ) -> None:
        """Implement `TenantChain`."""
        erase = partial(self._erase, numbers, new_records, link)
        await self._database.transaction(erase)

    def _erase(
        self,
        numbers: Sequence[int],
        new_records: Sequence[NewAuditRecord],
        link: Link,
        connection: Connection,
    ) -> None:
        chain = self._tenant, self._writer
        heads = locked(connection, [chain])
        to_erase, after = frozenset(numbers), min(numbers, default=0) - 1
        while after < max(to_erase, default=after):
            where_values = {**self._where_chain, "after": after, "max_rows": PAGE_SIZE}
            page = intact(as_segments(connection.execute(_BEHIND, where_values)))
            erased_segments = self._database.compute(_erase_in, page, to_erase)
            changes = [
                {**self._where_chain, "where_first": segment.first, "left": segment.records}
                for segment, before in zip(erased_segments, page, strict=True)
                if segment is not before
            ]
            if changes:
                connection.execute(_CHANGE, changes)
            if len(page) < PAGE_SIZE:
                break
            after = page[-1].last
        add(connection, {chain: new_records}, heads, link)

    async def _page(self, statement: Select[Any], **where_values: int) -> list[Segment]:
        return as_segments(
            await self._database.rows(statement, {**self._where_chain, **where_values})
        )


def as_segments(rows: Iterable[Any]) -> list[Segment]:
    """Return rows with the columns of `FIELDS` as segments."""
    return [Segment(*row) for row in rows]


def _erase_in(page: list[Segment], to_erase: frozenset[int]) -> list[Segment]:
    return [erased(segment, to_erase) for segment in page]
