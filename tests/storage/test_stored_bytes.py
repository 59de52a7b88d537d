"""How many bytes a caller's and a tenant's records take, on every backend."""

import msgspec

from gatepost.storage.records import Records
from gatepost.storage.stored_bytes import ROW_BYTES, StoredUsage
from tests.conftest import HOUR, idempotency_record, task

NOW = 1_000.0
ALICE, BOB = b"alice", b"bob"


async def test_stored_bytes_are_counted_by_owner_and_tenant(records: Records) -> None:
    """They include outcomes, tasks and the fixed size of each record."""
    acme = records.for_tenant("acme")
    await acme.idempotency.begin(
        idempotency_record(key=b"k1", owner=ALICE, outcome=b"x" * 700), now=NOW
    )
    await acme.idempotency.begin(idempotency_record(key=b"k2", owner=BOB), now=NOW)
    await acme.tasks.create(task(owner=ALICE, call=b"c" * 50, expires_at=NOW + 7))
    await records.for_tenant("globex").idempotency.begin(
        idempotency_record(owner=ALICE, outcome=b"y"), now=NOW
    )

    assert await acme.usage(ALICE, NOW) == StoredUsage(2 * ROW_BYTES + 750, NOW + 7)
    assert await acme.usage(BOB, NOW) == StoredUsage(ROW_BYTES, NOW + HOUR)
    assert await acme.usage(None, NOW) == StoredUsage(3 * ROW_BYTES + 750, NOW + 7)
    assert await acme.usage(b"nobody", NOW) == StoredUsage()


async def test_an_ended_record_counts_what_is_stored_of_it(records: Records) -> None:
    """A finished call counts its outcome, and an ended task what is left of it."""
    acme = records.for_tenant("acme")
    await acme.idempotency.begin(idempotency_record(owner=ALICE), now=NOW)
    await acme.idempotency.finish(b"k1", "h1", b"x" * 300, NOW + HOUR)
    await acme.tasks.create(task(owner=ALICE, call=b"c" * 50, answers=b"a" * 50))
    stored = await acme.tasks.get("t1")
    assert stored is not None
    await acme.tasks.replace(msgspec.structs.replace(stored, call=b"", answers=None, result=b"12"))

    assert (await acme.usage(ALICE, NOW)).bytes == 2 * ROW_BYTES + 302


async def test_removed_records_no_longer_count(records: Records) -> None:
    """Records that are released, expired, swept or erased no longer count."""
    acme = records.for_tenant("acme")
    await acme.idempotency.begin(idempotency_record(key=b"k1", owner=ALICE), now=NOW)
    await acme.idempotency.begin(
        idempotency_record(key=b"k2", owner=ALICE, expires_at=NOW + 5), now=NOW
    )
    await acme.idempotency.begin(idempotency_record(key=b"k3", owner=ALICE), now=NOW)

    await acme.idempotency.release(b"k1", "h1")
    assert (await acme.usage(ALICE, NOW)).bytes == 2 * ROW_BYTES
    assert (await acme.usage(ALICE, NOW + 5)).bytes == ROW_BYTES
    await records.sweep(NOW + 5)
    assert (await acme.usage(ALICE, NOW)).bytes == ROW_BYTES
    while await records.tenant_data.clear("acme"):
        pass
    assert await acme.usage(None, NOW) == StoredUsage()


async def test_a_key_taken_over_by_another_caller_counts_once(records: Records) -> None:
    """The caller that takes it over, or finds it over, is charged for it instead."""
    acme = records.for_tenant("acme")
    gone = idempotency_record(owner=ALICE, expires_at=NOW, outcome=b"x" * 900)
    await acme.idempotency.begin(gone, now=NOW - 1)

    assert await acme.idempotency.begin(idempotency_record(owner=BOB), now=NOW) is None
    assert (await acme.usage(ALICE, NOW)).bytes == 0
    assert (await acme.usage(BOB, NOW)).bytes == ROW_BYTES
    assert await acme.idempotency.take_over(
        idempotency_record(holder="h2", owner=BOB), expected=idempotency_record(owner=BOB)
    )
    assert (await acme.usage(BOB, NOW)).bytes == ROW_BYTES
