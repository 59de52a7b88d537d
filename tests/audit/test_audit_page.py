"""docs/audit.md shows how the database itself is asked."""

import re
import sqlite3
from pathlib import Path

from tests.audit.conftest import audit_log

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"


async def test_the_sql_query_of_the_page_finds_calls_and_callers(tmp_path: Path) -> None:
    """It runs with SQLite alone."""
    match = re.search(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert match is not None
    async with audit_log(f"sqlite:///{tmp_path}/records.db") as log:
        await log.fill()
    connection = sqlite3.connect(tmp_path / "records.db")
    rows = connection.execute(match[1]).fetchall()
    connection.close()

    assert [row[:2] for row in rows] == [(1, number) for number in range(12, 0, -1)]
    assert rows[4][2:5] == ("2027-01-15 08:00:08", "deploy", "approved")
    assert '"subject":"bob"' in rows[4][5]
