"""Several calls with one idempotency key at once, and calls whose callers leave (O12)."""

import asyncio

import pytest

from gatepost import Outcome
from gatepost.execution.interruption import StopCause
from gatepost.policy.idempotency import execution
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.memory.records import MemoryIdempotency
from gatepost.tools.calls.stage import Next
from gatepost.tools.context.client import InputNeeded
from tests.support.runners import (
    FORM_REQUESTS,
    IdempotencyDeployment,
    IdempotencyReplica,
    run_ready,
    run_until,
    text_or_failure,
)

pytestmark = pytest.mark.requirement("O12")

HELD_TOOL = "act_held"


def begin_call(
    replica: IdempotencyReplica, tool: str = HELD_TOOL, **options: str
) -> "asyncio.Task[Outcome]":
    return asyncio.create_task(replica.call(tool=tool, **options))


@pytest.mark.parametrize("kind", ["idempotency", "correlation"])
async def test_concurrent_calls_share_one_run(kind: str) -> None:
    """A call that comes while the first runs waits for it, at the same or another replica."""
    deployment = IdempotencyDeployment()
    replicas = [deployment.replica() for _ in range(3)]
    calls = [begin_call(replica, kind=kind) for replica in replicas for _ in range(3)]
    await deployment.entered.wait()
    await run_ready()
    assert not any(call.done() for call in calls)
    deployment.gate.set()

    assert {text_or_failure(await call) for call in calls} == {"a 1"}
    assert deployment.effects == {"a": 1}


async def test_a_call_that_waits_longer_than_its_timeout_is_a_conflict() -> None:
    """The first call may wait for a person; the others get a retry time."""
    deployment = IdempotencyDeployment(limit_s=0.05)
    waiting = asyncio.Event()

    async def approve(call: object, tool: object, arguments: object, proceed: Next) -> Outcome:
        deployment.entered.set()
        await waiting.wait()
        return await proceed(call, tool, arguments)  # type: ignore[arg-type]

    deployment.stages = [approve]
    replica, other = deployment.replica(), deployment.replica()
    first = begin_call(replica, "act")
    await deployment.entered.wait()

    assert text_or_failure(await replica.call()) == "conflict+"
    assert text_or_failure(await other.call()) == "conflict+"
    assert not first.done()
    waiting.set()
    assert text_or_failure(await first) == "a 1"
    assert text_or_failure(await other.call()) == "a 1"


async def test_a_wait_for_another_persons_decision_ends_with_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A caller whose token has expired does not keep a connection by waiting."""
    monkeypatch.setattr("gatepost.policy.idempotency.execution.GRACE_S", 0.02)
    deployment = IdempotencyDeployment()
    replica, other = deployment.replica(), deployment.replica()
    first = begin_call(replica)
    await deployment.entered.wait()
    expired = int(deployment.clock.now)

    assert text_or_failure(await other.call(tool=HELD_TOOL, expires_at=expired)) == "conflict+"
    deployment.gate.set()
    await first


async def test_waiting_calls_do_not_share_an_input_request_of_the_first() -> None:
    """The first call is asked something; the second, with another client, runs."""
    deployment = IdempotencyDeployment()
    replica, other = deployment.replica(), deployment.replica()
    deployment.raises = InputNeeded(FORM_REQUESTS)
    first = begin_call(replica)
    await deployment.entered.wait()
    others = [begin_call(replica), begin_call(other)]
    await run_ready()
    deployment.gate.set()
    with pytest.raises(InputNeeded):
        await first
    deployment.raises = None

    assert {text_or_failure(await call) for call in others} <= {"a 2", "a 3"}
    assert deployment.effects["a"] <= 3


@pytest.fixture
def remarks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the remarks for audit records, as they are added."""
    names: list[str] = []
    monkeypatch.setattr(execution, "remark", lambda name, _: names.append(name))
    return names


async def test_a_call_that_runs_after_another_was_released_is_no_replay(
    remarks: list[str],
) -> None:
    """Its tool ran for it, so its audit record must not say otherwise."""
    deployment = IdempotencyDeployment()
    replica, other = deployment.replica(), deployment.replica()
    deployment.raises = InputNeeded(FORM_REQUESTS)
    first = begin_call(replica)
    await deployment.entered.wait()
    waiting = begin_call(other)
    await run_ready()
    deployment.gate.set()
    with pytest.raises(InputNeeded):
        await first
    deployment.raises = None

    assert text_or_failure(await waiting) == "a 2"
    assert remarks == []


async def test_a_call_that_fails_at_the_store_is_no_replay(
    remarks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its idempotency record it did not run."""
    deployment = IdempotencyDeployment()

    async def begin(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(MemoryIdempotency, "begin", begin)
    with pytest.raises(StoreUnavailable):
        await deployment.replica().call()

    assert remarks == []


async def cancel_call(call: "asyncio.Task[Outcome]", why: str | None) -> None:
    call.cancel(why)
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_broken_connection_does_not_stop_the_call() -> None:
    """Its client retries with its key and gets the outcome; the tool runs once."""
    deployment = IdempotencyDeployment()
    replica, other = deployment.replica(), deployment.replica()
    first = begin_call(replica)
    await deployment.entered.wait()
    await cancel_call(first, StopCause.DISCONNECTED)
    again = [begin_call(replica), begin_call(other)]
    await run_ready()
    deployment.gate.set()

    assert {text_or_failure(await call) for call in again} == {"a 1"}
    assert text_or_failure(await other.call(tool=HELD_TOOL)) == "a 1"


async def test_a_call_without_waiting_callers_still_stores_its_outcome() -> None:
    """The outcome is stored whether or not a caller waits for it."""
    deployment = IdempotencyDeployment()
    replica = deployment.replica()
    first = begin_call(replica)
    await deployment.entered.wait()
    await cancel_call(first, StopCause.DISCONNECTED)
    deployment.gate.set()
    await run_ready()

    assert text_or_failure(await deployment.replica().call(tool=HELD_TOOL)) == "a 1"
    assert deployment.effects == {"a": 1}


@pytest.mark.parametrize(("tool", "answer"), [(HELD_TOOL, "conflict"), ("put_held", "a 2")])
async def test_a_cancelled_call_stops(tool: str, answer: str) -> None:
    """Its effect is unknown, so only an idempotent tool runs again."""
    deployment = IdempotencyDeployment()
    replica, other = deployment.replica(), deployment.replica()
    first = begin_call(replica, tool)
    await deployment.entered.wait()
    await cancel_call(first, None)
    deployment.gate.set()

    assert text_or_failure(await replica.call(tool=tool)) == answer
    assert text_or_failure(await other.call(tool=tool)) == answer


async def test_a_call_cancelled_before_its_tool_ran_leaves_the_key_free() -> None:
    """The call only waited for its approval, so it had no effect."""
    deployment = IdempotencyDeployment()

    async def approve(call: object, tool: object, arguments: object, proceed: Next) -> Outcome:
        deployment.entered.set()
        await deployment.gate.wait()
        return await proceed(call, tool, arguments)  # type: ignore[arg-type]

    deployment.stages = [approve]
    replica = deployment.replica()
    first = begin_call(replica, "act")
    await deployment.entered.wait()
    await cancel_call(first, None)
    deployment.gate.set()

    assert text_or_failure(await deployment.replica().call()) == "a 1"


async def test_a_call_continues_for_callers_that_still_wait() -> None:
    """One of two callers cancels; the other gets the outcome."""
    deployment = IdempotencyDeployment()
    replica = deployment.replica()
    first, second = begin_call(replica), begin_call(replica)
    await deployment.entered.wait()
    await cancel_call(first, None)
    deployment.gate.set()

    assert text_or_failure(await second) == "a 1"


async def test_a_wait_at_another_replica_can_be_cancelled() -> None:
    """The replica keeps no task of it."""
    deployment = IdempotencyDeployment()
    replica, other = deployment.replica(), deployment.replica()
    first = begin_call(replica)
    await deployment.entered.wait()
    second = begin_call(other)
    await run_ready()
    await cancel_call(second, StopCause.DISCONNECTED)
    await run_ready()

    assert not other.runs._open
    assert not other.runs._tasks
    deployment.gate.set()
    assert text_or_failure(await first) == "a 1"
    await run_ready()
    assert not replica.runs._tasks


async def test_a_timeout_is_stored_as_the_outcome() -> None:
    """The tool was stopped in the middle; a retry does not begin anew."""
    deployment = IdempotencyDeployment(limit_s=0.02)
    first, other = deployment.replica(), deployment.replica()

    assert text_or_failure(await first.call(tool=HELD_TOOL)) == "timeout"
    assert text_or_failure(await first.call(tool=HELD_TOOL)) == "timeout"
    assert text_or_failure(await other.call(tool=HELD_TOOL)) == "timeout"
    assert deployment.effects == {"a": 1}


async def test_a_call_stopped_with_its_process_is_reported_as_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next replica knows it at once and does not run the tool again."""
    monkeypatch.setattr("gatepost.policy.idempotency.execution.CLOSING_S", 0.05)
    deployment = IdempotencyDeployment()
    replica, other = deployment.replica(), deployment.replica()
    first = begin_call(replica)
    await deployment.entered.wait()
    await replica.runs.aclose()

    assert text_or_failure(await first) == "conflict"
    assert text_or_failure(await other.call(tool=HELD_TOOL)) == "conflict"
    assert deployment.effects == {"a": 1}


async def test_a_lease_is_renewed_while_the_tool_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long call does not count as abandoned."""
    monkeypatch.setattr(execution, "RENEW_S", 0.005)
    deployment = IdempotencyDeployment()
    replica, other = deployment.replica(), deployment.replica()
    first = begin_call(replica)
    await deployment.entered.wait()
    idempotency = deployment.records.for_tenant("acme").idempotency
    (key,) = idempotency.records  # type: ignore[attr-defined]
    for _ in range(3):
        deployment.clock.now += execution.LEASE_S - 1
        lease_end = deployment.clock.now + execution.LEASE_S

        async def renewed(expected: float = lease_end) -> bool:
            record = await idempotency.get(key)
            return record is not None and record.leased_until >= expected

        await run_until(renewed)
    second = begin_call(other)
    await run_ready()
    deployment.gate.set()

    assert text_or_failure(await second) == text_or_failure(await first) == "a 1"
