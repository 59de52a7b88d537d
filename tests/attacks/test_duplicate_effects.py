"""Ways to have one idempotency key's work done twice."""

import asyncio
from typing import Any

import pytest

from gatepost.policy.idempotency import execution
from gatepost.policy.idempotency.stage import IdempotencyStage
from gatepost.policy.limits.request_limits import RetryLimits
from gatepost.storage.idempotency import IdempotencyRecord
from gatepost.storage.memory.records import MemoryIdempotency
from gatepost.storage.rate_limits import Buckets
from gatepost.tools.calls.runner import Runner
from tests.support.runners import IdempotencyDeployment, text_or_failure

WITHIN_S = 10


@pytest.mark.parametrize(("tool", "kind"), [("act", "correlation"), ("put", "idempotency")])
async def test_a_process_that_lost_its_lease_on_the_key_stops_its_call(
    monkeypatch: pytest.MonkeyPatch, tool: str, kind: Any
) -> None:
    """The process was cut off from the database, and another one took over the lease."""
    monkeypatch.setattr(execution, "RENEW_S", 0.001)
    deployment = IdempotencyDeployment()
    revoked, other = deployment.replica(), deployment.replica()
    records = deployment.records.of("acme").idempotency
    renew = records.renew

    async def away(key: bytes, holder: str, leased_until: float) -> bool:
        raise execution.StoreUnavailable("away")

    records.renew = away  # type: ignore[method-assign]
    stopped = asyncio.Event()
    ran = 0

    async def act(*_: Any) -> Any:
        nonlocal ran
        ran += 1
        if ran > 1:
            return execution.Outcome(({"type": "text", "text": "second"},))
        deployment.entered.set()
        try:
            await deployment.gate.wait()
        except asyncio.CancelledError:
            stopped.set()
            raise

    monkeypatch.setattr(deployment, "_act", lambda what, *, held: act())
    first = asyncio.create_task(revoked.call(tool=tool, kind=kind))
    await deployment.entered.wait()
    deployment.clock.now += execution.LEASE_S + 60
    assert text_or_failure(await other.call(tool=tool, kind=kind)) == "second"
    records.renew = renew  # type: ignore[method-assign]
    await asyncio.wait_for(stopped.wait(), WITHIN_S)

    # What may be done again is answered as the other did it.
    assert text_or_failure(await first) == ("second" if tool == "put" else "conflict")


async def test_an_expired_key_does_not_stop_its_running_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sweep removes the key after a day, and the call that uses it continues."""
    monkeypatch.setattr(execution, "RENEW_S", 0.001)
    deployment = IdempotencyDeployment()
    first = asyncio.create_task(deployment.replica().call(tool="act_held"))
    await deployment.entered.wait()
    records = deployment.records.of("acme").idempotency
    looked = asyncio.Event()
    get = records.get

    async def noticed(key: bytes) -> Any:
        looked.set()
        return await get(key)

    records.get = noticed  # type: ignore[method-assign]
    deployment.clock.now += 86_400
    assert await deployment.records.sweep(deployment.clock.now) == 1
    await asyncio.wait_for(looked.wait(), WITHIN_S)
    deployment.gate.set()

    assert text_or_failure(await first) == "a 1"


class CountedIdempotency(MemoryIdempotency):
    """Claims that count what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    async def begin(self, claim: IdempotencyRecord, *, now: float) -> IdempotencyRecord | None:
        self.written += 1
        return await super().begin(claim, now=now)


async def test_calls_beyond_the_rate_limit_write_no_idempotency_record() -> None:
    """A caller beyond its rate could otherwise keep the database busy with durable writes."""
    deployment = IdempotencyDeployment()
    records = deployment.records.of("acme").idempotency = CountedIdempotency()
    attempts = RetryLimits(Buckets(), rate=1 / 60, burst=5, monotonic=lambda: 0.0)
    replica = deployment.replica()
    replica.runner = Runner(
        replica.runner.registry,
        context_for=replica.runner.context_for,
        stages=(attempts, IdempotencyStage(replica.runs, timeout_s=30, max_result_bytes=1000)),
        clock=deployment.clock,
    )
    outcomes = [text_or_failure(await replica.call(f"key {number}")) for number in range(50)]

    assert outcomes == ["a 1", *(f"a {n}" for n in range(2, 11)), *["rate_limit+"] * 40]
    assert records.written == 10
    refused = (await replica.call("key 50")).failure
    assert refused is not None
    assert refused.limit == "caller"
    assert text_or_failure(await replica.call("key 0", subject="bob")) == "a 11"
    assert text_or_failure(await replica.call(None)) == "a 12"
