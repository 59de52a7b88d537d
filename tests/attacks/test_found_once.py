"""Ways to have one retry key's work done twice."""

import asyncio
from typing import Any

import pytest

from gatepost.guard import run
from gatepost.guard.once import Once
from gatepost.limits.attempts import Attempts
from gatepost.stores.api import Claim
from gatepost.stores.bucket import Buckets
from gatepost.stores.memory.records import MemoryClaims
from gatepost.tools.runner import Runner
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


class Counted(MemoryClaims):
    """Claims that count what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    async def begin(self, claim: Claim, *, now: float) -> Claim | None:
        self.written += 1
        return await super().begin(claim, now=now)


async def test_who_calls_too_often_writes_nothing() -> None:
    """
    Each call with a retry key was two durable writes before anybody counted it: one caller beyond
    its rate could keep all tenants from the database.
    """
    house = House()
    claims = house.records.of("acme").claims = Counted()
    attempts = Attempts(Buckets(), rate=1 / 60, burst=5, monotonic=lambda: 0.0)
    replica = house.replica()
    replica.runner = Runner(
        replica.runner.registry,
        context_for=replica.runner.context_for,
        stages=(Once(replica.runs, timeout_s=30, max_result_bytes=1000, attempts=attempts),),
        clock=house.clock,
    )
    outcomes = [said(await replica.call(f"key {number}")) for number in range(50)]

    assert outcomes == ["a 1", *(f"a {n}" for n in range(2, 11)), *["rate_limit+"] * 40]
    assert claims.written == 10
    refused = (await replica.call("key 50")).failure
    assert refused is not None
    assert refused.limit == "caller"
    assert said(await replica.call("key 0", subject="bob")) == "a 11"
    assert said(await replica.call(None)) == "a 12"
