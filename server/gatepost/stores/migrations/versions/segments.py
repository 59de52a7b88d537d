"""The record of what happened, many records to a row."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op

from gatepost.stores.sql.tables import Exact

revision = "0006"
down_revision = "0005"

STEP = 200
"""Records that are moved at once; those of one tenant become one segment."""

_NEXT = sa.text(
    "SELECT tenant, number, at, kind, tool, outcome, body, side, hash FROM audit_records "
    "WHERE (tenant, number) > (:tenant, :number) ORDER BY tenant, number LIMIT :step"
).columns(tool=Exact)
_ADD = sa.text(
    "INSERT INTO audit_segments (tenant, first, last, since, until, counts, records) "
    "VALUES (:tenant, :first, :last, :since, :until, :counts, :records)"
)


def upgrade() -> None:
    """Make the table, move the records as they are, and drop the one that had a row for each."""
    op.create_table(
        "audit_segments",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("last", sa.BigInteger, nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.Column("counts", sa.Text, nullable=False),
        sa.Column("records", sa.Text, nullable=False),
    )
    op.create_index(op.f("audit_segments_tenant_until"), "audit_segments", ["tenant", "until"])
    connection = op.get_bind()
    place = {"tenant": "", "number": 0, "step": STEP}
    while rows := connection.execute(_NEXT, place).all():
        # Where a number is missing, a segment ends: nothing is to look whole that was not.
        runs = groupby(enumerate(rows), lambda at: (at[1].tenant, at[1].number - at[0]))
        connection.execute(_ADD, [_segment([row for _, row in run]) for _, run in runs])
        place |= {"tenant": rows[-1].tenant, "number": rows[-1].number}
    op.drop_table("audit_records")


def _segment(rows: Sequence[Any]) -> dict[str, Any]:
    # What the columns said of a record, so that one that was changed does not fit its body now.
    sorts = Counter((row.kind, row.tool, row.outcome) for row in rows)
    counts = [(*sort, number) for sort, number in sorted(sorts.items())]
    return {
        "tenant": rows[0].tenant,
        "first": rows[0].number,
        "last": rows[-1].number,
        "since": min(row.at for row in rows),
        "until": max(row.at for row in rows),
        "counts": msgspec.json.encode(counts).decode(),
        "records": f"[{','.join(map(_element, rows))}]",
    }


def _element(row: Any) -> str:
    side = "" if row.side is None else f',"side":{row.side}'
    return f'{{"record":{row.body}{side},"hash":"{bytes(row.hash).hex()}"}}'
