"""Write-ahead logs of a SQLite file: a batch is durable with one write, and in the tables later."""

import asyncio
import errno
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gatepost.audit.batches import RingLinker
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import RecordsByChain
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql import sqlite_audit_connection as connection_module
from gatepost.storage.sql import sqlite_audit_writer as module
from gatepost.storage.sql.records import SqlRecords, opened
from tests.storage.test_audit import linked, new_record

LONG_WAIT_S = 20.0
RING = KeyRing(KeyRing.ephemeral().keys, lasting=True)
TIMES_S = count(1_000)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a database whose write-ahead logs are merged only for a reader."""
    monkeypatch.setattr(module, "IDLE_S", LONG_WAIT_S)
    monkeypatch.setattr(module, "MERGED_S", LONG_WAIT_S)
    return tmp_path / "records.db"


class FileProcess:
    """The file as another process of the same servers opens it."""

    def __init__(self, records: SqlRecords, linker: RingLinker) -> None:
        self.records, self.store = records, records.open_audit(linker)

    async def aclose(self) -> None:
        await self.records.aclose()


@pytest.fixture
async def file(path: Path) -> AsyncIterator[FileProcess]:
    """Yield a database where the tenants `acme` and `globex` have one record each."""
    records = await process(path)
    await write(records, acme=1, globex=1)
    yield records
    await records.aclose()


async def process(path: Path, linker: RingLinker | None = None) -> FileProcess:
    """Open the file as another process of the same servers does."""
    return FileProcess(await opened(f"sqlite:///{path}"), linker or RingLinker(RING))


def batch_of(**numbers: int) -> RecordsByChain:
    """Return a batch with that number of records of each tenant."""
    return {
        (tenant, 1): [new_record(next(TIMES_S)) for _ in range(number)]
        for tenant, number in numbers.items()
    }


async def write(records: FileProcess, **numbers: int) -> None:
    await records.store.write(batch_of(**numbers), linked)


async def numbers(records: FileProcess, tenant: str = "acme") -> list[int]:
    return [row.number for row in await records.store.tenant_log(tenant).chain(1).rows(0, 100_000)]


def wal(path: Path, number: int = 1) -> Path:
    real = path.resolve()
    return real.with_name(f"{real.name}-audit-{number}")


class Calls:
    """How often functions of the system were called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.made: list[str] = []
        for name in names:
            monkeypatch.setattr(os, name, self._counting(name, getattr(os, name)))

    def _counting(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            self.made.append(name)
            return original(*given)

        return call


async def test_a_batch_is_one_file_write_without_a_statement(
    file: FileProcess, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of records does not matter; it does not wait for the database's writer."""
    many = {f"t{number}": 3 for number in range(50)}
    calls = Calls(monkeypatch, "pwrite", "fdatasync")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        await write(file, acme=25, **many)
        other.execute("ROLLBACK")

    assert calls.made == ["pwrite", "fdatasync"]
    assert await numbers(file) == [*range(1, 27)]
    assert await numbers(file, "t7") == [1, 2, 3]


async def test_a_merge_is_one_segment_for_each_chain(file: FileProcess) -> None:
    """The records of all batches are joined, and the head is proven once."""
    for _ in range(20):
        await write(file, acme=2, globex=1)
    acme = await file.store.tenant_log("acme").chain(1).segments(0, 99)
    globex = await file.store.tenant_log("globex").chain(1).segments(0, 99)

    assert [(segment.first, segment.last) for segment in acme] == [(1, 41)]
    assert [(segment.first, segment.last) for segment in globex] == [(1, 21)]


async def test_each_process_has_a_write_ahead_log(
    file: FileProcess, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lowest that is free, for this user only; the end of a process frees it."""
    others, calls = [await process(path) for _ in range(2)], Calls(monkeypatch, "fsync")
    for other in others:
        await write(other, acme=1)
    folders = len(calls.made)  # a new file is found after a loss of power
    logs_exist = [wal(path, number).exists() for number in (1, 2, 3, 4)]
    modes = {wal(path, number).stat().st_mode & 0o777 for number in (1, 2, 3)}
    await others[0].store.aclose()
    next_one = await process(path)
    await write(next_one, acme=1)
    for other in (*others, next_one):
        await other.aclose()

    assert (logs_exist, modes, folders) == ([True, True, True, False], {0o600}, 2)
    assert not wal(path, 4).exists()
    assert await numbers(file) == [1, 2, 3, 4]


async def test_two_processes_merge_each_others_batches_once(file: FileProcess, path: Path) -> None:
    """The process that reads merges both; the other continues after that."""
    other = await process(path)
    for _ in range(3):
        await write(file, acme=2)
        await write(other, globex=1)
        mine, theirs = await numbers(other), await numbers(file, "globex")
    await other.aclose()

    assert (mine, theirs) == ([*range(1, 8)], [*range(1, 5)])
    assert await numbers(file) == mine


async def test_a_write_ahead_log_begins_anew_when_no_process_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps no merged record."""
    monkeypatch.setattr(module, "IDLE_S", 0.01)
    records = await process(tmp_path / "records.db")
    await write(records, acme=3)
    wal_file = wal(tmp_path / "records.db")
    async with asyncio.timeout(LONG_WAIT_S):
        while wal_file.read_bytes().strip(b"\0"):
            await asyncio.to_thread(int)
    await write(records, acme=1)
    read_numbers = await numbers(records)
    await records.aclose()

    assert read_numbers == [1, 2, 3, 4]


class HangingDisk:
    """A disk that does not answer until it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.go, self.synchronise = threading.Event(), threading.Event(), os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self)

    def __call__(self, handle: int) -> None:
        self.began.set()
        self.go.wait(LONG_WAIT_S)
        self.synchronise(handle)


FAILURES = {"no space": ("pwrite", errno.ENOSPC), "no disk": ("fdatasync", errno.EIO)}


@pytest.mark.parametrize("merged", [False, True], ids=["alone", "merged by another"])
@pytest.mark.parametrize("name", FAILURES)
async def test_a_batch_that_failed_is_written_once(
    file: FileProcess, path: Path, monkeypatch: pytest.MonkeyPatch, name: str, merged: bool
) -> None:
    """The log may already have it, in whole or in part, although its writer got an error."""
    function, code = FAILURES[name]
    original = getattr(os, function)

    def fail(*given: Any) -> None:
        if function == "pwrite":
            original(given[0], given[1][:50], given[2])
        raise OSError(code, os.strerror(code))

    batch, other = batch_of(acme=2, globex=1), await process(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        with pytest.raises(StoreUnavailable, match=r"records\.db-audit-1 cannot be written"):
            await file.store.write(batch, linked)
    if merged:
        await other.store.link_pending()
    calls = Calls(monkeypatch, "pwrite", "fdatasync")
    await file.store.write(batch, linked)
    assert calls.made[-1] == "fdatasync"
    # To synchronise again what failed once would do nothing.
    assert merged or "pwrite" in calls.made
    await write(file, acme=1)
    await other.aclose()

    assert (await numbers(file), await numbers(file, "globex")) == ([1, 2, 3, 4], [1, 2])


async def test_another_batch_follows_one_that_failed(
    file: FileProcess, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unacknowledged batch may be kept, and no acknowledged batch is lost."""
    other = await process(path)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(StoreUnavailable):
            await file.store.write({("acme", 1): [new_record(7)]}, linked)
    await other.store.link_pending()
    await file.store.write({("acme", 1): [new_record(8)]}, linked)
    times = [row.at for row in await other.store.tenant_log("acme").chain(1).rows(1, 9)]
    await other.aclose()

    assert times == [7, 8]


async def test_tables_that_cannot_be_written_are_an_outage(
    file: FileProcess, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins with a failed merge; acknowledged records are merged later."""
    await write(file, acme=1)
    with monkeypatch.context() as patch:
        patch.setattr(connection_module, "connect", _full)
        vars(file.store)["_merger"].close()
        with pytest.raises(StoreUnavailable):
            await file.store.link_pending()
        with pytest.raises(StoreUnavailable):
            await write(file, acme=1)
    await write(file, acme=1)

    assert await numbers(file) == [1, 2, 3]


def _full(_: str) -> sqlite3.Connection:
    raise sqlite3.OperationalError("database or disk is full")


async def test_records_for_a_removed_file_are_refused(file: FileProcess, path: Path) -> None:
    """The write is refused until the file is back."""
    aside = path.with_name("aside.db")
    os.rename(path, aside)
    with pytest.raises(StoreUnavailable, match="gone or another"):
        await write(file, acme=1)
    os.rename(aside, path)
    await write(file, acme=1)

    assert await numbers(file) == [1, 2]


def replace_file(source: Path) -> None:
    other = source.with_name("other")
    other.write_bytes(source.read_bytes())
    other.rename(source)


def rename_file(source: Path) -> None:
    source.rename(source.with_name("other"))


@pytest.mark.parametrize("lose", [Path.unlink, rename_file, replace_file])
async def test_a_removed_write_ahead_log_loses_no_record(
    file: FileProcess, path: Path, lose: Callable[[Path], object]
) -> None:
    """The process still has its records and writes them to another log."""
    await write(file, acme=2)
    lose(wal(path))
    with pytest.raises(StoreUnavailable, match="gone or another"):
        await write(file, acme=1)
    await write(file, acme=1)

    assert wal(path).exists()
    assert await numbers(file) == [1, 2, 3, 4]


async def test_the_write_ahead_log_of_another_database_is_not_merged(
    file: FileProcess, path: Path, tmp_path: Path
) -> None:
    """An operator may remove or replace a database and leave the files beside it."""
    await write(file, acme=5)
    elsewhere = tmp_path / "other" / "records.db"
    elsewhere.parent.mkdir()
    wal(elsewhere).write_bytes(wal(path).read_bytes())
    other = await process(elsewhere)
    await write(other, globex=1)
    read_numbers = [await numbers(other, tenant) for tenant in ("acme", "globex")]
    operator_kinds = [row.kind for row in await other.store.tenant_log("-").chain(1).rows(0, 9)]
    damaged = wal(elsewhere).with_name("records.db-audit-1.damaged-1")
    await other.aclose()

    assert (read_numbers, operator_kinds) == ([[], [1]], ["break"])
    assert damaged.read_bytes() == wal(path).read_bytes()
    assert damaged.stat().st_mode & 0o777 == 0o600


async def test_an_argument_is_not_taken_for_a_frame(file: FileProcess, path: Path) -> None:
    """Such an argument does not make the log of a killed process look changed."""
    await write(file, acme=1)
    frame = wal(path).read_bytes().strip(b"\0")
    forged = frame.decode("latin-1")
    await file.store.write({("acme", 1): [new_record(reason=forged)]}, linked)
    vars(file.store)["_wal"].close()  # as when the process is killed
    wal_file = wal(path).read_bytes()
    wal(path).write_bytes(wal_file[:-1].rstrip(b"\0")[:-1])  # it was half written
    other = await process(path)
    await write(other, globex=1)
    operator_numbers = await numbers(other, "-")
    await other.aclose()

    assert operator_numbers == []


async def test_a_writer_that_hangs_is_an_outage(
    file: FileProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers get an error in time, and the batch is not written twice."""
    disk = HangingDisk(monkeypatch)
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    batch = batch_of(acme=1)
    with pytest.raises(StoreUnavailable, match="in time"):
        await file.store.write(batch, linked)
    disk.go.set()
    monkeypatch.setattr(module, "ANSWER_S", LONG_WAIT_S)
    await file.store.write(batch, linked)

    assert await numbers(file) == [1, 2]


async def test_a_batch_of_a_cancelled_writer_is_still_written(
    file: FileProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next writer gets the result of its own batch."""
    disk = HangingDisk(monkeypatch)
    writing = asyncio.ensure_future(file.store.write({("acme", 1): [new_record(7)]}, linked))
    await asyncio.to_thread(disk.began.wait, LONG_WAIT_S)
    writing.cancel()
    disk.go.set()
    await file.store.write({("acme", 1): [new_record(8)]}, linked)

    assert writing.cancelled()
    assert [row.at for row in await file.store.tenant_log("acme").chain(1).rows(1, 9)] == [7, 8]


def test_the_writer_thread_survives_the_end_of_its_event_loop(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread continues with the next writer."""

    async def leave() -> tuple[FileProcess, HangingDisk]:
        records = await process(path)
        await write(records, acme=1)
        disk = HangingDisk(monkeypatch)
        writing = asyncio.ensure_future(write(records, acme=1))
        await asyncio.to_thread(disk.began.wait, LONG_WAIT_S)
        writing.cancel()
        return records, disk

    async def arrive(records: FileProcess) -> list[int]:
        await write(records, acme=1)
        read_numbers = await numbers(records)
        await records.aclose()
        return read_numbers

    records, disk = asyncio.run(leave())
    disk.go.set()

    assert asyncio.run(arrive(records)) == [1, 2, 3]
