"""Checkpoints of many tenants: signed a few at a time, beside calls that wait for their records."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.audit import retention as module
from gatepost.audit.batches import WriteAttempt
from gatepost.audit.checkpoints import AT_ONCE
from gatepost.audit.record import RecordBody
from gatepost.audit.record_builder import new_record
from gatepost.audit.retention import Retention
from gatepost.secrets.keyring import KeyRing, create
from gatepost.storage.audit import AuditStore, NewAuditRecord
from gatepost.storage.backends import open_records
from tests.audit.conftest import NOW, AuditLog
from tests.support.measuring import capture_logs

SOON_S = 60


def new_records(tenant: str) -> list[NewAuditRecord]:
    return [new_record(RecordBody(at=int(NOW), kind="call", tenant=tenant, outcome="success"), {})]


async def add_uncovered_records(audit_store: AuditStore, keyring: KeyRing, tenants: int) -> None:
    """Give so many tenants a record that no checkpoint covers."""
    names = [f"t{number:05}" for number in range(tenants)]
    for begin in range(0, tenants, 500):
        batch = {(name, 1): new_records(name) for name in names[begin : begin + 500]}
        await audit_store.write(batch, WriteAttempt(keyring).link)


@pytest.fixture
def keyring(tmp_path: Path) -> KeyRing:
    create(tmp_path / "keyring.json")
    return KeyRing.load(f"file:{tmp_path}/keyring.json")


@pytest.fixture
async def audit_log(url: str, keyring: KeyRing) -> AsyncIterator[AuditLog]:
    records = await open_records(url)
    log = AuditLog(records, keyring)
    yield log
    await log.aclose()
    await records.aclose()


def signed_tenants(logs: list[Any]) -> list[str]:
    """Return the tenants whose checkpoints were logged."""
    return [event["tenant"] for event in logs if event["event"] == "audit_checkpoint"]


CALLERS = 16
RECORDS_A_CHECKPOINT = {"sqlite": 4, "postgresql": 2}
"""
Written meanwhile: in SQLite 16, but 5 beside other tests, and a transaction for each checkpoint
leaves room for fewer than 4.
PostgreSQL is a process of its own, which a busy machine gives less time.
"""


@pytest.mark.parametrize(
    "tenants", [200, pytest.param(800, marks=pytest.mark.slow)], ids=["few", "many"]
)
async def test_records_are_written_while_all_tenants_are_signed(
    audit_log: AuditLog, url: str, tenants: int
) -> None:
    """Most of the time goes to records: many are written for each checkpoint."""
    await add_uncovered_records(audit_log.store, audit_log.keyring, tenants)
    retention = Retention(audit_log.records, audit_log.keyring, audit_log.writer)
    with capture_logs() as logs:
        signing = asyncio.create_task(retention.signer.sign())

        async def call(first: int) -> int:
            written = 0
            while not signing.done():
                await audit_log.note(1, f"t{(first + 97 * written) % tenants:05}")
                written += 1
            return written

        written = sum(await asyncio.gather(*map(call, range(CALLERS))))
        await signing

    assert len({*signed_tenants(logs)}) == tenants
    assert written >= RECORDS_A_CHECKPOINT[url.partition(":")[0]] * len(signed_tenants(logs))


async def test_a_checkpoint_covers_records_written_after_the_chain_was_read(
    audit_log: AuditLog,
) -> None:
    """A chain may grow between reading its head and signing the checkpoint."""
    await add_uncovered_records(audit_log.store, audit_log.keyring, 3)
    store = audit_log.store
    retention = Retention(audit_log.records, audit_log.keyring, audit_log.writer)
    seen = await store.heads("", 99, unsigned=audit_log.keyring.current.id)
    await audit_log.note(2, "t00001")
    await retention.signer._sign(seen)
    heads = await store.heads("", 99, unsigned=audit_log.keyring.current.id)

    assert [*seen] == ["t00000", "t00001", "t00002"]
    assert heads == {}
    checkpoints = await audit_log.store.tenant_log("t00001").checkpoints()
    assert [checkpoint.number for checkpoint in checkpoints] == [3]
    assert not (await audit_log.verify("t00001")).problem


async def test_a_stop_signs_for_a_limited_time_and_the_next_start_signs_the_rest(
    audit_log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever there is to sign; nothing has to be called for what is left to be signed."""
    monkeypatch.setattr(module, "CHECK_S", 0.01)
    monkeypatch.setattr(module, "CLOSING_S", 0.0)
    tenants = 3 * AT_ONCE
    await add_uncovered_records(audit_log.store, audit_log.keyring, tenants)
    with capture_logs() as logs:
        async with Retention(audit_log.records, audit_log.keyring, audit_log.writer).running():
            await audit_log.note(1)
        stopped = len(signed_tenants(logs))
        writer = audit_log.process(checkpoint_s=0.01)
        async with Retention(audit_log.records, audit_log.keyring, writer).running():
            async with asyncio.timeout(SOON_S):
                while len(signed_tenants(logs)) <= tenants:
                    await asyncio.to_thread(int)

    assert stopped == AT_ONCE
    assert "audit_left_unsigned" in [event["event"] for event in logs]
    assert sorted({*signed_tenants(logs)})[1:] == [f"t{number:05}" for number in range(tenants)]
