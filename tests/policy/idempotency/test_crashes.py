"""Idempotency keys when a process, the database or the shared store is gone in the middle (O12)."""

import asyncio
from typing import Any

import pytest

from gatepost.policy.idempotency import execution
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.idempotency import IdempotencyRecord
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.shared_store import MemorySharedStore, Subscription
from tests.support.measuring import capture_logs
from tests.support.runners import (
    IdempotencyDeployment,
    IdempotencyReplica,
    run_ready,
    run_until,
    text_or_failure,
)

pytestmark = pytest.mark.requirement("O12")

HELD_TOOL = "act_held"


async def crash_replica(
    deployment: IdempotencyDeployment, tool: str = HELD_TOOL, **options: Any
) -> IdempotencyReplica:
    """Crash a replica while its tool runs, so that its record stays; return another replica."""
    dead = deployment.replica()
    call = asyncio.create_task(dead.call(tool=tool, **options))
    await deployment.entered.wait()
    for task in tuple(dead.runs._tasks):
        # The stores learn nothing of this cancellation, as in a crash.
        task.cancel()
    await run_ready()
    call.cancel()
    await run_ready()
    deployment.gate.set()
    return deployment.replica()


async def test_an_unknown_outcome_is_reported_and_not_retried() -> None:
    """The effect may have happened; a second one would be worse than an error."""
    deployment = IdempotencyDeployment()
    alive = await crash_replica(deployment)
    deployment.clock.now += execution.LEASE_S
    for _ in range(2):
        outcome = await alive.call(tool=HELD_TOOL)
        assert outcome.failure is not None
        assert text_or_failure(outcome) == "conflict"
        assert "It is unknown" in outcome.failure.message
    deployment.clock.now += 86_400

    assert deployment.effects == {"a": 1}
    assert text_or_failure(await alive.call(tool=HELD_TOOL)) == "a 2"


async def test_an_idempotent_tool_runs_again_after_a_crash() -> None:
    """A tool that is declared idempotent runs again at the replica that finds the lease ended."""
    deployment, tool = IdempotencyDeployment(), "put_held"
    alive, other = await crash_replica(deployment, tool), deployment.replica()
    deployment.clock.now += execution.LEASE_S
    calls = [alive.call(tool=tool), alive.call(tool=tool), other.call(tool=tool)]

    assert {text_or_failure(outcome) for outcome in await asyncio.gather(*calls)} == {"a 2"}


async def test_a_correlation_id_is_free_again_after_a_minute() -> None:
    """The correlation id counts for a minute; after that an identical call is a new one."""
    deployment = IdempotencyDeployment()
    alive = await crash_replica(deployment, kind="correlation")
    deployment.clock.now += execution.LEASE_S + 59
    assert text_or_failure(await alive.call(tool=HELD_TOOL, kind="correlation")) == "conflict"

    deployment.clock.now += 1
    assert text_or_failure(await alive.call(tool=HELD_TOOL, kind="correlation")) == "a 2"


async def test_a_waiting_call_returns_when_the_lease_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry right after the crash waits until the lease ends and no replica can run the tool."""
    monkeypatch.setattr(execution, "POLL_S", 0.005)
    deployment = IdempotencyDeployment()
    alive = await crash_replica(deployment)
    again = asyncio.create_task(alive.call(tool=HELD_TOOL))
    await run_ready()
    assert not again.done()
    deployment.clock.now += execution.LEASE_S

    assert text_or_failure(await again) == "conflict"


async def test_a_holder_that_lost_its_lease_can_still_store_the_outcome() -> None:
    """
    After a pause longer than the lease, other calls were told that the outcome is unknown; now the
    holder stores it.
    """
    deployment = IdempotencyDeployment()
    slow, other = deployment.replica(), deployment.replica()
    first = asyncio.create_task(slow.call(tool=HELD_TOOL))
    await deployment.entered.wait()
    deployment.clock.now += execution.LEASE_S
    assert text_or_failure(await other.call(tool=HELD_TOOL)) == "conflict"
    deployment.gate.set()

    assert text_or_failure(await first) == "a 1"
    assert text_or_failure(await other.call(tool=HELD_TOOL)) == "a 1"


class Switch:
    """Stores that answer as long as they are on."""

    def __init__(self) -> None:
        self.away: set[str] = set()

    def ask(self, what: str) -> None:
        if what in self.away:
            raise StoreUnavailable


class FailingRecords(MemoryRecords):
    """Idempotency records that may be away, by method."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        super().__init__()

    def for_tenant(self, tenant: str) -> Any:
        store = super().for_tenant(tenant)
        if not isinstance(store.idempotency, SwitchedStore):
            store.idempotency = SwitchedStore(store.idempotency, self._switch)  # type: ignore[assignment]
        return store


class SwitchedStore:
    """Passes every call on, unless it is switched off."""

    def __init__(self, inner: Any, switch: Switch) -> None:
        self._inner, self._switch = inner, switch

    def __getattr__(self, name: str) -> Any:
        async def ask(*arguments: Any, **options: Any) -> IdempotencyRecord | bool | None:
            self._switch.ask(name)
            answer: IdempotencyRecord | bool | None = await getattr(self._inner, name)(
                *arguments, **options
            )
            return answer

        return ask


class FailingSharedStore(MemorySharedStore):
    """A shared store that may be away."""

    def __init__(self, switch: Switch) -> None:
        super().__init__()
        self._switch = switch

    def for_tenant(self, tenant: str) -> Any:
        inner, switch = super().for_tenant(tenant), self._switch

        class Tenant:
            async def publish(self, topic: str, message: bytes) -> None:
                switch.ask("publish")
                await inner.publish(topic, message)

            async def follow(self, topic: str, deliver: Any) -> Subscription:
                switch.ask("follow")
                return await inner.follow(topic, deliver)

        return Tenant()


async def test_a_keyed_call_does_not_run_without_the_database() -> None:
    """Without the database a keyed call is answered 503: the promise could not be kept."""
    switch = Switch()
    deployment = IdempotencyDeployment(records=FailingRecords(switch))
    replica = deployment.replica()
    switch.away = {"begin"}
    with pytest.raises(StoreUnavailable):
        await replica.call()
    assert deployment.effects == {}
    switch.away = set()

    assert text_or_failure(await replica.call()) == "a 1"


async def test_an_outcome_is_returned_now_and_stored_after_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To answer 503 after the effect would invite a second one."""
    monkeypatch.setattr(execution, "BACKOFF_S", (0.005,) * 1000)
    switch = Switch()
    deployment = IdempotencyDeployment(records=FailingRecords(switch))
    first, other = deployment.replica(), deployment.replica()
    switch.away = {"finish"}
    with capture_logs() as logs:
        assert text_or_failure(await first.call()) == "a 1"
        assert logs[0]["event"] == "result_not_stored"
        switch.away = set()
        async with asyncio.timeout(10):
            await asyncio.wait(first.runs._tasks)

    assert text_or_failure(await other.call()) == "a 1"


async def test_a_failed_renewal_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next renewal counts."""
    monkeypatch.setattr(execution, "RENEW_S", 0.001)
    switch = Switch()
    deployment = IdempotencyDeployment(records=FailingRecords(switch))
    replica = deployment.replica()
    switch.away = {"renew"}
    with capture_logs() as logs:
        first = asyncio.create_task(replica.call(tool=HELD_TOOL))

        async def failed() -> bool:
            return bool(logs)

        await run_until(failed)
        deployment.gate.set()

        assert text_or_failure(await first) == "a 1"


async def test_a_lost_notification_is_replaced_by_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared store may lose everything; waiting only takes longer then."""
    monkeypatch.setattr(execution, "POLL_S", 0.005)
    switch = Switch()
    switch.away = {"publish", "follow"}
    deployment = IdempotencyDeployment(shared_store=FailingSharedStore(switch))
    replica, other = deployment.replica(), deployment.replica()
    with capture_logs():
        first = asyncio.create_task(replica.call(tool=HELD_TOOL))
        await deployment.entered.wait()
        second = asyncio.create_task(other.call(tool=HELD_TOOL))
        await run_ready()
        deployment.gate.set()

        assert text_or_failure(await second) == text_or_failure(await first) == "a 1"


async def test_a_notification_avoids_the_wait_for_the_next_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a shared store, a waiting call learns of the outcome at once."""
    monkeypatch.setattr(execution, "POLL_S", 3600)
    deployment = IdempotencyDeployment()
    replica, other = deployment.replica(), deployment.replica()
    first = asyncio.create_task(replica.call(tool=HELD_TOOL))
    await deployment.entered.wait()
    second = asyncio.create_task(other.call(tool=HELD_TOOL))
    await run_ready()
    deployment.gate.set()

    assert text_or_failure(await second) == text_or_failure(await first) == "a 1"
