"""The hourly sums of audit records in SQL: the statements that add to them, and reading them."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import bindparam, delete, func, literal_column, select

from gatepost.storage.audit import Count, Segment
from gatepost.storage.audit_counts import MAX_COUNTS, read_counts
from gatepost.storage.audit_segments import HOUR_MS
from gatepost.storage.audit_sums import KEPT_MS, SUMMED, Sums, sorted_counts, sums_of
from gatepost.storage.sql.database import Database
from gatepost.storage.sql.tables import AUDIT_SUMS, escaped

COLUMNS = [column.name for column in AUDIT_SUMS.columns]
_SUMS = AUDIT_SUMS.c
_OF_TENANT = _SUMS.tenant == bindparam("where_tenant")
_FORGET = delete(AUDIT_SUMS).where(_OF_TENANT)

ADD_ON_CONFLICT = (
    f"ON CONFLICT ({', '.join(column.name for column in AUDIT_SUMS.primary_key)}) "
    "DO UPDATE SET number = audit_sums.number + excluded.number"
)
"""The end of a statement that adds to sums."""


def rows_of(tenant: str, writer: int, sums: Sums) -> list[tuple[Any, ...]]:
    """Return the rows that add to the sums of a chain; *tenant* is as the database spells it."""
    return [
        (
            *(tenant, hour, writer, escaped(kind), escaped(tool)),
            *(escaped(outcome), escaped(limit), number, (hour + KEPT_MS) / 1000),
        )
        for (hour, kind, tool, outcome, limit), number in sorted(sums.items())
    ]


@lru_cache(MAX_COUNTS)
def only_sort(counts: str) -> tuple[str | int, ...] | None:
    """Return kind, tool, outcome, limit and number of `counts` with one sort that is summed."""
    parsed = read_counts(counts)
    if len(parsed) != 1 or parsed[0][0][0] not in SUMMED:
        return None
    sort, number = parsed[0]
    return *map(escaped, sort), number


def rows_of_chain(tenant: str, writer: int, segments: Sequence[Segment]) -> list[tuple[Any, ...]]:
    """Return the rows that segments of one chain add to its sums, as `rows_of` does."""
    if len(segments) == 1 and (sort := only_sort(segments[0].counts)) is not None:  # nearly always
        hour = segments[0].since - segments[0].since % HOUR_MS
        return [(tenant, hour, writer, *sort, (hour + KEPT_MS) / 1000)]
    return rows_of(tenant, writer, sums_of(segments))


def rows_of_segments(segments: Iterable[tuple[str, Segment]]) -> list[tuple[Any, ...]]:
    """Return the rows that tenants' segments add to the sums, each key once and in order."""
    by_writer: dict[tuple[str, int], list[Segment]] = {}
    for tenant, segment in segments:
        by_writer.setdefault((tenant, segment.writer), []).append(segment)
    return [
        row
        for (tenant, writer), of_chain in sorted(by_writer.items(), key=lambda item: item[0])
        for row in rows_of_chain(escaped(tenant), writer, of_chain)
    ]


async def counted(database: Database, tenant: str, since: int, slice_ms: int) -> list[Count]:
    """Return the counts of a tenant, as `TenantAuditLog.count`."""
    # This number is ours, so it may be part of the text: PostgreSQL cannot tell that two parameters
    # are the same.
    at = _SUMS.hour - _SUMS.hour % literal_column(str(int(slice_ms)))
    sort = (at, _SUMS.kind, _SUMS.tool, _SUMS.outcome, _SUMS.limited_by)
    number = func.sum(_SUMS.number).label("number")
    read = (
        select(at.label("at"), *sort[1:], number)
        .where(_OF_TENANT, _SUMS.hour >= bindparam("since"))
        .group_by(*sort)
    )
    rows = await database.rows(read, {"where_tenant": tenant, "since": since})
    # PostgreSQL returns the sum as a decimal.
    return sorted_counts(
        {(row.at, row.kind, row.tool, row.outcome, row.limited_by): int(row.number) for row in rows}
    )


async def forget(database: Database, tenant: str) -> None:
    """Remove the sums of a tenant."""
    await database.change(_FORGET, {"where_tenant": tenant})
