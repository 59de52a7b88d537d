"""Readers see records that are in a write-ahead log and not in the tables yet."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from gatepost.audit.writer import AuditWriter
from gatepost.config.audit import AuditSettings
from gatepost.secrets.keyring import KeyRing, create, rotate
from gatepost.storage.audit import AuditQuery, AuditRow
from gatepost.storage.backends import open_records
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql import sqlite_audit_connection, sqlite_audit_writer
from gatepost.storage.sql.sqlite_audit_connection import empty_log
from gatepost.tools.calls.redaction import Redaction
from tests.audit.conftest import AuditLog, audit_log, tamper, update
from tests.support.measuring import capture_logs
from tests.support.stores import failing_commits, sqlite_url

LONG_WAIT_S = 60.0


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a file whose write-ahead logs are merged only when a reader asks."""
    monkeypatch.setattr(sqlite_audit_writer, "IDLE_S", LONG_WAIT_S)
    monkeypatch.setattr(sqlite_audit_writer, "MERGED_S", LONG_WAIT_S)
    return sqlite_url(tmp_path)


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    create(tmp_path / "keyring.json")
    return KeyRing.load(f"file:{tmp_path / 'keyring.json'}")


@pytest.fixture
async def log(file: str, ring: KeyRing) -> AsyncIterator[AuditLog]:
    """Yield a log with acme's record 1 merged, 2 to 5 in frames 2, 3 and 5, globex in frame 4."""
    async with audit_log(file, ring) as log:
        await log.note(1)
        await log.sign()
        await log.note_unmerged()
        await asyncio.gather(log.note_unmerged(), log.note_unmerged(subject="bob"))
        await log.note_unmerged("globex")
        await log.note_unmerged()
        assert count_rows(file, "segments") == 1
        yield log


def count_rows(url: str, table: str) -> int:
    """Count the rows that a table of the file has."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
        cursor = file.execute(f"SELECT count(*) FROM audit_{table}")  # noqa: S608  # ours
        return int(cursor.fetchone()[0])


def wal(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///") + "-audit-1")


def file_contents(url: str) -> bytes:
    """Return all bytes of the file and of those beside it."""
    path = Path(url.removeprefix("sqlite:///"))
    return b"".join(path.read_bytes() for path in sorted(path.parent.glob(f"{path.name}*")))


async def numbers(log: AuditLog, tenant: str = "acme") -> list[int]:
    return [row.number for row in await log.store.tenant_log(tenant).chain(1).rows(0, 99)]


@asynccontextmanager
async def log_after_kill(log: AuditLog, url: str) -> AsyncIterator[AuditLog]:
    """Yield another process, after the one with the write-ahead log was killed."""
    vars(log.store)["_wal"].close()
    log.store.link_pending = _nothing  # type: ignore[method-assign]  # it is dead
    async with audit_log(url, log.keyring) as other:
        other.now = log.now
        yield other


async def _nothing() -> None:
    """Do nothing, as a killed process does."""


async def test_another_process_reads_every_acknowledged_record(log: AuditLog, file: str) -> None:
    """It merges the write-ahead log, and the writer continues after it."""
    async with audit_log(file, log.keyring) as other:
        records = await other.store.tenant_log("acme").find(AuditQuery())
        await log.note_unmerged()
        await log.note_unmerged()
        later = await other.store.tenant_log("acme").heads()

    assert [row.number for row in records] == [5, 4, 3, 2, 1]
    assert [(end.writer, end.number) for end in later] == [(0, 1), (1, 7)]
    assert (await log.verify()).bad_number is None


@pytest.mark.requirement("AU1")
async def test_a_process_rereads_the_key_ring_for_frames_of_a_new_key(
    log: AuditLog, file: str, tmp_path: Path
) -> None:
    """Another process has rotated the ring since it was last read."""
    log.keyring.reread()
    rotate(tmp_path / "keyring.json", keep=3)
    async with audit_log(file, KeyRing.load(f"file:{tmp_path / 'keyring.json'}")) as other:
        await other.note_unmerged()
        records = await log.store.tenant_log("acme").find(AuditQuery())

    assert sorted(row.number for row in records) == [1, 2, 3, 4, 5, 6]
    assert {row.kind for row in records} == {"approval"}


@pytest.mark.requirement("AU1")
async def test_a_stop_empties_the_write_ahead_log(log: AuditLog, file: str) -> None:
    """Each chain gets one more segment, and the file is overwritten with zeros."""
    await log.store.aclose()  # type: ignore[attr-defined]  # of SQLite

    assert count_rows(file, "segments") == 3
    assert not wal(file).read_bytes().strip(b"\0")


async def test_an_erasure_includes_records_in_the_write_ahead_log(log: AuditLog, file: str) -> None:
    """No file contains the erased data afterwards."""
    erased = await log.erasure.erase_tenant("acme")
    seen = await log.verify()
    empty_log(file)
    content = file_contents(file)

    assert (erased, seen.bad_number, seen.erased) == (5, None, 5)
    assert content.count(b"looked at") == 1  # globex's


@pytest.mark.requirement("AU1")
@pytest.mark.parametrize("change", ["number = 0", "hash = x'00'", "number = 'x'", "hash = 'x'"])
async def test_a_head_changed_before_a_merge_breaks_the_chain(
    log: AuditLog, file: str, change: str
) -> None:
    """No record is lost or renumbered, and the break is recorded before the merged records."""
    await tamper(file, update("heads", "writer = 1", change))
    with capture_logs() as logs:
        rows = await log.store.tenant_log("acme").chain(1).rows(0, 99)
    seen = await log.verify()

    assert [row.kind for row in rows] == ["approval", "break", *["approval"] * 4]
    assert [row.number for row in rows] == [*range(1, 7)]
    assert seen.bad_number is not None
    assert [event["event"] for event in logs] == ["audit_chain_broken"]


def frames(content: bytes) -> list[bytes]:
    """Return the frames of a write-ahead log, and what is behind them."""
    first, *others = content.split(b"GPA1")
    assert not first
    return [b"GPA1" + frame for frame in others]


def without_frame(at: int) -> Callable[[bytes], bytes]:
    return lambda content: b"".join(frame for n, frame in enumerate(frames(content)) if n != at)


def with_changed_frame(at: int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        parts = frames(content)
        assert b"approved" in parts[at]
        parts[at] = parts[at].replace(b"approved", b"rejected")
        return b"".join(parts)

    return change


def with_swapped_frames(content: bytes) -> bytes:
    parts = frames(content)
    parts[1], parts[2] = parts[2], parts[1]
    return b"".join(parts)


FILE: dict[str, Callable[[bytes], bytes]] = {
    "a record is altered": with_changed_frame(1),
    "the next frame is removed": without_frame(1),
    "one in the middle is removed": without_frame(2),
    "two are swapped": with_swapped_frames,
    "a frame is garbage": lambda content: content.replace(frames(content)[1], bytes(200)),
    "a length is huge": lambda content: content.replace(
        frames(content)[1], b"GPA1\xff\xff\xff\xff" + frames(content)[1][8:]
    ),
}
ROW = {
    "the row goes back": "UPDATE audit_heads SET number = 0 WHERE tenant = ''",
    "the row goes forward": "UPDATE audit_heads SET number = 4 WHERE tenant = ''",
    "the row is elsewhere": "UPDATE audit_heads SET pruned = 7 WHERE tenant = ''",
    "the row has no digest": "UPDATE audit_heads SET hash = x'' WHERE tenant = ''",
    "the row is garbage": "UPDATE audit_heads SET pruned = 'x', number = x'00' WHERE tenant = ''",
    "the row is gone": "DELETE FROM audit_heads WHERE tenant = ''",
}


@pytest.mark.requirement("AU1")
@pytest.mark.parametrize("name", [*FILE, *ROW])
async def test_tampering_after_a_kill_is_recorded(log: AuditLog, file: str, name: str) -> None:
    """The next process keeps a copy of the write-ahead log and merges the valid frames."""
    before = wal(file).read_bytes()
    async with log_after_kill(log, file) as other:
        if name in FILE:
            wal(file).write_bytes(FILE[name](before))
        else:
            await tamper(file, ROW[name])
        changed = wal(file).read_bytes()
        await other.note_unmerged()
        await other.note_unmerged()
        seen, operator_seen = await other.verify(), await other.verify("-")
        recorded = await numbers(other)
    damaged = wal(file).with_name(f"{wal(file).name}.damaged-1")

    assert (operator_seen.bad_number, "broken" in operator_seen.problem) == (1, True)
    assert damaged.read_bytes() == changed
    assert seen.bad_number is None
    assert recorded == [*range(1, len(recorded) + 1)]
    assert len(recorded) >= 3


@pytest.mark.requirement("AU1")
async def test_tampering_is_recorded_after_a_commit_that_failed(
    log: AuditLog, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write-ahead log is truncated once the record is durable; one copy of it is kept."""
    garbage = FILE["a frame is garbage"](wal(file).read_bytes())
    async with log_after_kill(log, file) as other:
        wal(file).write_bytes(garbage)
        with monkeypatch.context() as patch:
            patch.setattr(sqlite_audit_connection, "executing", failing_commits())
            with pytest.raises(StoreUnavailable):
                await other.note_unmerged()
        await other.note_unmerged()
        operator_seen = await other.verify("-")
    damaged_files = sorted(wal(file).parent.glob("*.damaged-*"))

    assert operator_seen.bad_number == 1
    assert [file.read_bytes() for file in damaged_files] == [garbage]


@pytest.mark.requirement("AU1")
@pytest.mark.parametrize("name", [*FILE, *ROW])
async def test_tampering_with_a_running_process_loses_no_record(
    log: AuditLog, file: str, name: str
) -> None:
    """The process keeps its records in memory; a changed row is recorded as a break."""
    if name in FILE:
        content = FILE[name](wal(file).read_bytes())
        with wal(file).open("r+b") as wal_file:
            wal_file.write(content)
    else:
        await tamper(file, ROW[name])
    await log.note_unmerged()
    kinds = [row.kind for row in await log.store.tenant_log("acme").chain(1).rows(0, 99)]
    await log.note_unmerged()
    seen = await log.verify()

    assert kinds.count("approval") == 6
    assert kinds.count("break") == (name in ROW)
    assert (seen.bad_number is not None) == (name in ROW)
    assert await numbers(log) == [*range(1, len(kinds) + 2)]


@pytest.mark.requirement("AU1")
async def test_a_frame_of_another_ring_breaks_its_chains(
    log: AuditLog, file: str, tmp_path: Path
) -> None:
    """An attacker who can write the file can compute digests, but no proof."""
    async with log_after_kill(log, file) as other:
        for _ in range(3):  # the ring forgets the key that has proven the frames
            rotate(tmp_path / "keyring.json", keep=1)
        ring = KeyRing.load(f"file:{tmp_path / 'keyring.json'}")
        forgets = AuditLog(other.records, ring)
        await forgets.note_unmerged()
        rows = await forgets.store.tenant_log("-").chain(1).rows(0, 9)

    assert [row.kind for row in rows] == ["break"]


@pytest.mark.requirement("AU1")
@pytest.mark.parametrize("runs", [True, False], ids=["running", "killed"])
async def test_a_restored_old_row_is_recorded_as_a_break(
    log: AuditLog, file: str, runs: bool
) -> None:
    """The old row has a valid proof, so its frames are merged again after the break."""
    with closing(
        sqlite3.connect(file.removeprefix("sqlite:///"), isolation_level=None)
    ) as database:
        row = database.execute("SELECT * FROM audit_heads WHERE tenant = ''").fetchone()
        await log.store.link_pending()
        again = (
            "UPDATE audit_heads SET number = ?, hash = ?, pruned = ?, proof = ? WHERE tenant = ''"
        )
        database.execute(again, row[2:])
    if runs:
        async with audit_log(file, log.keyring) as other:
            await other.store.link_pending()
    else:
        async with log_after_kill(log, file) as other:
            await other.note_unmerged()
            await other.store.link_pending()
    async with audit_log(file, log.keyring) as last:
        seen, operator_seen = await last.verify(), await last.verify("-")
        recorded = await numbers(last)

    assert seen.bad_number == 6
    assert operator_seen.bad_number == 1
    assert recorded == [*range(1, len(recorded) + 1)]


KILLED_PROGRAM = """
import asyncio, os, signal, sys
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.backends import open_records
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql import sqlite_audit_connection, sqlite_audit_writer
from tests.audit.conftest import AuditLog
sqlite_audit_writer.IDLE_S = sqlite_audit_writer.MERGED_S = 60.0

async def main():
    records = await open_records(sys.argv[1])
    one = AuditLog(records, KeyRing.load(f"file:{sys.argv[2]}"))
    for _ in range(5):
        await one.note_unmerged()
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.requirement("AU1")
@pytest.mark.parametrize("writes", [True, False], ids=["writes", "reads"])
def test_records_of_a_killed_process_are_merged_by_the_next_process(
    file: str, ring: KeyRing, tmp_path: Path, writes: bool
) -> None:
    """The chain continues, and the write-ahead log is empty afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED_PROGRAM, file, str(tmp_path / "keyring.json")],
        check=False,
        timeout=LONG_WAIT_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    segments = count_rows(file, "segments")

    async def follow() -> tuple[list[int], int | None]:
        async with audit_log(file, ring) as log:
            if writes:
                await log.note_unmerged()
            return await numbers(log), (await log.verify()).bad_number

    records = asyncio.run(follow())

    assert (done.returncode, segments) == (-signal.SIGKILL, 0)
    assert records == ([*range(1, 7 if writes else 6)], None)
    assert not wal(file).read_bytes().strip(b"\0")


@pytest.mark.requirement("AU1")
async def test_a_listener_receives_each_record_of_its_process_once(
    file: str, ring: KeyRing
) -> None:
    """Either process may merge the records."""
    rows_by_name: dict[str, list[AuditRow]] = {"one": [], "two": []}
    writers, stores = dict[str, AuditWriter](), []
    for name in rows_by_name:
        stores.append(records := await open_records(file))
        settings: Any = AuditSettings(batch_ms=0)
        writers[name] = AuditWriter(
            records,
            ring,
            Redaction(),
            settings,
            listener=lambda _, rows, into=rows_by_name[name]: into.extend(rows),
        )
        writers[name].number = len(stores)
    for _ in range(3):
        for name, writer in writers.items():
            await writer.events.note("acme", "tenant", outcome=name)
        await writers["one"].store.link_pending()
    for writer, records in zip(writers.values(), stores, strict=True):
        await writer.aclose()
        await records.aclose()

    for name, number in (("one", 1), ("two", 2)):
        assert [(row.writer, row.number) for row in rows_by_name[name]] == [
            (number, value) for value in (1, 2, 3)
        ]
        assert {row.outcome for row in rows_by_name[name]} == {name}
