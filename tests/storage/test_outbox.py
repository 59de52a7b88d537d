"""Messages that are still to be sent to another system, on every backend."""

import asyncio

import asyncpg
import msgspec
import pytest
from sqlalchemy.exc import IntegrityError

from gatepost.storage.backends import open_records
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.outbox import OutboxMessage
from gatepost.storage.records import Records
from gatepost.storage.sql import database
from tests.conftest import HOUR, outbox_message
from tests.storage.test_approvals import approval

NOW = 1_001.0
LEASED_UNTIL = NOW + 30.0


async def ids(records: Records, now: float = NOW, most: int = 99) -> list[str]:
    """Lease what is due, and return it as `tenant/id`."""
    leased = await records.lease_messages(now, now + 30.0, "h", most)
    return sorted(f"{tenant}/{message.id}" for tenant, message in leased)


async def test_a_webhook_message_is_read_as_it_was_written(records: Records) -> None:
    """The reader gets the tenant, the holder and the end of the lease as well."""
    message = outbox_message(
        body=bytes(range(256)), ordering_key="script:1", expires_at=1e10 + 1 / 3
    )
    assert await records.for_tenant("acme").outbox.add(message)
    assert not await records.for_tenant("acme").outbox.add(outbox_message(body=b"another"))

    taken = msgspec.structs.replace(message, due_at=LEASED_UNTIL, attempts=1, holder="h1")
    assert await records.lease_messages(NOW, LEASED_UNTIL, "h1", 9) == [("acme", taken)]
    assert await records.lease_messages(NOW, LEASED_UNTIL, "h2", 9) == []


async def test_each_message_is_leased_by_one_process(sql_url: str) -> None:
    """Several processes look at once, each with connections of its own."""
    replicas = [await open_records(sql_url) for _ in range(3)]
    ids = [f"msg_{number:02}" for number in range(40)]
    for message in ids:
        await (
            replicas[0]
            .for_tenant("acme")
            .outbox.add(outbox_message(id=message, ordering_key=message))
        )

    taken: list[str] = []
    while leases := await asyncio.gather(
        *(each.lease_messages(NOW, LEASED_UNTIL, f"h{at}", 4) for at, each in enumerate(replicas))
    ):
        assert all(len(some) <= 4 for some in leases)
        if not any(leases):
            break
        taken += [message.id for some in leases for _, message in some]
    for replica in replicas:
        await replica.aclose()

    assert sorted(taken) == ids


NOT_DUE: dict[str, OutboxMessage] = {
    "one that is put off": outbox_message(due_at=NOW + 0.1),
    "one that is worth nothing any more": outbox_message(expires_at=NOW),
}


@pytest.mark.parametrize("message", NOT_DUE.values(), ids=NOT_DUE)
async def test_an_undeliverable_message_delays_no_other(
    records: Records, message: OutboxMessage
) -> None:
    """The rest of the tenant, and other tenants, are not held up."""
    await records.for_tenant("acme").outbox.add(message)
    await records.for_tenant("acme").outbox.add(outbox_message(id="other", ordering_key="a2"))
    await records.for_tenant("globex").outbox.add(outbox_message())

    assert await ids(records) == ["acme/other", "globex/msg_a1_requested"]


async def test_an_abandoned_message_is_leased_again(records: Records) -> None:
    """The late first holder can neither remove nor put off the message."""
    messages = records.for_tenant("acme").outbox
    await messages.add(outbox_message())
    [(_, first)] = await records.lease_messages(NOW, LEASED_UNTIL, "h1", 9)
    [(_, second)] = await records.lease_messages(LEASED_UNTIL, LEASED_UNTIL + 30.0, "h2", 9)

    assert (second.holder, second.attempts) == ("h2", 2)
    assert not await messages.remove(first)
    assert not await messages.put_off(first, 0.0)
    assert await records.lease_messages(LEASED_UNTIL + 1.0, LEASED_UNTIL + 31.0, "h1", 9) == []
    assert await messages.remove(second)
    assert not await messages.remove(second)
    assert await records.tenant_data.count("acme") == {}


async def test_a_delayed_message_is_not_leased_before_its_time(records: Records) -> None:
    """The number of attempts is kept."""
    messages = records.for_tenant("acme").outbox
    await messages.add(outbox_message())
    [(_, taken)] = await records.lease_messages(NOW, LEASED_UNTIL, "h1", 9)
    assert await messages.put_off(taken, NOW + 5.0)

    assert await records.lease_messages(NOW + 4.9, LEASED_UNTIL, "h2", 9) == []
    [(_, again)] = await records.lease_messages(NOW + 5.0, LEASED_UNTIL, "h2", 9)
    assert again.attempts == 2


async def test_messages_with_one_ordering_key_are_sent_in_order(records: Records) -> None:
    """Timestamps do not matter; the order ends after an hour, and each tenant has its own."""
    acme = records.for_tenant("acme").outbox
    await acme.add(outbox_message(id="third", sequence=2, created_at=1.0, due_at=1.0))
    await acme.add(outbox_message(id="second", sequence=1, created_at=2.0))
    await acme.add(outbox_message(id="first", sequence=0, created_at=3.0))
    await records.for_tenant("globex").outbox.add(outbox_message(id="third", sequence=2))

    [(_, first), _] = sorted(
        await records.lease_messages(NOW, LEASED_UNTIL, "h", 9), key=lambda pair: pair[0]
    )
    assert first.id == "first"
    assert await ids(records) == []
    await acme.remove(first)
    assert await ids(records) == ["acme/second"]
    assert await ids(records, now=1_000.25 + HOUR - 1.0) == ["acme/second", "globex/third"]


async def test_a_sequence_number_may_be_a_time_in_microseconds(records: Records) -> None:
    """Two consecutive microseconds are different numbers."""
    acme, moment = records.for_tenant("acme").outbox, 1_795_335_300_000_001
    await acme.add(outbox_message(id="second", sequence=moment + 1))
    await acme.add(outbox_message(id="first", sequence=moment))

    [(_, first)] = await records.lease_messages(NOW, LEASED_UNTIL, "h", 9)
    assert (first.id, first.sequence) == ("first", moment)
    await acme.remove(first)
    assert await ids(records) == ["acme/second"]


async def test_the_oldest_are_dropped(records: Records) -> None:
    """The messages of one tenant beyond the newest are dropped, and each is reported once."""
    for number in range(6):
        message = outbox_message(
            id=f"m{number}", ordering_key=f"a{number}", created_at=float(number)
        )
        await records.for_tenant("acme").outbox.add(message)
    await records.for_tenant("globex").outbox.add(outbox_message(created_at=0.0))
    acme = records.for_tenant("acme").outbox

    assert await acme.drop_excess(6) == []
    assert sorted(await acme.drop_excess(4)) == ["m0", "m1"]
    assert await acme.drop_excess(4) == []
    assert await ids(records) == [f"acme/m{at}" for at in (2, 3, 4, 5)] + [
        "globex/msg_a1_requested"
    ]


async def test_a_sweep_removes_expired_messages(records: Records) -> None:
    """The rest stays."""
    await records.for_tenant("acme").outbox.add(outbox_message(expires_at=NOW))
    await records.for_tenant("acme").outbox.add(outbox_message(id="other"))

    assert await records.sweep(NOW) == 1
    assert await ids(records) == ["acme/other"]


async def test_a_webhook_message_is_stored_with_its_change_or_not_at_all(records: Records) -> None:
    """The second of two writers changes nothing and sends nothing."""
    approvals = records.for_tenant("acme").approvals
    opened = await asyncio.gather(
        *(
            approvals.open(
                approval(id=f"a{at}"), outbox_message(id=f"m{at}", ordering_key=f"a{at}")
            )
            for at in range(8)
        )
    )
    [winner] = [at for at, met in enumerate(opened) if met is None]
    assert await ids(records) == [f"acme/m{winner}"]

    record = approval(id=f"a{winner}", state="rejected")
    changed = await asyncio.gather(
        *(approvals.replace(record, outbox_message(id=f"n{at}")) for at in range(8))
    )
    [decided] = [at for at, is_changed in enumerate(changed) if is_changed]
    assert await ids(records) == [f"acme/n{decided}"]
    assert not await approvals.replace(approval(id="unknown"), outbox_message(id="never"))
    assert await ids(records) == []


async def test_a_change_is_rolled_back_if_its_webhook_message_cannot_be_stored(
    sql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection then serves other callers, and no caller continues half a transaction."""
    records = await open_records(sql_url)
    approvals = records.for_tenant("acme").approvals
    impossible = outbox_message()
    msgspec.structs.force_setattr(impossible, "body", None)

    for _ in range(12):  # more often than there are connections
        with pytest.raises(IntegrityError):
            await approvals.open(approval(), impossible)
    assert await approvals.get("a1") is None
    assert await approvals.open(approval(), outbox_message()) is None
    assert await ids(records) == ["acme/msg_a1_requested"]
    await records.aclose()

    records = await open_records(sql_url)
    assert await records.for_tenant("acme").approvals.get("a1") is not None
    await records.aclose()


async def test_a_change_that_hangs_is_rolled_back(
    migrated_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is in the transaction already when its message hangs; neither is kept."""
    records = await open_records(migrated_postgres)
    monkeypatch.setattr(database, "ANSWER_S", 0.5)
    approvals = records.for_tenant("acme").approvals
    other = await asyncpg.connect(migrated_postgres)
    await other.execute("BEGIN; LOCK TABLE outbox_messages")

    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="does not answer in time"):
            await approvals.open(approval(), outbox_message())

    await other.close()
    monkeypatch.setattr(database, "ANSWER_S", 20.0)
    assert await approvals.get("a1") is None
    assert await approvals.open(approval(), outbox_message()) is None
    assert await ids(records) == ["acme/msg_a1_requested"]
    await records.aclose()
