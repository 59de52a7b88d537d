"""What fails between a write-ahead log of a SQLite file and its tables loses no record."""

import errno
import sqlite3
import struct
from collections.abc import AsyncIterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from gatepost.audit.batches import RingLinker
from gatepost.storage.audit import ChainHead
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql import sqlite_audit_connection as connection_module
from gatepost.storage.sql import sqlite_audit_merger as merger_module
from tests.storage.test_sqlite_wal import RING, FileProcess, numbers, path, process, wal, write
from tests.support.stores import failing_commits

__all__ = ["path"]  # a fixture

HEADER = "<4sIHQ32s"


@pytest.fixture
async def file(path: Path) -> AsyncIterator[FileProcess]:
    """Yield a database where the tenant `acme` has one record."""
    records = await process(path)
    await write(records, acme=1)
    yield records
    await records.aclose()


@pytest.mark.parametrize("is_late", [False, True], ids=["undone", "done"])
async def test_a_first_commit_that_failed_loses_no_record(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """A write-ahead log without a row would be one of another database for the next process."""
    records = await process(path)
    with monkeypatch.context() as patch:
        patch.setattr(connection_module, "executing", failing_commits(is_late=is_late))
        with pytest.raises(StoreUnavailable, match="OperationalError"):
            await write(records, acme=1)
    await write(records, acme=2)
    vars(records.store)["_wal"].close()  # as when the process is killed
    other = await process(path)
    own_numbers, operator_numbers = await numbers(other), await numbers(other, "-")
    await other.aclose()

    assert (own_numbers, operator_numbers) == ([1, 2], [])


async def test_the_row_of_another_database_loses_no_record(
    file: FileProcess, path: Path, tmp_path: Path
) -> None:
    """It has a valid proof of the same ring and claims that more records are merged."""
    (tmp_path / "other").mkdir()
    elsewhere = tmp_path / "other" / "records.db"
    other = await process(elsewhere)
    for _ in range(9):
        await write(other, globex=1)
    await other.aclose()
    with closing(sqlite3.connect(elsewhere)) as connection:
        row = connection.execute("SELECT * FROM audit_heads WHERE tenant = ''").fetchone()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("REPLACE INTO audit_heads VALUES (?, ?, ?, ?, ?, ?)", row)
    await write(file, acme=1)

    assert await kinds(file) == ["break", "call", "call"]


async def kinds(records: FileProcess) -> list[str]:
    """Return the kinds of acme's records."""
    return [row.kind for row in await records.store.tenant_log("acme").chain(1).rows(0, 99)]


@pytest.mark.parametrize("runs", [True, False], ids=["running", "killed"])
async def test_a_forged_frame_is_not_merged(file: FileProcess, path: Path, runs: bool) -> None:
    """An attacker can compute its digest; the server overwrites the frame, or records a break."""
    await write(file, acme=1)
    wal_content = wal(path).read_bytes().rstrip(b"\0")
    at = wal_content.rindex(b"GPA1")
    _, size, length, number, digest = struct.unpack_from(HEADER, wal_content, at)
    content = wal_content[-size:].replace(b"success", b"forgery")
    digest = sha256(b"%b%d %b" % (digest, number + 1, content)).digest()
    forged = struct.pack(HEADER, b"GPA1", size, length, number + 1, digest) + bytes(length)
    with wal(path).open("r+b") as written:
        written.seek(len(wal_content))
        written.write(forged + content)
    if not runs:
        vars(file.store)["_wal"].close()
    other = await process(path)
    merged_kinds = await kinds(other)
    operator_numbers = await numbers(other, "-")
    if runs:
        await write(file, acme=1)
        merged_kinds = await kinds(other)
    await other.aclose()

    assert (merged_kinds, operator_numbers) == (["call"] * (3 if runs else 2), [] if runs else [1])


async def test_a_process_that_ended_leaves_no_half_batch(file: FileProcess, path: Path) -> None:
    """The rest could have data of an erased person in a log that no process opens again."""
    other = await process(path)
    await write(other, globex=1)
    vars(file.store)["_wal"].close()  # as when the process is killed
    await other.store.link_pending()
    with wal(path).open("r+b") as written:
        written.write(b"GPA1 half a frame")
    await other.store.link_pending()
    await other.aclose()

    assert wal(path).stat().st_size == 0


async def test_a_write_ahead_log_that_cannot_be_emptied_is_no_outage(
    file: FileProcess, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records are in the tables already."""

    def fail(*_: int) -> None:
        raise OSError(errno.EIO, "gone")

    other = await process(path)
    await write(other, acme=1)
    vars(file.store)["_wal"].close()  # as when the process is killed
    with monkeypatch.context() as patch:
        patch.setattr(merger_module, "overwrite", fail)
        numbers_before = await numbers(other)
        await write(other, acme=1)
    later = await numbers(other)
    await other.aclose()

    assert (numbers_before, later) == ([1, 2], [1, 2, 3])
    assert wal(path).stat().st_size == 0


class ProofLinker(RingLinker):
    """A linker that counts the proofs it was asked about."""

    asked = 0

    def proves(self, head: ChainHead) -> bool:
        """Implement `Linker`."""
        ProofLinker.asked += 1
        return super().proves(head)


async def test_a_log_full_of_frame_markers_does_not_delay_the_start(
    file: FileProcess, path: Path
) -> None:
    """A caller who sends it cannot delay the start after a kill: no part of it is looked at."""
    vars(file.store)["_wal"].close()  # as when the process is killed
    with wal(path).open("r+b") as file_handle:
        file_handle.write(b"GPA1" * 10_000 + b"GPA1 and a longer text, " * 10_000)
    other = await process(path, ProofLinker(RING))
    await write(other, globex=1)
    await other.aclose()

    assert ProofLinker.asked == 0


async def test_a_log_that_another_process_reuses_loses_no_record(path: Path) -> None:
    """New frames have the numbers of removed ones and valid proofs of the ring."""
    file, other = await process(path), await process(path)
    await write(file, acme=1, globex=1)
    await write(file, acme=2)
    wal(path).unlink()
    await write(other, globex=3)
    await other.store.link_pending()
    chains = [
        await file.store.tenant_log(tenant).chain(1).rows(0, 99) for tenant in ("acme", "globex")
    ]
    for records in (other, file):
        await records.aclose()

    kinds = [[row.kind for row in rows if row.kind != "break"] for rows in chains]
    assert [len(chain_kinds) for chain_kinds in kinds] == [3, 4]
