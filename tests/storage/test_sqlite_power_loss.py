"""A loss of power takes no audit record that was acknowledged, although merges are not durable."""

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gatepost.storage.sql import sqlite_audit_writer as module
from gatepost.storage.sql.sqlite_audit_connection import empty_log
from tests.storage.test_sqlite_wal import LONG_WAIT_S, FileProcess, numbers, process, wal, write


@pytest.fixture(params=[False, True], ids=["file", "link"])
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Return the path of a database, maybe a link, whose records are merged only for a reader."""
    monkeypatch.setattr(module, "IDLE_S", LONG_WAIT_S)
    monkeypatch.setattr(module, "MERGED_S", LONG_WAIT_S)
    given = tmp_path / "records.db"
    if request.param:
        (tmp_path / "disk").mkdir()
        given.symlink_to(tmp_path / "disk" / "real.db")
    return given


@pytest.fixture
async def file(path: Path) -> AsyncIterator[FileProcess]:
    """Yield a database where the tenant `acme` has two records that are not merged."""
    records = await process(path)
    await write(records, acme=2)
    yield records
    await records.aclose()


def tables(path: Path) -> list[Path]:
    """Return the files of the tables; the write-ahead log of the process is another one."""
    real = path.resolve()
    return [real, real.with_name(f"{real.name}-wal")]


@pytest.mark.requirement("AU3")
async def test_a_merge_that_a_loss_of_power_undoes_is_made_again(
    file: FileProcess, path: Path, tmp_path: Path
) -> None:
    """What the disk has then are the tables of before, and every batch."""
    restored = tmp_path / "after" / path.name
    restored.parent.mkdir()
    for table, name in zip(tables(path), (path.name, f"{path.name}-wal"), strict=True):
        shutil.copy(table, restored.parent / name)
    await write(file, acme=1, globex=1)
    await file.store.link_pending()
    shutil.copy(wal(path), wal(restored))
    later = await process(restored)
    await write(later, acme=1)
    kept = [await numbers(later, tenant) for tenant in ("acme", "globex", "-")]
    await later.aclose()

    assert kept == [[1, 2, 3, 4], [1], []]


class DiskOrder:
    """The order in which tables are made durable and frames are overwritten."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        self._path, self._pwrite, self._synchronise = path, os.pwrite, os.fdatasync
        monkeypatch.setattr(os, "pwrite", self.pwrite)
        monkeypatch.setattr(os, "fdatasync", self.fdatasync)

    def pwrite(self, handle: int, data: bytes, offset: int) -> int:
        if not any(data):
            self.steps.append("frames are overwritten")
        return self._pwrite(handle, data, offset)

    def fdatasync(self, handle: int) -> None:
        self._synchronise(handle)
        if os.fstat(handle).st_ino in {table.stat().st_ino for table in tables(self._path)}:
            self.steps.append("tables are durable")


async def restarted(file: FileProcess, path: Path) -> None:
    """Let the process begin its write-ahead log anew, as when no batch comes."""
    await file.store.aclose()


async def emptied_after_a_kill(file: FileProcess, path: Path) -> None:
    """Let another process empty the write-ahead log of one that was killed."""
    await file.store.link_pending()
    vars(file.store)["_wal"].close()
    other = await process(path)
    await other.store.link_pending()
    await other.aclose()


async def emptied_for_an_erasure(file: FileProcess, path: Path) -> None:
    """Let a command remove merged frames while the process runs."""
    await file.store.link_pending()
    empty_log(f"sqlite:///{path}")


@pytest.mark.requirement("AU3")
@pytest.mark.parametrize("overwrite", [restarted, emptied_after_a_kill, emptied_for_an_erasure])
async def test_tables_are_durable_before_frames_are_overwritten(
    file: FileProcess,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    overwrite: Callable[[FileProcess, Path], Awaitable[None]],
) -> None:
    """Until then, the frames may be all that the disk has of these records."""
    order = DiskOrder(path, monkeypatch)
    await overwrite(file, path)

    assert order.steps[:2] == ["tables are durable", "frames are overwritten"]
