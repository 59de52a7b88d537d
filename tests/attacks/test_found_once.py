"""Ways to have one retry key's work done twice."""

import asyncio
from typing import Any

import pytest

from gatepost.guard import run
from tests.guard.house import House, said

WITHIN_S = 10


@pytest.mark.parametrize(("tool", "kind"), [("act", "correlation"), ("put", "idempotency")])
async def test_who_lost_the_key_stops(
    monkeypatch: pytest.MonkeyPatch, tool: str, kind: Any
) -> None:
    """
    A process that was cut off from the database for so long that another took the key over went on
    beside it, for as long as a person takes to answer: two at the same work.
    """
    monkeypatch.setattr(run, "RENEW_S", 0.001)
    house = House()
    cut_off, other = house.replica(), house.replica()
    claims = house.records.of("acme").claims
    renew = claims.renew

    async def away(key: bytes, holder: str, leased_until: float) -> bool:
        raise run.StoreUnavailable("away")

    claims.renew = away  # type: ignore[method-assign]
    stopped = asyncio.Event()
    ran = 0

    async def act(*_: Any) -> Any:
        nonlocal ran
        ran += 1
        if ran > 1:
            return run.Outcome(({"type": "text", "text": "second"},))
        house.entered.set()
        try:
            await house.gate.wait()
        except asyncio.CancelledError:
            stopped.set()
            raise

    monkeypatch.setattr(house, "_act", lambda what, *, held: act())
    first = asyncio.create_task(cut_off.call(tool=tool, kind=kind))
    await house.entered.wait()
    house.clock.now += run.LEASE_S + 60
    assert said(await other.call(tool=tool, kind=kind)) == "second"
    claims.renew = renew  # type: ignore[method-assign]
    await asyncio.wait_for(stopped.wait(), WITHIN_S)

    # What may be done again is answered as the other did it.
    assert said(await first) == ("second" if tool == "put" else "conflict")


async def test_a_key_that_is_over_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a day it is swept away, and what runs under it runs on."""
    monkeypatch.setattr(run, "RENEW_S", 0.001)
    house = House()
    first = asyncio.create_task(house.replica().call(tool="act_held"))
    await house.entered.wait()
    claims = house.records.of("acme").claims
    looked = asyncio.Event()
    get = claims.get

    async def noticed(key: bytes) -> Any:
        looked.set()
        return await get(key)

    claims.get = noticed  # type: ignore[method-assign]
    house.clock.now += 86_400
    assert await house.records.sweep(house.clock.now) == 1
    await asyncio.wait_for(looked.wait(), WITHIN_S)
    house.gate.set()

    assert said(await first) == "a 1"
