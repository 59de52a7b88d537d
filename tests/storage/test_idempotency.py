"""Idempotency keys, on every backend."""

import asyncio

import msgspec
import pytest

from gatepost.storage.idempotency import IdempotencyRecord
from gatepost.storage.records import Records
from tests.conftest import HOUR, idempotency_record

NOW = 1_000.0


async def test_a_key_has_one_holder(records: Records) -> None:
    """The first caller gets None, and a later caller gets the stored record."""
    idempotency = records.for_tenant("acme").idempotency

    assert await idempotency.begin(idempotency_record(), now=NOW) is None
    assert (
        await idempotency.begin(idempotency_record(holder="h2", digest=b"d2"), now=NOW)
        == idempotency_record()
    )
    assert await idempotency.get(b"k1") == idempotency_record()
    assert await idempotency.get(b"k2") is None


async def test_exactly_one_of_many_concurrent_calls_gets_the_key(records: Records) -> None:
    """Each other caller gets the record of the call that has the key."""
    idempotency = records.for_tenant("acme").idempotency
    idempotency_records = [idempotency_record(holder=f"h{number}") for number in range(30)]

    met = await asyncio.gather(
        *(
            idempotency.begin(idempotency_record, now=NOW)
            for idempotency_record in idempotency_records
        )
    )

    winners = [
        request
        for request, met_record in zip(idempotency_records, met, strict=True)
        if met_record is None
    ]
    assert len(winners) == 1
    assert {met_record for met_record in met if met_record is not None} == {winners[0]}


async def test_an_expired_record_can_be_replaced_before_the_sweep(records: Records) -> None:
    """Exactly one of several new calls succeeds."""
    idempotency = records.for_tenant("acme").idempotency
    await idempotency.begin(idempotency_record(outcome=b"old", expires_at=NOW), now=NOW - 1)
    idempotency_records = [idempotency_record(holder=f"n{number}") for number in range(10)]

    met = await asyncio.gather(
        *(
            idempotency.begin(idempotency_record, now=NOW)
            for idempotency_record in idempotency_records
        )
    )

    assert met.count(None) == 1
    key_record = await idempotency.get(b"k1")
    assert key_record is not None
    assert key_record.outcome is None
    assert key_record.holder == idempotency_records[met.index(None)].holder


async def test_a_record_keeps_its_key_until_it_expires(records: Records) -> None:
    """A new caller gets the key exactly at the expiry and not before."""
    idempotency = records.for_tenant("acme").idempotency
    await idempotency.begin(idempotency_record(expires_at=NOW), now=NOW - 1)

    assert await idempotency.begin(idempotency_record(holder="h2"), now=NOW - 0.001) is not None
    assert await idempotency.begin(idempotency_record(holder="h2"), now=NOW) is None


async def test_an_outcome_is_kept_once(records: Records) -> None:
    """The first stored outcome is replayed, and a later one is refused."""
    idempotency = records.for_tenant("acme").idempotency
    await idempotency.begin(idempotency_record(), now=NOW)

    assert await idempotency.finish(b"k1", "h1", b"\x00out", NOW + HOUR)
    assert not await idempotency.finish(b"k1", "h1", b"again", NOW + HOUR)
    assert not await idempotency.renew(b"k1", "h1", NOW + 60)
    await idempotency.release(b"k1", "h1")

    assert await idempotency.get(b"k1") == idempotency_record(
        outcome=b"\x00out", expires_at=NOW + HOUR
    )


async def test_an_empty_outcome_is_an_outcome(records: Records) -> None:
    """An empty outcome differs from an unknown one."""
    idempotency = records.for_tenant("acme").idempotency
    await idempotency.begin(idempotency_record(), now=NOW)
    await idempotency.finish(b"k1", "h1", b"", NOW + HOUR)

    assert await idempotency.get(b"k1") == idempotency_record(outcome=b"", expires_at=NOW + HOUR)
    assert not await idempotency.finish(b"k1", "h1", b"x", NOW + HOUR)


async def test_only_the_holder_changes_a_record(records: Records) -> None:
    """A call whose key was taken over must not overwrite the record of its successor."""
    idempotency = records.for_tenant("acme").idempotency
    await idempotency.begin(idempotency_record(), now=NOW)

    assert not await idempotency.renew(b"k1", "other", NOW + 60)
    assert not await idempotency.finish(b"k1", "other", b"x", NOW + HOUR)
    await idempotency.release(b"k1", "other")

    assert await idempotency.get(b"k1") == idempotency_record()
    assert not await idempotency.renew(b"unknown", "h1", NOW + 60)


async def test_a_renewed_lease_is_read_by_later_callers(records: Records) -> None:
    """A later caller reads the new end of the lease."""
    idempotency = records.for_tenant("acme").idempotency
    await idempotency.begin(idempotency_record(), now=NOW)

    assert await idempotency.renew(b"k1", "h1", NOW + 60.5)
    assert await idempotency.get(b"k1") == idempotency_record(leased_until=NOW + 60.5)


async def test_a_released_key_is_free(records: Records) -> None:
    """The next call with the key is a first one."""
    idempotency = records.for_tenant("acme").idempotency
    await idempotency.begin(idempotency_record(), now=NOW)
    await idempotency.release(b"k1", "h1")

    assert await idempotency.get(b"k1") is None
    assert await idempotency.begin(idempotency_record(holder="h2"), now=NOW) is None


CHANGED_RECORDS = {
    "renewed": {"leased_until": NOW + 61},
    "held by another": {"holder": "h3"},
    "finished": {"outcome": b"x"},
    "other arguments": {"digest": b"d3"},
    "another end": {"expires_at": NOW + 7},
}


@pytest.mark.parametrize("change", CHANGED_RECORDS.values(), ids=CHANGED_RECORDS)
async def test_a_record_that_changed_is_not_taken_over(
    records: Records, change: dict[str, object]
) -> None:
    """A caller may take over only if the record is still the one that it read."""
    idempotency = records.for_tenant("acme").idempotency
    await idempotency.begin(msgspec.structs.replace(idempotency_record(), **change), now=NOW)

    assert not await idempotency.take_over(
        idempotency_record(holder="h2"), expected=idempotency_record()
    )


@pytest.mark.parametrize("outcome", [None, b"", b"unknown"])
async def test_one_of_many_replicas_takes_over_an_abandoned_record(
    records: Records, outcome: bytes | None
) -> None:
    """Two replicas that find the same abandoned call do not both run it again."""
    idempotency = records.for_tenant("acme").idempotency
    was = idempotency_record(outcome=outcome)
    await idempotency.begin(was, now=NOW)
    idempotency_records = [
        idempotency_record(holder=f"n{number}", digest=b"d9") for number in range(10)
    ]

    taken = await asyncio.gather(
        *(
            idempotency.take_over(idempotency_record, expected=was)
            for idempotency_record in idempotency_records
        )
    )

    assert taken.count(True) == 1
    assert await idempotency.get(b"k1") == idempotency_records[taken.index(True)]


async def test_a_missing_record_is_not_taken_over(records: Records) -> None:
    """A released key is claimed like any other."""
    assert not await records.for_tenant("acme").idempotency.take_over(
        idempotency_record(holder="h2"), expected=idempotency_record()
    )


async def test_a_sweep_removes_expired_records(records: Records) -> None:
    """A record whose lease has ended stays, because the outcome of its call is unknown."""
    idempotency = records.for_tenant("acme").idempotency
    await idempotency.begin(idempotency_record(expires_at=NOW), now=0)
    await idempotency.begin(idempotency_record(key=b"k2", leased_until=1.0), now=0)

    assert await records.sweep(NOW) == 1
    assert await idempotency.get(b"k1") is None
    assert isinstance(await idempotency.get(b"k2"), IdempotencyRecord)
