"""Batches that SQLite has not merged yet: nobody misses their records, and tampering is found."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from gatepost.secrets.keyring import KeyRing, create
from gatepost.storage.audit import AuditQuery
from gatepost.storage.backends import open_records
from gatepost.storage.sql import sqlite_audit_writer
from tests.audit.conftest import AuditLog, audit_log, tamper, update
from tests.support.measuring import capture_logs
from tests.support.stores import sqlite_url

LONG = 60.0


def rows(url: str, table: str) -> int:
    """How many rows a table of the file has."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
        found = file.execute(f"SELECT count(*) FROM audit_{table}")  # noqa: S608  # ours
        return int(found.fetchone()[0])


def contents(url: str) -> bytes:
    """All bytes of the file, to which the log is copied first."""
    path = url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Path(path).read_bytes()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file whose batches are merged only when somebody reads."""
    monkeypatch.setattr(sqlite_audit_writer, "IDLE_S", LONG)
    monkeypatch.setattr(sqlite_audit_writer, "MERGED_S", LONG)
    return sqlite_url(tmp_path)


@pytest.fixture
async def log(file: str) -> AsyncIterator[AuditLog]:
    """Of acme, record 1 is merged; 2, 3 and 4, and 5 are in batches 1, 2 and 4, globex in 3."""
    async with audit_log(file) as one:
        await one.note(1)
        await one.note(1, "globex")
        await one.sign()
        await one.note(1)
        await one.together("alice", "bob")
        await one.note(1, "globex")
        await one.note(1)
        assert rows(file, "batches") == 4
        yield one


async def numbers(one: AuditLog, tenant: str = "acme") -> list[int]:
    return [row.number for row in await one.records.of(tenant).trail.chain(1).rows(0, 99)]


async def test_another_process_reads_every_acknowledged_record(log: AuditLog, file: str) -> None:
    """It merges them itself, and the writer goes on behind them."""
    other = await open_records(file)
    found = await other.of("acme").trail.find(AuditQuery())
    merged = rows(file, "batches")
    await log.note(2)
    later = await other.of("acme").trail.heads()
    await other.aclose()

    assert ([row.number for row in found], merged) == ([5, 4, 3, 2, 1], 0)
    assert [(end.writer, end.number) for end in later] == [(0, 1), (1, 7)]
    assert (await log.verify()).bad is None


@pytest.mark.requirement("AU1")
async def test_merging_joins_the_records_of_a_chain(log: AuditLog, file: str) -> None:
    """And counts them once; what a stop leaves is merged before the file is closed."""
    counts = await log.records.of("acme").trail.count(0, 86_400_000)
    segments = await log.records.of("acme").trail.chain(1).segments(0, 9)
    await log.note(1)
    await log.records.audit.aclose()  # type: ignore[attr-defined]  # of SQLite

    assert [(one.first, one.last) for one in segments] == [(1, 1), (2, 5)]
    assert sum(one.number for one in counts) == 0  # decisions are not calls
    assert (rows(file, "batches"), rows(file, "segments")) == (0, 5)


async def test_erasure_reaches_what_is_not_merged(log: AuditLog, file: str) -> None:
    """Nothing of it is left in the row either."""
    erased = await log.erasure.erase_tenant("acme")
    seen = await log.verify()
    left = contents(file)

    assert (erased, seen.bad, seen.erased) == (5, None, 5)
    assert b"looked at" in left  # globex's
    assert left.count(b"looked at") == 2


TAMPERING: dict[str, tuple[str, int | None]] = {
    # what is done to the rows                                       the first bad record of acme
    "removed, in the middle": ("DELETE FROM audit_batches WHERE number = 2", 3),
    "removed, the first": ("DELETE FROM audit_batches WHERE number = 1", 2),
    "removed, the last": ("DELETE FROM audit_batches WHERE number = 4", 5),
    "removed, all": ("DELETE FROM audit_batches", 2),
    "removed, another tenant's": ("DELETE FROM audit_batches WHERE number = 3", 6),
    "altered": (
        "UPDATE audit_batches SET batch = CAST(replace(CAST(batch AS TEXT), 'approved', 'rejected')"
        " AS BLOB) WHERE number = 2",
        3,
    ),
    "copied": (
        "INSERT INTO audit_batches SELECT tenant, writer, 9, previous, digest, batch "
        "FROM audit_batches WHERE number = 2",
        6,
    ),
    "of another": (
        "UPDATE audit_batches SET batch = (SELECT batch FROM audit_batches WHERE number = 1) "
        "WHERE number = 2",
        3,
    ),
    "moved": ("UPDATE audit_batches SET number = 9 WHERE number = 2", 3),
    "garbage, tenant": ("UPDATE audit_batches SET tenant = x'00' WHERE number = 2", 3),
    "garbage, writer": ("UPDATE audit_batches SET writer = 'x' WHERE number = 2", 3),
    "garbage, number": ("UPDATE audit_batches SET number = 'x' WHERE number = 2", 3),
    "garbage, previous": ("UPDATE audit_batches SET previous = 1.5 WHERE number = 2", 3),
    "garbage, digest": ("UPDATE audit_batches SET digest = 'x' WHERE number = 2", 3),
    "garbage, batch": ("UPDATE audit_batches SET batch = 'x' WHERE number = 2", 3),
    "a row of nothing": ("INSERT INTO audit_batches VALUES ('', 1, 9, x'', x'', x'')", 6),
    "the head, back": ("UPDATE audit_heads SET number = 2 WHERE tenant = ''", 6),
    "the head, removed": ("DELETE FROM audit_heads WHERE tenant = ''", 6),
    "the head, garbage": ("UPDATE audit_heads SET pruned = 'x' WHERE tenant = ''", 6),
    "the head, forward": (
        "UPDATE audit_heads SET number = 0x7fffffffffffffff WHERE tenant = ''",
        6,
    ),
    "a chain's head, a text": ("UPDATE audit_heads SET number = 'x' WHERE tenant = 'acme'", 2),
    "a chain's head, bytes": ("UPDATE audit_heads SET number = x'00' WHERE tenant = 'acme'", 2),
    "a chain's head, a number": ("UPDATE audit_heads SET hash = 7 WHERE tenant = 'acme'", 2),
}


@pytest.mark.requirement("AU1")
@pytest.mark.parametrize("anew", [False, True], ids=["running", "killed"])
@pytest.mark.parametrize("name", TAMPERING)
async def test_tampering_with_rows_is_found(
    log: AuditLog, file: str, name: str, anew: bool
) -> None:
    """By a verification; what comes later is recorded, and hides nothing."""
    statement, bad = TAMPERING[name]
    if anew:
        # As after a kill: another process knows nothing of what was written.
        vars(log.records.audit)["_writer"].close()
        log.writer = log.process()
    await tamper(file, statement)
    seen = await log.verify()
    await log.note(2)
    later = await log.verify()
    found = await numbers(log)

    assert (seen.bad, seen.problem != "") == (bad, True)
    assert later.bad is not None
    assert later.bad <= found[-1] + 1
    assert found == sorted({*found})


@pytest.mark.requirement("AU1")
async def test_an_end_of_batches_that_was_changed_is_reported_for_ever(
    log: AuditLog, file: str
) -> None:
    """Also if no batch waits, so that the next process begins anew."""
    await log.records.audit.tenants()
    vars(log.records.audit)["_writer"].close()
    log.writer = log.process()
    await tamper(file, "UPDATE audit_heads SET pruned = 'x' WHERE tenant = ''")
    await log.together(*"abcde")
    await log.note(2)

    assert "removed or changed" in (await log.verify()).problem


@pytest.mark.requirement("AU1")
@pytest.mark.parametrize("change", ["number = 0", "hash = x'00'", "number = 'x'", "hash = 'x'"])
async def test_a_head_changed_behind_a_batch_breaks_the_chain(
    log: AuditLog, file: str, change: str
) -> None:
    """No record is lost or numbered again; the next one is a break."""
    await tamper(file, update("heads", "writer = 1", change))
    before = await numbers(log)
    unproven = await log.verify()
    with capture_logs() as logs:
        await log.note(1)
    after = await log.records.of("acme").trail.chain(1).rows(5, 9)

    assert before == [1, 2, 3, 4, 5]
    assert unproven.bad is not None
    assert [row.kind for row in after] == ["break", "approval"]
    assert [one["event"] for one in logs] == ["audit_chain_broken"]


KILLED = """
import asyncio, os, signal, sys
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.backends import open_records
from gatepost.storage.sql import sqlite_audit_writer
from tests.audit.conftest import AuditLog
sqlite_audit_writer.IDLE_S = 60.0

async def main():
    records = await open_records(sys.argv[1])
    one = AuditLog(records, KeyRing.load(f"file:{sys.argv[2]}"))
    await one.note(5)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.requirement("AU1")
def test_what_a_killed_process_leaves_is_merged(file: str, tmp_path: Path) -> None:
    """By whoever comes next; the chain goes on."""
    ring = tmp_path / "keyring.json"
    create(ring)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, file, str(ring)],
        check=False,
        timeout=LONG,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    left = rows(file, "batches")

    async def follow() -> tuple[list[int], int | None]:
        async with audit_log(file, KeyRing.load(f"file:{ring}")) as one:
            await one.note(1)
            return await numbers(one), (await one.verify()).bad

    assert (done.returncode, left) == (-signal.SIGKILL, 4)
    assert asyncio.run(follow()) == ([1, 2, 3, 4, 5, 6], None)
