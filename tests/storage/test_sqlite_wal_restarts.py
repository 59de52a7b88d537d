"""What fails, or is restored, when a write-ahead log begins anew loses no record silently."""

import asyncio
import errno
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gatepost.storage.sql import sqlite_audit_connection as connection_module
from gatepost.storage.sql import sqlite_audit_writer as module
from tests.storage.test_sqlite_power_loss import DiskOrder
from tests.storage.test_sqlite_wal import (
    LONG_WAIT_S,
    FileProcess,
    numbers,
    path,
    process,
    wal,
    write,
)
from tests.support.measuring import eventually
from tests.support.stores import failing_commits

__all__ = ["path"]  # a fixture


@pytest.mark.requirement("AU3")
async def test_a_restart_that_failed_loses_no_later_record(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row says the beginning of the file, where the next batch must be found after a kill."""

    failures = []

    def fail(name: str) -> None:
        failures.append(name)
        raise OSError(errno.EMFILE, "Too many open files")

    records = await process(path)
    await write(records, acme=1)
    with monkeypatch.context() as patch:
        patch.setattr(connection_module, "synchronise_log", fail)
        patch.setattr(module, "IDLE_S", 0.01)
        await write(records, acme=1)
        await records.store.link_pending()
        await asyncio.to_thread(eventually, lambda: failures, within=LONG_WAIT_S)
    await write(records, acme=1)
    vars(records.store)["_wal"].close()  # as when the process is killed
    other = await process(path)
    kept = await numbers(other), await numbers(other, "-")
    await other.aclose()

    assert kept == ([1, 2, 3], [])


@pytest.mark.requirement("AU3")
async def test_tables_are_durable_before_a_log_is_opened_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merged frames are cut off then; a merge whose commit seemed to fail may be in no file."""
    records = await process(path)
    await write(records, acme=3)
    await records.store.link_pending()
    with monkeypatch.context() as patch:
        patch.setattr(connection_module, "executing", failing_commits(is_late=True))
        vars(records.store)["_merger"].close()  # the next connection executes so
        patch.setattr(module, "IDLE_S", 0.01)
        await write(records, acme=1)
        await asyncio.to_thread(eventually, lambda: records.store.is_failing, within=LONG_WAIT_S)
    order = DiskOrder(path, monkeypatch)
    cut, truncate = order.steps, os.ftruncate

    def ftruncate(handle: int, size: int) -> None:
        cut.append("frames are cut off")
        truncate(handle, size)

    monkeypatch.setattr(os, "ftruncate", ftruncate)
    await write(records, acme=1)
    await records.aclose()

    assert "tables are durable" in cut[: cut.index("frames are cut off")]


async def backup(path: Path) -> Path:
    """Return a copy of the tables as they are."""
    copy = path.with_name("copy.db")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


async def restored(path: Path, copy: Path) -> FileProcess:
    """Replace the tables by a copy, and leave the write-ahead logs, against the documentation."""
    for companion in ("", "-wal", "-shm"):
        path.with_name(path.name + companion).unlink(missing_ok=True)
    shutil.copy(copy, path)
    return await process(path)


async def new_log(records: FileProcess, path: Path) -> None:
    """Let the write-ahead log of a process begin anew, and close it."""
    await records.aclose()
    assert not wal(path).read_bytes().strip(b"\0")


@pytest.mark.requirement("AU1")
async def test_a_backup_beside_a_log_that_began_anew_is_recorded_as_a_break(path: Path) -> None:
    """The new frames are before the offset in the row of the backup."""
    records = await process(path)
    await write(records, acme=50)
    await records.store.link_pending()
    copy = await backup(path)
    await new_log(records, path)
    killed = await process(path)
    await write(killed, acme=1)
    vars(killed.store)["_wal"].close()  # as when the process is killed
    other = await restored(path, copy)
    await write(other, acme=1)
    kept = await numbers(other, "-")
    await other.aclose()

    assert kept == [1]
    assert wal(path).with_name(f"{wal(path).name}.damaged-1").exists()


@pytest.mark.requirement("AU1")
@pytest.mark.parametrize("number", [1, 2])
async def test_a_backup_from_before_a_log_is_recorded_as_a_break(path: Path, number: int) -> None:
    """It has no row for that log, which may have a single frame."""
    records = [await process(path) for _ in range(2)]
    copy = await backup(path)
    for killed in records[:number]:
        await write(killed, acme=1)
    for killed in records[: number - 1]:
        await killed.aclose()
    vars(records[number - 1].store)["_wal"].close()  # as when the process is killed
    other = await restored(path, copy)
    kept = await numbers(other, "-")
    await write(other, acme=1)
    later = await numbers(other, "-")
    await other.aclose()

    assert (kept, later) == ([1], [1])
    log = wal(path, number)
    assert log.with_name(f"{log.name}.damaged-1").exists()
