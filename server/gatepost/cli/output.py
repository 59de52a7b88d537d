"""Times and tables, as commands print them."""

from collections.abc import Sequence
from datetime import UTC, datetime


def moment(seconds: float) -> str:
    """Return a time in UTC as text."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows as aligned columns; the first row is the header."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
