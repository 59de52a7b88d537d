"""Merges of a write-ahead log of a SQLite file: how much at once, and of how many chains."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gatepost.storage.audit_segments import MAX_BYTES
from gatepost.storage.sql import sqlite_audit_merger as merger_module
from gatepost.storage.sql import sqlite_audit_writer as module
from gatepost.storage.sql.sqlite_audit_statements import MAX_ROWS
from tests.storage.test_audit import linked, new_record
from tests.storage.test_sqlite_wal import FileProcess, file, numbers, path, write

__all__ = ["file", "path"]  # fixtures

CHAINS = 3 * MAX_ROWS
SET_BACK, REMOVED_TENANT = f"t{MAX_ROWS}", f"t{MAX_ROWS + 1}"


async def test_the_log_files_stay_small(
    file: FileProcess, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This covers the write-ahead log and the database's own log under continuous writes."""
    monkeypatch.setattr(module, "RESTARTED_BYTES", 4_194_304)
    long = new_record(reason="x" * (MAX_BYTES // 2))
    for _ in range(100):
        await file.store.write({("acme", 1): [long] * 2}, linked)
    sizes = [os.stat(f"{path}{end}").st_size for end in ("-audit-1", "-wal")]

    assert len(await file.store.tenant_log("acme").chain(1).rows(0, 999)) == 201
    assert os.stat(path).st_size > 80 * MAX_BYTES
    assert max(sizes) < 3 * module.RESTARTED_BYTES


async def test_more_records_than_fit_one_transaction_are_merged(
    file: FileProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several transactions merge each record once."""
    monkeypatch.setattr(merger_module, "AT_ONCE", 2_000)
    for _ in range(30):
        await write(file, acme=3, globex=2)

    assert await numbers(file) == [*range(1, 92)]
    assert await numbers(file, "globex") == [*range(1, 62)]


async def test_each_of_many_chains_continues_at_its_own_end(file: FileProcess, path: Path) -> None:
    """Some of the chains are new, have lost their head, or have a head that was set back."""
    old = {f"t{number}": number % 3 + 1 for number in range(0, CHAINS, 2)}
    old |= {SET_BACK: 2, REMOVED_TENANT: 2}
    await write(file, **old)
    await file.store.link_pending()
    with closing(sqlite3.connect(path)) as merging, merging:
        merging.execute("UPDATE audit_heads SET number = 1 WHERE tenant = ?", (SET_BACK,))
        merging.execute("DELETE FROM audit_heads WHERE tenant = ?", (REMOVED_TENANT,))
    await write(file, **{f"t{number}": 2 for number in range(CHAINS)})
    tenant_rows = {
        tenant: [
            (row.number, row.kind)
            for row in await file.store.tenant_log(tenant).chain(1).rows(0, 99)
        ]
        for tenant in (f"t{number}" for number in range(CHAINS))
    }

    for tenant, rows in tenant_rows.items():
        before = old.get(tenant, 0)
        kinds = (
            ["call"] * before + ["break"] * (tenant in {SET_BACK, REMOVED_TENANT}) + ["call"] * 2
        )
        assert rows == [*enumerate(kinds, 1)], tenant
