"""Disks and commits that fail while batches are appended to a write-ahead log of a SQLite file."""

import asyncio
import errno
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.audit.batches import RingLinker
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import ChainHead
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql import sqlite_audit_connection as connection_module
from gatepost.storage.sql import sqlite_audit_writer as module
from gatepost.storage.sql.records import opened
from gatepost.storage.sql.sqlite import connect
from gatepost.storage.sql.sqlite_audit_wal import has_more
from tests.storage.test_audit import linked, new_record
from tests.storage.test_sqlite_wal import LONG_WAIT_S, FileProcess, path
from tests.support.measuring import capture_logs

__all__ = ["path"]  # a fixture
RING = KeyRing.ephemeral()


@pytest.fixture
async def file(path: Path) -> AsyncIterator[FileProcess]:
    """Yield a database without any records."""
    records = await process(path)
    yield records
    await records.aclose()


async def process(path: Path) -> FileProcess:
    """Open the file as another process of servers with a temporary key ring does."""
    return FileProcess(await opened(f"sqlite:///{path}"), RingLinker(RING))


async def write(records: FileProcess, at: int) -> None:
    await records.store.write({("acme", 1): [new_record(at)]}, linked)


async def kinds(records: FileProcess, tenant: str = "acme") -> list[str]:
    return [row.kind for row in await records.store.tenant_log(tenant).chain(1).rows(0, 99)]


def wal(path: Path) -> Path:
    return path.with_name(f"{path.name}-audit-1")


def kill(records: FileProcess) -> None:
    """Unlock its write-ahead log, and do nothing more."""
    vars(records.store)["_wal"].close()
    vars(records.store)["_linker"] = None


class FullDatabase(sqlite3.Connection):
    """Its disk is full when a transaction is to be committed."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "COMMIT":
            raise sqlite3.OperationalError("database or disk is full")
        return super().execute(sql, parameters)


def _full(path: str) -> sqlite3.Connection:
    connect(path).close()
    return sqlite3.connect(path, isolation_level=None, factory=FullDatabase)


async def test_no_frame_is_appended_before_the_row_of_the_log_is_written(
    file: FileProcess, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill, no process would know what the first frame continues."""
    with monkeypatch.context() as patch:
        patch.setattr(connection_module, "connect", _full)
        with pytest.raises(StoreUnavailable, match="OperationalError"):
            await write(file, 7)
        with pytest.raises(StoreUnavailable, match="OperationalError"):
            await write(file, 7)
    await write(file, 7)
    kill(file)
    other = await process(path)
    found_kinds, operator_records = await kinds(other), await kinds(other, "-")
    await other.aclose()

    assert (len(found_kinds), operator_records) == (1, [])


async def test_a_changed_write_ahead_log_stays_changed_until_that_is_recorded(
    file: FileProcess, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that fails does not hide it, and each attempt does not keep another copy."""
    for at in (7, 8, 9):
        await write(file, at)
    kill(file)
    wal_file = wal(path).read_bytes()
    first = wal_file.index(b"GPA1", 1)
    wal(path).write_bytes(wal_file[:first] + bytes(60) + wal_file[first + 60 :])
    other = await process(path)
    with monkeypatch.context() as patch:
        patch.setattr(connection_module, "connect", _full)
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="OperationalError"):
                await write(other, 10)
    await write(other, 10)
    found_kinds, operator_records = await kinds(other), await kinds(other, "-")
    await other.aclose()

    assert (len(found_kinds), operator_records) == (2, ["break"])
    assert len([*path.parent.glob("*.damaged-*")]) == 1


class FailingDisk:
    """
    What is on the disk of a write-ahead log: a page whose synchronisation failed counts as written.
    """

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.content, self.is_broken = bytearray(wal(path).read_bytes()), False
        self._waiting: list[tuple[bytes, int]] = []
        self._pwrite, self._fdatasync = os.pwrite, os.fdatasync
        monkeypatch.setattr(os, "pwrite", self.pwrite)
        monkeypatch.setattr(os, "fdatasync", self.fdatasync)

    def pwrite(self, file: int, content: bytes, offset: int) -> int:
        self._waiting.append((bytes(content), offset))
        return self._pwrite(file, content, offset)

    def fdatasync(self, file: int) -> None:
        waiting, self._waiting = self._waiting, []
        if self.is_broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        for content, offset in waiting:
            self.content[offset : offset + len(content)] = content
        self._fdatasync(file)


async def test_a_batch_is_written_again_after_a_disk_error(
    file: FileProcess, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a write error the system keeps the data in memory and never writes it."""
    await write(file, 7)
    disk, batch = FailingDisk(path, monkeypatch), {("acme", 1): [new_record(8, reason="wanted")]}
    disk.is_broken = True
    with pytest.raises(StoreUnavailable):
        await file.store.write(batch, linked)
    disk.is_broken = False
    await file.store.write(batch, linked)

    assert b"wanted" in disk.content
    assert len(await kinds(file)) == 2


async def test_the_name_of_a_write_ahead_log_is_durable_before_a_batch(
    file: FileProcess, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose folder was not synchronised may be gone after the loss of power."""
    synchronised, original = list[Path](), os.fsync

    def note(file: int) -> None:
        original(file)
        synchronised.append(Path(os.readlink(f"/proc/self/fd/{file}")))

    monkeypatch.setattr(os, "fsync", note)
    await write(file, 7)

    assert path.parent in synchronised


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_an_unexpected_error_of_a_merge_is_an_outage(
    file: FileProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise batches would be acknowledged and never merged."""
    await write(file, 7)

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch, capture_logs() as logged:
        patch.setattr(connection_module, "recorded_ends", fail)
        patch.setattr(module, "IDLE_S", 0.01)
        vars(file.store)["_merging"].wake()
        async with asyncio.timeout(LONG_WAIT_S):
            while not file.store.is_failing:
                await asyncio.to_thread(int)
        with pytest.raises(MemoryError):
            await write(file, 8)
    await write(file, 8)

    # Twice if two threads begin to fail at the same moment.
    assert {event["reason"] for event in logged if event["event"] == "audit_not_merged"} == {
        "an unexpected error"
    }
    assert not file.store.is_failing
    assert len(await kinds(file)) == 2


class CountingLinker(RingLinker):
    """Counts the proofs that it was asked for."""

    proofs: int = 0

    def proves(self, head: ChainHead) -> bool:
        self.proofs += 1
        return super().proves(head)


def test_arguments_that_resemble_headers_cost_no_proofs(tmp_path: Path) -> None:
    """A caller whose text looks like headers does not keep the next process from its start."""
    wal_file, linker = tmp_path / "write-ahead log", CountingLinker(RING)
    wal_file.write_bytes(b"GPA1" + b"x" * 50 + b"GPA1 \xc3\xa4" * 10_000)
    with wal_file.open("rb") as opened_file:
        more = has_more(opened_file.fileno(), ChainHead("", 1, 0, b"", 0, ""), linker)

    assert (more, linker.proofs) == (False, 0)


async def test_a_closed_store_refuses_writes(file: FileProcess) -> None:
    """The write fails with an error that says so."""
    await file.store.aclose()

    with pytest.raises(StoreUnavailable, match="closed"):
        await write(file, 7)
