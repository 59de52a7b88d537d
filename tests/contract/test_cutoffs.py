"""Who is shut out, on every backend: kept once, counted at each change, swept when it is over."""

import asyncio

import msgspec

from gatepost.stores.api import Records
from gatepost.stores.cutoffs import FOR_EVER, CutOff

NOW = 1_000.25
SUSPENSION = CutOff(
    id="suspended", tenant="acme", suspends=True, made_at=NOW, made_by="root", reason="unpaid"
)
REVOCATION = CutOff(
    id="r1",
    issuer="https://id.example",
    subject="b\x00b\ud800",
    client="agent",
    before=NOW,
    undated_until=NOW + 1,
    blocked_until=FOR_EVER,
    made_at=NOW + 1,
    made_by="root",
    expires_at=NOW + 2,
)


async def test_a_cut_off_comes_back_as_it_went_in(records: Records) -> None:
    """Every field of it, the oldest first."""
    assert await records.cutoffs.all() == []
    assert await records.cutoffs.put(REVOCATION)
    assert await records.cutoffs.put(SUSPENSION)

    assert await records.cutoffs.all() == [SUSPENSION, REVOCATION]


async def test_the_first_of_an_id_stays(records: Records) -> None:
    """Whoever suspends a suspended tenant does not become the one who did it."""
    assert await records.cutoffs.put(SUSPENSION)
    again = msgspec.structs.replace(SUSPENSION, made_by="another")
    elsewhere = msgspec.structs.replace(again, tenant="globex")

    assert not await records.cutoffs.put(again)
    assert await records.cutoffs.put(elsewhere)
    assert await records.cutoffs.all() == [SUSPENSION, elsewhere]


async def test_every_change_is_counted(records: Records) -> None:
    """Whoever asks for the number learns that there is something to read, whoever changed it."""
    numbers = [await records.cutoffs.changes()]
    assert await records.cutoffs.put(SUSPENSION)
    numbers.append(await records.cutoffs.changes())
    assert await records.cutoffs.delete("acme", "suspended")
    numbers.append(await records.cutoffs.changes())
    assert not await records.cutoffs.delete("acme", "suspended")
    await asyncio.gather(
        *(
            records.cutoffs.put(msgspec.structs.replace(REVOCATION, id=f"r{number}"))
            for number in range(10)
        )
    )
    numbers.append(await records.cutoffs.changes())

    assert numbers[0] < numbers[1] < numbers[2]
    assert numbers[3] >= numbers[2] + 10
    assert len(await records.cutoffs.all()) == 10


async def test_what_reaches_nobody_any_more_is_swept(records: Records) -> None:
    """A suspension stays until somebody takes it back."""
    await records.cutoffs.put(SUSPENSION)
    await records.cutoffs.put(REVOCATION)

    await records.sweep(NOW + 1.9)
    assert await records.cutoffs.all() == [SUSPENSION, REVOCATION]
    await records.sweep(NOW + 2)
    assert await records.cutoffs.all() == [SUSPENSION]
