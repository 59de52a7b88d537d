"""Revocations on every backend: stored once, counted at each change, removed when they expire."""

import asyncio

import msgspec

from gatepost.storage.records import Records
from gatepost.storage.revocations import NEVER_EXPIRES, SUBJECT, RevocationRecord

NOW = 1_000.25
SUSPENSION = RevocationRecord(
    id="suspended", tenant="acme", suspends=True, created_at=NOW, created_by="root", reason="unpaid"
)
REVOCATION = RevocationRecord(
    id="r1",
    issuer="https://id.example",
    subject="b\x00b\ud800",
    client="agent",
    before=NOW,
    undated_until=NOW + 1,
    blocked_until=NEVER_EXPIRES,
    created_at=NOW + 1,
    created_by="root",
    expires_at=NOW + 2,
)


async def test_a_revocation_is_read_as_it_was_written(records: Records) -> None:
    """Every field is read back, and the oldest record comes first."""
    assert await records.revocations.all() == []
    assert await records.revocations.put(REVOCATION)
    assert await records.revocations.put(SUSPENSION)

    assert await records.revocations.all() == [SUSPENSION, REVOCATION]


async def test_a_second_record_of_an_id_does_not_replace_the_first(records: Records) -> None:
    """A second suspension does not replace the name of the operator who made the first."""
    assert await records.revocations.put(SUSPENSION)
    again = msgspec.structs.replace(SUSPENSION, created_by="another")
    elsewhere = msgspec.structs.replace(again, tenant="globex")

    assert not await records.revocations.put(again)
    assert await records.revocations.put(elsewhere)
    assert await records.revocations.all() == [SUSPENSION, elsewhere]


async def change_count(records: Records) -> int:
    """Return the change counter that tells a process to read the revocations again."""
    return (await records.changes([SUBJECT])).get(SUBJECT, 0)


async def test_every_change_is_counted(records: Records) -> None:
    """A process that reads the counter learns of each change, by any process."""
    numbers = [await change_count(records)]
    assert await records.revocations.put(SUSPENSION)
    numbers.append(await change_count(records))
    assert await records.revocations.delete("acme", "suspended")
    numbers.append(await change_count(records))
    assert not await records.revocations.delete("acme", "suspended")
    await asyncio.gather(
        *(
            records.revocations.put(msgspec.structs.replace(REVOCATION, id=f"r{number}"))
            for number in range(10)
        )
    )
    numbers.append(await change_count(records))

    assert numbers[0] < numbers[1] < numbers[2]
    assert numbers[3] >= numbers[2] + 10
    assert len(await records.revocations.all()) == 10


async def test_unreachable_records_are_deleted(records: Records) -> None:
    """A suspension stays until a person takes it back."""
    await records.revocations.put(SUSPENSION)
    await records.revocations.put(REVOCATION)

    await records.sweep(NOW + 1.9)
    assert await records.revocations.all() == [SUSPENSION, REVOCATION]
    await records.sweep(NOW + 2)
    assert await records.revocations.all() == [SUSPENSION]
