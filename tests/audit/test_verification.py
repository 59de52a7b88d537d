"""Attacks on several chains of a tenant, and verification while servers change them."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.audit.retention import DAY_S, Retention
from gatepost.secrets.keyring import KeyRing, create
from gatepost.storage.audit import CHECKPOINTS, AuditQuery
from gatepost.storage.backends import open_records
from tests.audit.conftest import AuditLog, Value, tamper
from tests.support.measuring import capture_logs


async def add_records(log: AuditLog, number: int, count: int, tenant: str = "acme") -> None:
    """Add *count* records of another process, whose writer has that number."""
    log.writer = log.process()
    log.writer.number = number
    await log.note(count, tenant)
    await log.writer.aclose()


@pytest.fixture
async def log(url: str, tmp_path: Path) -> AsyncIterator[AuditLog]:
    """Yield three records of writer 1 and three of writer 2, and a checkpoint."""
    create(tmp_path / "keyring.json")
    records = await open_records(url)
    log = AuditLog(records, KeyRing.load(f"file:{tmp_path}/keyring.json"))
    await add_records(log, 2, 3)
    await add_records(log, 1, 3)
    await log.sign()
    yield log
    await records.aclose()


@pytest.mark.requirement("AU5")
async def test_retention_continues_after_a_writer_has_stopped(log: AuditLog) -> None:
    """Checkpoints name the last record of that writer after it has been removed."""
    first = log.now + 1
    log.now += 10
    for _ in range(2):
        await add_records(log, 1, 2)
        await log.sign()
    later = log.now + 1
    removed = await log.prune(first)
    log.now += 10
    again = await log.prune(later)
    seen = await log.verify()
    records = await log.store.tenant_log("acme").find(AuditQuery())

    assert (removed, again, seen.bad_number) == (6, 10, None)
    assert {row.kind for row in records} == {"retention"}


@pytest.mark.requirement("AU1")
@pytest.mark.parametrize("growth", [3, 4])
async def test_a_growing_chain_does_not_hide_that_another_chain_is_shorter(
    log: AuditLog, url: str, growth: int
) -> None:
    """A checkpoint that covers less of a chain than the one before is not signed."""
    await tamper(
        url,
        "DELETE FROM audit_segments WHERE writer = 2",
        "DELETE FROM audit_heads WHERE writer = 2",
    )
    await add_records(log, 1, growth)
    with capture_logs() as logs:
        await Retention(log.records, log.keyring, log.writer).signer.sign()
    signed = await log.store.tenant_log("acme").checkpoints()
    seen = await log.verify()

    assert [event["event"] for event in logs] == ["audit_checkpoint_refused"] * (growth > 3)
    assert [checkpoint.number for checkpoint in signed] == [6]
    assert (seen.writer, seen.bad_number) == (2, 1)


UNUSUAL_VALUES: tuple[Value, ...] = ("x", "", b"x", -1, 1.5, 2**62)
COLUMNS = {
    "segments": "writer first last since until counts records",
    "heads": "writer number hash pruned proof",
    "checkpoints": "number statement signature",
}


@pytest.mark.requirement("AU1")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("table", COLUMNS)
async def test_values_of_a_wrong_type_are_found_and_do_not_stop_other_tenants(
    log: AuditLog, url: str, table: str
) -> None:
    """SQLite stores any value in any column; other tenants are still signed."""
    await add_records(log, 1, 1, "globex")
    await add_records(log, 1, 1)
    process = log.process(retention_days=1)
    retention = Retention(log.records, log.keyring, process, clock=lambda: log.now)
    file = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    rows = file.execute(f"SELECT rowid FROM audit_{table} WHERE tenant = 'acme'")  # noqa: S608  # the attacker's
    bad: dict[tuple[str, Value, int], bool] = {}
    places = [(column, row) for (row,) in rows.fetchall() for column in COLUMNS[table].split()]
    # Each column with each value once, and in each further row with one of them.
    for at, (column, row) in enumerate(places):
        change = f"UPDATE audit_{table} SET {column} = ? WHERE rowid = {row}"  # noqa: S608  # the attacker's
        which = f"SELECT {column} FROM audit_{table} WHERE rowid = {row}"  # noqa: S608  # the same
        ((before,),) = file.execute(which).fetchall()
        first = row == places[0][1]
        for value in UNUSUAL_VALUES if first else [UNUSUAL_VALUES[at % len(UNUSUAL_VALUES)]]:
            file.execute(change, [value])
            bad[column, value, row] = (await log.verify()).bad_number is not None
            file.execute(change, [before])
    last = COLUMNS[table].split()[-1]
    file.execute(f"UPDATE audit_{table} SET {last} = x'00' WHERE tenant = 'acme'")  # noqa: S608  # the same
    file.close()
    with capture_logs():
        await retention.signer.sign()
        log.now += 2 * DAY_S
        await retention.prune()
    records = await log.store.tenant_log("globex").find(AuditQuery())
    signed = await log.store.tenant_log("globex").checkpoints()

    assert [row.kind for row in records] == ["retention"]
    assert len(signed) == 1
    assert [name for name, is_bad in bad.items() if not is_bad] == []


@pytest.mark.requirement("AU1")
async def test_verify_reports_no_tampering_while_records_are_erased_or_removed(
    log: AuditLog,
) -> None:
    """Erasure and retention may change records that verify has already read."""

    async def change() -> None:
        for number in range(6):
            await add_records(log, 1, 1)
            await add_records(log, 2, 1)
            await log.erasure.erase_tenant("acme")
            await log.sign()
            if number % 2:
                await log.prune(log.now + 1)

    changing = asyncio.create_task(change())
    seen = []
    while not changing.done():
        verification = await log.verify()
        seen.append((verification.bad_number, verification.problem))
    await changing

    assert {*seen} == {(None, "")}


@pytest.mark.requirement("AU5")
async def test_replicas_can_remove_old_records_at_the_same_time(log: AuditLog) -> None:
    """One of them removes the records; the others find nothing left."""
    log.now += 10
    await add_records(log, 1, 2)
    await log.sign()
    removed = await asyncio.gather(*(log.prune(log.now + 1) for _ in range(4)))
    seen = await log.verify()
    records = await log.store.tenant_log("acme").find(AuditQuery())

    assert (max(removed), seen.bad_number) == (8, None)
    assert [row.kind for row in records] == ["retention"] * 2  # one of each writer


@pytest.mark.requirement("AU5")
async def test_a_replica_with_an_outdated_checkpoint_removes_nothing(log: AuditLog) -> None:
    """Another replica has removed that checkpoint and more in the meantime."""
    first = (await log.store.tenant_log("acme").checkpoints())[-1]
    await add_records(log, 1, 2)
    await log.sign()
    await log.prune(log.now + 1)
    acme = log.store.tenant_log("acme")
    before = await acme.find(AuditQuery())

    assert not await acme.prune({CHECKPOINTS: first.number}, {CHECKPOINTS: []}, refuse_linking)
    assert await acme.find(AuditQuery()) == before


def refuse_linking(*_: object) -> Any:
    """Raise, as this linker must not be asked."""
    raise AssertionError("a head would move")


@pytest.mark.requirement("AU1")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE audit_segments SET last = 'x' WHERE tenant = 'acme' AND first = 1",
        "UPDATE audit_heads SET tenant = x'00ff' WHERE tenant = 'acme' AND writer = 1",
        "UPDATE audit_segments SET tenant = x'ff' WHERE tenant = 'acme' AND writer = 1",
        "UPDATE audit_checkpoints SET tenant = x'ff' WHERE tenant = 'acme'",
    ],
)
async def test_damage_in_one_tenant_does_not_stop_other_tenants(
    log: AuditLog, url: str, change: str
) -> None:
    """Other tenants are signed, their old records are removed, and the damage is found."""
    process = log.process(retention_days=1)
    retention = Retention(log.records, log.keyring, process, clock=lambda: log.now)
    await add_records(log, 1, 1, "globex")
    await add_records(log, 1, 1, "zeta")
    await tamper(url, change)
    with capture_logs():
        await retention.signer.sign()
        log.now += 2 * DAY_S
        await retention.prune()
    others = [log.store.tenant_log(tenant) for tenant in ("globex", "zeta")]

    assert [[row.kind for row in await store.find(AuditQuery())] for store in others] == [
        ["retention"],
        ["retention"],
    ]
    assert [len(await store.checkpoints()) for store in others] == [1, 1]
    assert (await log.verify()).bad_number is not None
    assert {"acme", "globex", "zeta"} <= {*await log.store.tenants()}
