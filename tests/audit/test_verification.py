"""Attacks on several chains of a tenant, and verification while servers change them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gatepost.audit.retention import Retention
from gatepost.secrets.keyring import KeyRing, create
from gatepost.storage.audit import AuditQuery
from gatepost.storage.backends import open_records
from tests.audit.conftest import AuditLog, tamper


async def by(one: AuditLog, number: int, count: int) -> None:
    """So many records of another process, whose writer has that number."""
    one.writer = one.process()
    one.writer.number = number
    await one.note(count)
    await one.writer.aclose()


@pytest.fixture
async def log(url: str, tmp_path: Path) -> AsyncIterator[AuditLog]:
    """Three records of writer 1 and three of writer 2, and a checkpoint."""
    create(tmp_path / "keyring.json")
    records = await open_records(url)
    one = AuditLog(records, KeyRing.load(f"file:{tmp_path}/keyring.json"))
    await by(one, 2, 3)
    await by(one, 1, 3)
    await one.sign()
    yield one
    await records.aclose()


@pytest.mark.requirement("AU5")
async def test_retention_goes_on_past_a_writer_that_writes_no_more(log: AuditLog) -> None:
    """Checkpoints name its last record although an earlier removal has taken it."""
    first = log.now + 1
    log.now += 10
    for _ in range(2):
        await by(log, 1, 2)
        await log.sign()
    later = log.now + 1
    removed = await log.prune(first)
    log.now += 10
    again = await log.prune(later)
    seen = await log.verify()
    left = await log.records.of("acme").trail.find(AuditQuery())

    assert (removed, again, seen.bad) == (6, 10, None)
    assert {row.kind for row in left} == {"retention"}


@pytest.mark.requirement("AU1")
@pytest.mark.parametrize("growth", [3, 4])
async def test_growth_of_one_chain_does_not_hide_that_another_is_shorter(
    log: AuditLog, url: str, growth: int
) -> None:
    """A checkpoint is not signed where it would cover less of a chain than the one before."""
    await tamper(
        url,
        "DELETE FROM audit_segments WHERE writer = 2",
        "DELETE FROM audit_heads WHERE writer = 2",
    )
    await by(log, 1, growth)
    with capture_logs() as logs:
        await Retention(log.records, log.keyring, log.writer).sign()
    signed = await log.records.of("acme").trail.checkpoints()
    seen = await log.verify()

    assert [one["event"] for one in logs] == ["audit_checkpoint_refused"] * (growth > 3)
    assert [one.number for one in signed] == [6]
    assert (seen.writer, seen.bad) == (2, 1)
