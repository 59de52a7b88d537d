"""docs/audit.md shows how the database itself is asked."""

import csv
import json
import re
import sqlite3
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

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


def exported_line(at: str, kind: str, outcome: str, **details: Any) -> str:
    """Return a line of an export, as the page describes it."""
    milliseconds = int(datetime.fromisoformat(at).timestamp() * 1000)
    record = {"at": milliseconds, "kind": kind, "tool": "pay", "outcome": outcome, "approval": "r1"}
    salted = {name: ["00", value] for name, value in details.items()}
    return json.dumps({"record": record, "details": salted, "hash": ""})


def test_the_script_of_the_page_joins_calls_with_their_approvals(tmp_path: Path) -> None:
    """
    An auditor asks who called what in a month, and who approved it.

    A decision that was retracted does not count, and no name is a formula for a spreadsheet.
    """
    alice = json.dumps({"issuer": "https://id.example.com", "subject": "alice"})
    bob = json.dumps({"issuer": "https://id.example.com", "subject": "8c1f", "name": "=Bob"})
    eve = {"issuer": "https://id.example.com", "subject": "d03a"}
    lines = [
        json.dumps({"gatepost_audit": {"tenant": "acme", "after": 0}}),
        exported_line("2026-09-30T23:59:59Z", "call", "success", caller=alice),
        exported_line("2026-10-31T12:00:00Z", "call", "approval_pending", caller=alice),
        exported_line("2026-10-31T12:01:30Z", "approval", "void", caller=json.dumps(eve)),
        exported_line(
            "2026-10-31T12:00:30Z",
            "approval",
            "approved",
            caller=json.dumps(eve | {"name": "Eve"}),
        ),
        exported_line("2026-10-31T12:01:00Z", "approval", "approved", caller=bob),
        exported_line("2026-10-31T12:02:00Z", "approval", "approved", operator="root"),
        exported_line("2026-10-31T12:03:00Z", "call", "success", caller=alice, arguments='{"a":1}'),
        exported_line("2026-11-01T00:00:00Z", "call", "success"),
        json.dumps({"checkpoint": "{}", "signature": ""}),
    ]
    (tmp_path / "acme.jsonl").write_text("\n".join(lines))
    script = PAGE.read_text(encoding="utf-8").split("```python\n")[2].split("```")[0]

    done = subprocess.run(
        [sys.executable, "-", "acme.jsonl", "2026-10-01", "2026-11-01"],
        cwd=tmp_path,
        input=script,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert [*csv.reader(done.stdout.splitlines())][1:] == [
        ["2026-10-31 12:00:00", "alice", "pay", "", "approval_pending", "'=Bob, root"],
        ["2026-10-31 12:03:00", "alice", "pay", '{"a":1}', "success", "'=Bob, root"],
    ]
