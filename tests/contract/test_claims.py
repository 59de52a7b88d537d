"""Retry keys, on every backend."""

import asyncio

import msgspec
import pytest

from gatepost.stores.api import Claim, Records
from tests.contract.samples import HOUR, claim

NOW = 1_000.0


async def test_a_key_is_claimed_once(records: Records) -> None:
    """The first gets nothing to look at, everybody else what holds the key."""
    claims = records.of("acme").claims

    assert await claims.begin(claim(), now=NOW) is None
    assert await claims.begin(claim(holder="h2", digest=b"d2"), now=NOW) == claim()
    assert await claims.get(b"k1") == claim()
    assert await claims.get(b"k2") is None


async def test_of_many_at_once_exactly_one_claims(records: Records) -> None:
    """Each loser is shown the winner."""
    claims = records.of("acme").claims
    wanted = [claim(holder=f"h{number}") for number in range(30)]

    met = await asyncio.gather(*(claims.begin(one, now=NOW) for one in wanted))

    winners = [one for one, found in zip(wanted, met, strict=True) if found is None]
    assert len(winners) == 1
    assert {found for found in met if found is not None} == {winners[0]}


async def test_a_claim_whose_time_is_over_makes_room_for_one(records: Records) -> None:
    """Nobody has to wait for the sweep, and still only one is next."""
    claims = records.of("acme").claims
    await claims.begin(claim(outcome=b"old", expires_at=NOW), now=NOW - 1)
    wanted = [claim(holder=f"n{number}") for number in range(10)]

    met = await asyncio.gather(*(claims.begin(one, now=NOW) for one in wanted))

    assert met.count(None) == 1
    kept = await claims.get(b"k1")
    assert kept is not None
    assert kept.outcome is None
    assert kept.holder == wanted[met.index(None)].holder


async def test_a_claim_holds_its_key_to_the_last_moment(records: Records) -> None:
    """At its very end it is over, not before."""
    claims = records.of("acme").claims
    await claims.begin(claim(expires_at=NOW), now=NOW - 1)

    assert await claims.begin(claim(holder="h2"), now=NOW - 0.001) is not None
    assert await claims.begin(claim(holder="h2"), now=NOW) is None


async def test_an_outcome_is_kept_once(records: Records) -> None:
    """What was stored is what is replayed, whatever comes later."""
    claims = records.of("acme").claims
    await claims.begin(claim(), now=NOW)

    assert await claims.finish(b"k1", "h1", b"\x00out", NOW + HOUR)
    assert not await claims.finish(b"k1", "h1", b"again", NOW + HOUR)
    assert not await claims.renew(b"k1", "h1", NOW + 60)
    await claims.release(b"k1", "h1")

    assert await claims.get(b"k1") == claim(outcome=b"\x00out", expires_at=NOW + HOUR)


async def test_an_empty_outcome_is_an_outcome(records: Records) -> None:
    """Nothing to say is not the same as not known."""
    claims = records.of("acme").claims
    await claims.begin(claim(), now=NOW)
    await claims.finish(b"k1", "h1", b"", NOW + HOUR)

    assert await claims.get(b"k1") == claim(outcome=b"", expires_at=NOW + HOUR)
    assert not await claims.finish(b"k1", "h1", b"x", NOW + HOUR)


async def test_only_its_holder_changes_a_claim(records: Records) -> None:
    """A call that was taken for gone must not overwrite what came after it."""
    claims = records.of("acme").claims
    await claims.begin(claim(), now=NOW)

    assert not await claims.renew(b"k1", "other", NOW + 60)
    assert not await claims.finish(b"k1", "other", b"x", NOW + HOUR)
    await claims.release(b"k1", "other")

    assert await claims.get(b"k1") == claim()
    assert not await claims.renew(b"unknown", "h1", NOW + 60)


async def test_a_renewed_claim_runs_on(records: Records) -> None:
    """Whoever meets it later reads the new end of the lease."""
    claims = records.of("acme").claims
    await claims.begin(claim(), now=NOW)

    assert await claims.renew(b"k1", "h1", NOW + 60.5)
    assert await claims.get(b"k1") == claim(leased_until=NOW + 60.5)


async def test_a_released_key_is_free(records: Records) -> None:
    """Where nothing was done, the next try is a first one."""
    claims = records.of("acme").claims
    await claims.begin(claim(), now=NOW)
    await claims.release(b"k1", "h1")

    assert await claims.get(b"k1") is None
    assert await claims.begin(claim(holder="h2"), now=NOW) is None


CHANGED = {
    "renewed": {"leased_until": NOW + 61},
    "held by another": {"holder": "h3"},
    "finished": {"outcome": b"x"},
    "other arguments": {"digest": b"d3"},
    "another end": {"expires_at": NOW + 7},
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
async def test_what_changed_meanwhile_is_not_taken_over(
    records: Records, change: dict[str, object]
) -> None:
    """The reading that made somebody give a holder up must still be true."""
    claims = records.of("acme").claims
    await claims.begin(msgspec.structs.replace(claim(), **change), now=NOW)

    assert not await claims.take_over(claim(holder="h2"), was=claim())


@pytest.mark.parametrize("outcome", [None, b"", b"unknown"])
async def test_of_many_that_take_over_one_does(records: Records, outcome: bytes | None) -> None:
    """Two replicas that find the same call gone do not both run it again."""
    claims = records.of("acme").claims
    was = claim(outcome=outcome)
    await claims.begin(was, now=NOW)
    wanted = [claim(holder=f"n{number}", digest=b"d9") for number in range(10)]

    taken = await asyncio.gather(*(claims.take_over(one, was=was) for one in wanted))

    assert taken.count(True) == 1
    assert await claims.get(b"k1") == wanted[taken.index(True)]


async def test_nothing_is_taken_over_that_is_not_there(records: Records) -> None:
    """A released key is claimed like any other."""
    assert not await records.of("acme").claims.take_over(claim(holder="h2"), was=claim())


async def test_a_sweep_removes_claims_whose_time_is_over(records: Records) -> None:
    """A lease that is over is no end: the outcome of that call is still unknown."""
    claims = records.of("acme").claims
    await claims.begin(claim(expires_at=NOW), now=0)
    await claims.begin(claim(key=b"k2", leased_until=1.0), now=0)

    assert await records.sweep(NOW) == 1
    assert await claims.get(b"k1") is None
    assert isinstance(await claims.get(b"k2"), Claim)
