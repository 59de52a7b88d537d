"""The SQLite file: durable or refused, this user's alone, and told when it cannot be used."""

import asyncio
import resource
import signal
import sqlite3
import stat
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from gatepost.storage.errors import StoreRefused, StoreUnavailable
from gatepost.storage.sql import database, sqlite
from gatepost.storage.sql.records import SqlRecords, database_of, opened
from tests.conftest import idempotency_record, task
from tests.support.processes import Process, python_environment


async def pragma(records: SqlRecords, name: str) -> object:
    return (await records.database.rows(text(f"PRAGMA {name}"), {}))[0][0]


async def test_connections_use_wal_with_a_sync_at_every_commit(tmp_path: Path) -> None:
    """The pragmas of the connections show it."""
    records = await opened(f"sqlite:///{tmp_path}/records.db")

    assert await pragma(records, "journal_mode") == "wal"
    assert await pragma(records, "synchronous") == 2
    assert await pragma(records, "foreign_keys") == 1
    assert await pragma(records, "busy_timeout") == database.STATEMENT_MS
    await records.aclose()


async def test_each_connection_caches_half_a_megabyte(tmp_path: Path) -> None:
    """The system caches the file as well."""
    records = await opened(f"sqlite:///{tmp_path}/records.db")

    assert await pragma(records, "cache_size") == -512
    await records.aclose()


async def test_a_file_without_durable_writes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite ignores a setting silently, so the start checks it."""
    monkeypatch.setattr(sqlite, "PRAGMAS", {**sqlite.PRAGMAS, "synchronous": 7})

    with pytest.raises(StoreRefused, match="PRAGMA synchronous"):
        await opened(f"sqlite:///{tmp_path}/records.db")


def file_modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


async def test_the_files_are_accessible_to_their_user_only(tmp_path: Path) -> None:
    """They contain the arguments of calls."""
    records = await opened(f"sqlite:///{tmp_path}/records.db")
    await records.for_tenant("acme").tasks.create(task())
    modes_found = file_modes(tmp_path)
    await records.aclose()

    names = [f"records.db{end}" for end in ("", "-wal", "-shm", "-lock")]
    assert modes_found == dict.fromkeys(names, 0o600)


async def test_a_path_may_contain_any_characters(tmp_path: Path) -> None:
    """Spaces and signs are written with per cent signs, as in any URL."""
    records = await opened(f"sqlite:///{tmp_path}/a%20b%25c%3F.db")
    await records.aclose()

    assert (tmp_path / "a b%c?.db").exists()


async def test_an_impossible_path_is_refused_with_a_reason(tmp_path: Path) -> None:
    """A start without a database is refused, saying why."""
    (tmp_path / "file").write_text("")

    for path in ("file/records.db", "."):
        with pytest.raises(StoreRefused, match="cannot be opened"):
            await opened(f"sqlite:///{tmp_path}/{path}")


async def test_a_file_that_is_no_database_is_reported(tmp_path: Path) -> None:
    """The message has SQLite's error name and no traceback."""
    (tmp_path / "records.db").write_text("not a database, whatever it is called" * 100)

    with pytest.raises(StoreUnavailable, match="SQLITE_NOTADB"):
        await opened(f"sqlite:///{tmp_path}/records.db")


async def test_a_file_that_is_locked_too_long_is_an_outage_for_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers are served meanwhile, and later writes succeed."""
    monkeypatch.setattr(sqlite, "PRAGMAS", {**sqlite.PRAGMAS, "busy_timeout": 50})
    records = await opened(f"sqlite:///{tmp_path}/records.db")
    idempotency = records.for_tenant("acme").idempotency
    other = sqlite3.connect(tmp_path / "records.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreUnavailable, match="SQLITE_BUSY"):
        await idempotency.begin(idempotency_record(), now=0.0)
    assert await idempotency.get(b"k1") is None
    await records.ping()

    other.execute("ROLLBACK")
    other.close()
    assert await idempotency.begin(idempotency_record(), now=0.0) is None
    await records.aclose()


async def test_a_server_waits_while_another_one_creates_a_new_file(tmp_path: Path) -> None:
    """
    If servers start at once on a new file, the second one waits. SQLite ignores its own timeout and
    refuses to turn its log on while another process writes.
    """
    other = sqlite3.connect(tmp_path / "records.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    opening = asyncio.create_task(opened(f"sqlite:///{tmp_path}/records.db"))
    await asyncio.wait({opening}, timeout=0.2)
    assert not opening.done()
    other.execute("ROLLBACK")
    other.close()
    records = await opening

    assert await pragma(records, "journal_mode") == "wal"
    await records.aclose()


@pytest.mark.parametrize("again", [False, True], ids=["pooled", "new connection"])
async def test_writes_to_a_removed_file_are_refused(tmp_path: Path, again: bool) -> None:
    """SQLite would acknowledge on in the removed file, or make an empty one; back, it serves."""
    path, aside = tmp_path / "records.db", tmp_path / "aside.db"
    records = await opened(f"sqlite:///{path}")
    if again:
        await records.aclose()
        records = SqlRecords(database_of(f"sqlite:///{path}"))
    path.rename(aside)

    for replaced in (False, True):
        if replaced:
            path.touch()
        with pytest.raises(StoreUnavailable, match="gone or another"):
            await records.for_tenant("acme").idempotency.begin(idempotency_record(), now=0.0)
        with pytest.raises(StoreUnavailable):
            await records.ping()
        assert path.exists() is replaced

    aside.rename(path)
    assert await records.for_tenant("acme").idempotency.begin(idempotency_record(), now=0.0) is None
    await records.aclose()


async def test_the_write_ahead_log_of_a_killed_process_is_read(tmp_path: Path) -> None:
    """It holds the acknowledged writes."""
    url = f"sqlite:///{tmp_path}/records.db"
    script = (
        "import asyncio, os, sys\n"
        "from gatepost.storage.sql.records import opened\n"
        "from tests.conftest import idempotency_record\n"
        "async def main():\n"
        "    records = await opened(sys.argv[1])\n"
        "    store = records.for_tenant('acme').idempotency\n"
        "    assert await store.begin(idempotency_record(), now=0.0) is None\n"
        "    os._exit(9)\n"
        "asyncio.run(main())\n"
    )
    killed = Process([sys.executable, "-c", script, url], env=python_environment())
    try:
        assert killed.process.wait(30) == 9, killed.output
    finally:
        killed.kill()
    assert (tmp_path / "records.db-wal").stat().st_size > 0

    records = await opened(url)
    assert (
        await records.for_tenant("acme").idempotency.get(idempotency_record().key)
        == idempotency_record()
    )
    await records.aclose()


async def test_a_full_disk_is_reported_and_survived(tmp_path: Path) -> None:
    """No write is half done, reads succeed, and writes do so once there is room."""
    records = await opened(f"sqlite:///{tmp_path}/records.db")
    idempotency, full = records.for_tenant("acme").idempotency, b"x" * 4_000_000
    assert await idempotency.begin(idempotency_record(key=b"1"), now=0.0) is None
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        with pytest.raises(StoreUnavailable) as outage:
            await idempotency.finish(b"1", idempotency_record().holder, full, 9e9)
        stored = await idempotency.get(b"1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)

    assert "SQLITE_" in str(outage.value)
    assert stored == idempotency_record(key=b"1")
    assert await idempotency.finish(b"1", idempotency_record().holder, full, 9e9)
    await records.aclose()
