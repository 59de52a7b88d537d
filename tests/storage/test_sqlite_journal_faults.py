"""Journals of a SQLite file when something happens that should not."""

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gatepost.storage.sql import sqlite_audit_merger as merger_module
from gatepost.storage.sql import sqlite_audit_writer as module
from tests.storage.test_sqlite_journals import LONG, journal, numbers, process, write

pytestmark = pytest.mark.requirement("AU1")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database whose journals are merged only when somebody reads."""
    monkeypatch.setattr(module, "IDLE_S", LONG)
    monkeypatch.setattr(module, "MERGED_S", LONG)
    return tmp_path / "records.db"


async def test_a_journal_that_another_process_takes_anew_loses_no_record(path: Path) -> None:
    """Its frames have the numbers of those that were removed, and the proofs of the ring."""
    file, other = await process(path), await process(path)
    await write(file, acme=1, globex=1)
    await write(file, acme=2)
    journal(path).unlink()
    await write(other, globex=3)
    await other.audit.settle()
    found = [await file.of(one).trail.chain(1).rows(0, 99) for one in ("acme", "globex")]
    for one in (other, file):
        await one.audit.aclose()
        await one.aclose()

    kinds = [[row.kind for row in rows if row.kind != "break"] for rows in found]
    assert [len(one) for one in kinds] == [3, 4]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_an_unexpected_error_does_not_end_merging(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an outage: the next batch waits until those before it are merged."""
    failures = [MemoryError()]
    original = merger_module.SqliteMerger.extend

    def extend(*given: Any) -> None:
        if failures:
            raise failures.pop()
        original(*given)

    file = await process(path)
    await write(file, acme=1)
    await numbers(file)
    monkeypatch.setattr(merger_module.SqliteMerger, "extend", extend)
    monkeypatch.setattr(module, "IDLE_S", 0.01)
    await write(file, acme=2)
    async with asyncio.timeout(LONG):
        while any(one.name == "audit merge" for one in threading.enumerate()):
            await asyncio.to_thread(int)
    await write(file, acme=1)
    with closing(sqlite3.connect(path)) as database:
        merged = database.execute("SELECT max(last) FROM audit_segments").fetchone()
    found = await numbers(file)
    await file.audit.aclose()
    await file.aclose()

    assert (failures, merged, found) == ([], (3,), [1, 2, 3, 4])
