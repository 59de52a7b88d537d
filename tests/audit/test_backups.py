"""A backup of a database whose servers have records in write-ahead logs."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from gatepost.cli.main import main
from gatepost.secrets.keyring import KeyRing, create
from gatepost.storage.sql import sqlite_audit_writer
from tests.audit.conftest import audit_log
from tests.support.stores import sqlite_url


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a new SQLite file, which no test can make: it runs in the event loop."""
    return sqlite_url(tmp_path)


@pytest.mark.parametrize("with_ring", [True, False], ids=["with the ring", "without"])
async def test_a_backup_contains_records_of_the_write_ahead_log(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_ring: bool
) -> None:
    """The command needs the key ring for that, and warns without it."""
    monkeypatch.setattr(sqlite_audit_writer, "IDLE_S", 60.0)
    monkeypatch.setattr(sqlite_audit_writer, "MERGED_S", 60.0)
    create(tmp_path / "keyring.json")
    ring = KeyRing.load(f"file:{tmp_path / 'keyring.json'}")
    copy = tmp_path / "copy.db"
    settings = 'resource = "http://127.0.0.1:8000/mcp"\n'
    settings += f'[storage]\ndatabase = "{url}"\n'
    if with_ring:
        settings += f'[keys]\nring = "file:{tmp_path / "keyring.json"}"\n'
    (tmp_path / "gatepost.toml").write_text(settings)
    arguments = ["backup", str(copy), "--config", str(tmp_path / "gatepost.toml")]
    async with audit_log(url, ring) as log:
        await log.note(1)
        for _ in range(4):
            await log.note_unmerged()
        result = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    async with audit_log(f"sqlite:///{copy}", ring) as copied:
        rows = await copied.store.tenant_log("acme").chain(1).rows(0, 99)
        seen = await copied.verify()

    assert result.exit_code == 0, result.output
    assert ("may be missing" in result.output) != with_ring
    assert ([row.number for row in rows], seen.bad_number) == (
        [1, 2, 3, 4, 5] if with_ring else [1],
        None,
    )
