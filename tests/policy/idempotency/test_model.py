"""Any order of calls, endings, crashes and departures: one effect per key, no odd answer (O12)."""

import asyncio
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost import CallContext, Outcome, Pack, ToolFailure
from gatepost.execution.interruption import StopCause
from gatepost.policy.idempotency import execution
from gatepost.policy.idempotency.execution import RunningCalls
from gatepost.policy.idempotency.idempotency_record import KEPT_S
from gatepost.policy.idempotency.stage import IdempotencyStage
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.shared_store import MemorySharedStore
from gatepost.tools.calls.registry import Registry
from gatepost.tools.calls.runner import Runner
from gatepost.tools.context.client import InputNeeded
from gatepost.tools.offers.offer import Call, IdempotencyKey
from gatepost.workspace import TenantWorkspace
from tests.support.endpoint import a_caller
from tests.support.measuring import ManualClock, capture_logs
from tests.support.runners import FORM_REQUESTS, run_ready

pytestmark = pytest.mark.requirement("O12")

REPLICAS = 3
WITHIN_S = 20
STEP_S = 4.0  # less than a lease is renewed by


class CallIdentity(NamedTuple):
    """What two calls must share to be the same one."""

    tool: str
    kind: str
    key: str
    arguments: str | None
    """Of an episode's calls; an idempotency key is one call's."""


class Invocation(msgspec.Struct):
    """One run of a tool."""

    identity: CallIdentity
    arguments: str
    begun: float
    replica: int
    gate: "asyncio.Future[str]"
    ended: float | None = None
    how: str = "runs"
    """runs, kept, free, gone (with its replica) or stopped"""


class ModelCall(msgspec.Struct):
    """One call and what came of it."""

    identity: CallIdentity
    arguments: str
    begun: float
    replica: int
    task: "asyncio.Task[Outcome]"
    number: int
    ended: float = 0.0
    left: bool = False


class ModelDeployment:
    """Replicas over shared stores, and everything that ever happened there."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.records, self.shared_store = MemoryRecords(), MemorySharedStore()
        self.invocations: list[Invocation] = []
        self.calls: list[ModelCall] = []
        self.pack = Pack("world")
        self.pack.tool(name="act")(self._tool)
        self.pack.tool(name="put", idempotent=True)(self._tool)
        self.replicas = [self._replica() for _ in range(REPLICAS)]

    def _replica(self) -> tuple[RunningCalls, Runner]:
        runs = RunningCalls(self.records, self.shared_store, clock=self.clock)
        once = IdempotencyStage(runs, timeout_s=3600.0, max_result_bytes=1_000_000)
        registry = Registry(self.pack.tools.values())
        return runs, Runner(
            registry, context_for=_context, stages=[once], timeout_s=3600.0, clock=self.clock
        )

    async def _tool(self, ctx: CallContext, what: str) -> str:
        """Have an effect, and end as the test says."""
        call = self.calls[int(ctx.request_id)]
        gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        invocation = Invocation(call.identity, what, self.clock.now, call.replica, gate)
        self.invocations.append(invocation)
        number = len(self.invocations) - 1
        try:
            how = await gate
        except asyncio.CancelledError:
            if invocation.how == "runs":
                invocation.how, invocation.ended = "stopped", self.clock.now
            raise
        invocation.ended = self.clock.now
        invocation.how = "free" if how in ("away", "asks") else "kept"
        if how == "away":
            raise ToolFailure("upstream_unavailable", f"#{number}")
        if how == "asks":
            raise InputNeeded(FORM_REQUESTS)
        if how == "fails":
            raise ToolFailure("not_found", f"#{number}")
        return f"#{number}"

    async def call(self, replica: int, tool: str, kind: str, key: str, what: str) -> None:
        identity = CallIdentity(tool, kind, key, what if kind == "correlation" else None)
        call = Call(
            caller=a_caller(),
            name=tool,
            arguments=msgspec.json.encode({"what": what}),
            request_id=str(len(self.calls)),
            idempotency_key=IdempotencyKey(kind, key),  # type: ignore[arg-type]  # from a list of both
        )
        task = asyncio.create_task(self.replicas[replica][1].run(call))
        model_call = ModelCall(identity, what, self.clock.now, replica, task, len(self.calls))
        task.add_done_callback(lambda _: setattr(model_call, "ended", self.clock.now))
        self.calls.append(model_call)

    async def end(self, number: int, how: str) -> None:
        running = [invocation for invocation in self.invocations if invocation.how == "runs"]
        if running:
            invocation = running[number % len(running)]
            if not invocation.gate.done():
                invocation.gate.set_result(how)

    async def leave(self, number: int, why: str | None) -> None:
        waiting = [call for call in self.calls if not call.task.done()]
        if waiting:
            call = waiting[number % len(waiting)]
            call.left = True
            call.task.cancel(why)

    async def crash(self, replica: int) -> None:
        """Crash a process: none of its tasks acts any more, and another process takes its place."""
        runs, _ = self.replicas[replica]
        for invocation in self.invocations:
            if invocation.replica == replica and invocation.how == "runs":
                invocation.how, invocation.ended = "gone", self.clock.now
        for task in tuple(runs._tasks):
            task.cancel()
        for call in self.calls:
            if call.replica == replica and not call.task.done():
                call.left = True
                call.task.cancel()
        await run_ready()
        self.replicas[replica] = self._replica()

    async def pass_time(self, seconds: float) -> None:
        """Move the clock in small steps, so that leases are renewed as usual."""
        if seconds > 100:
            if any(not call.task.done() for call in self.calls):
                return
            if any(invocation.how == "runs" for invocation in self.invocations):
                return
            self.clock.now += seconds
            return
        for _ in range(int(seconds / STEP_S)):
            self.clock.now += STEP_S
            await run_ready(6)

    async def close(self) -> None:
        """End every task, also those that wait."""
        async with asyncio.timeout(WITHIN_S):
            while any(not call.task.done() for call in self.calls):
                await self.end(0, "answers")
                await self.pass_time(STEP_S)
            while any(runs._tasks for runs, _ in self.replicas):
                await self.end(0, "answers")
                await self.pass_time(STEP_S)
        await run_ready()  # when a call ended is noted a turn after its end

    def check(self) -> None:
        for number, invocation in enumerate(self.invocations):
            for later in self.invocations[number + 1 :]:
                if later.identity == invocation.identity:
                    assert self._may_follow(invocation, later), (invocation, later)
        for call in self.calls:
            if not call.left:
                self._explain(call)

    def _may_follow(self, invocation: Invocation, later: Invocation) -> bool:
        kind, repeatable = invocation.identity.kind, invocation.identity.tool == "put"
        if invocation.ended is None or later.begun < invocation.ended:
            return False
        if invocation.how == "free" or (invocation.how == "stopped" and repeatable):
            return True
        if invocation.how == "gone":
            lease_over = later.begun >= invocation.begun + execution.LEASE_S
            if repeatable:
                return lease_over
            counts_s = KEPT_S[kind] + (execution.LEASE_S if kind == "correlation" else 0)
            return lease_over and later.begun >= invocation.begun + counts_s
        return later.begun >= invocation.ended + KEPT_S[kind]

    def _explain(self, call: ModelCall) -> None:
        error = call.task.exception()
        if error is not None:
            assert isinstance(error, InputNeeded), error
            return
        outcome = call.task.result()
        related = [
            invocation for invocation in self.invocations if invocation.identity == call.identity
        ]
        same = [invocation for invocation in related if invocation.arguments == call.arguments]
        if outcome.failure is None or outcome.failure.kind != "conflict":
            text = outcome.failure.message if outcome.failure else outcome.content[0]["text"]
            invocation = self.invocations[int(text.removeprefix("#"))]
            assert invocation in same
            assert invocation.ended is not None
            assert invocation.ended <= call.ended
            assert (
                invocation.how == "free"
                or call.begun < invocation.ended + KEPT_S[call.identity.kind]
            )
        elif "other arguments" in outcome.failure.message:
            assert len(same) < len(related)
        elif "It is unknown" in outcome.failure.message:
            assert any(invocation.how == "gone" for invocation in same)
        else:
            assert "stopped" in outcome.failure.message
            assert any(invocation.how == "stopped" for invocation in same)


def _context(call: Call) -> CallContext:
    space = TenantWorkspace(-1, call.caller.tenant_id)
    return CallContext(caller=call.caller, request_id=call.request_id, workspace=space)


SMALL_NUMBERS = st.integers(0, 5)
CALLS = st.tuples(
    st.just("call"),
    st.integers(0, REPLICAS - 1),
    st.sampled_from(["act", "put"]),
    st.sampled_from(["idempotency", "correlation"]),
    st.just("k"),
    st.sampled_from(["a", "a", "b"]),
)
EVENTS = st.one_of(
    CALLS,
    CALLS,
    st.tuples(st.just("end"), SMALL_NUMBERS, st.sampled_from(["answers", "fails"])),
    st.tuples(st.just("end"), SMALL_NUMBERS, st.sampled_from(["answers", "fails", "away", "asks"])),
    st.tuples(st.just("leave"), SMALL_NUMBERS, st.sampled_from([None, StopCause.DISCONNECTED])),
    st.tuples(st.just("crash"), st.integers(0, REPLICAS - 1)),
    st.tuples(st.just("pass_time"), st.sampled_from([16.0, 64.0, 80.0, 86_400.0])),
)


async def run_events(events: list[tuple[Any, ...]]) -> None:
    deployment = ModelDeployment()
    for name, *arguments in events:
        await getattr(deployment, name)(*arguments)
        await run_ready()
    await deployment.close()
    deployment.check()


@given(st.lists(EVENTS, min_size=8, max_size=30))
def test_each_key_has_one_effect_for_any_sequence_of_events(events: list[tuple[Any, ...]]) -> None:
    """Every answer is that of the stored run, or says why there is none."""
    with pytest.MonkeyPatch.context() as patch, capture_logs():
        patch.setattr(execution, "POLL_S", 0)
        patch.setattr(execution, "RENEW_S", 0)
        asyncio.run(run_events(events))
