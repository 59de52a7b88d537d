"""Tasks at several replicas: any of them answers, and what one leaves behind another takes up."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from gatepost import CallContext, Pack
from gatepost.mcp.tasks.store import TaskLimits
from gatepost.storage.commit import CommitFuture
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.shared_store import MemorySharedStore
from gatepost.tools.offers.offer import Call
from tests.mcp.conftest import DetachableRecords
from tests.support import client_requests
from tests.support.client_requests import TaskConfirmation, accepted_form
from tests.support.endpoint import EndpointTaskClient

pack = Pack("replicas")

TASK_LIMITS = TaskLimits(lease_s=0.5)
"""A record is looked at every twentieth of a second; leases end when a test moves the clock."""


class Runs:
    """Every run of a tool of this page, in its order, with the event that lets it finish."""

    begun: asyncio.Queue[asyncio.Event] = asyncio.Queue()


async def run() -> None:
    """Be one run: begin, and wait to be let go."""
    go_on = asyncio.Event()
    await Runs.begun.put(go_on)
    await go_on.wait()


async def next_run() -> asyncio.Event:
    return await asyncio.wait_for(Runs.begun.get(), 5)


@pack.tool(task_support="optional", read_only=True, timeout_s=60)
async def look_up(ctx: CallContext) -> str:
    """Change nothing."""
    await run()
    return "looked up"


@pack.tool(task_support="optional", idempotent=True, timeout_s=60)
async def set_once(ctx: CallContext) -> str:
    """Set something, again if need be."""
    await run()
    return "set"


@pack.tool(task_support="optional", timeout_s=60)
async def pay(ctx: CallContext) -> str:
    """Pay; twice would be too often."""
    await run()
    return "paid"


@pack.tool(task_support="optional", read_only=True, timeout_s=60)
async def ask_twice(ctx: CallContext) -> str:
    """Ask one thing, and then another."""
    first = await ctx.ask("The first?", TaskConfirmation, key="first")
    await run()
    second = await ctx.ask("The second?", TaskConfirmation, key="second")
    return f"{first.action} {second.action}"


TOOLS = [*client_requests.task_pack.tools.values(), *pack.tools.values()]


class SharedTaskReplicas:
    """
    Two replicas over one store and one shared store; the first one's cable to the store can be cut.
    """

    def __init__(self) -> None:
        Runs.begun = asyncio.Queue()
        self.records = MemoryRecords()
        self.cable = DetachableRecords(self.records)
        shared_store = MemorySharedStore()
        self.first = EndpointTaskClient(
            TOOLS, records=self.cable, shared_store=shared_store, task_limits=TASK_LIMITS
        )
        self.second = EndpointTaskClient(
            TOOLS, records=self.records, shared_store=shared_store, task_limits=TASK_LIMITS
        )

    def time_passes(self, seconds: float) -> None:
        """Move the clocks of both replicas."""
        for replica in (self.first, self.second):
            replica.clock.now += seconds

    def crash(self) -> None:
        """Cut the first replica off for longer than its leases last."""
        self.cable.cut = True
        self.time_passes(TASK_LIMITS.lease_s + 1)

    async def keep(self, task_id: str, **changes: Any) -> None:
        """Change a record without a notification."""
        tasks = self.records.of("acme").tasks
        record = await tasks.get(task_id)
        assert record is not None
        assert await tasks.replace(msgspec.structs.replace(record, **changes))

    async def aclose(self) -> None:
        self.cable.cut = False
        await self.second.task_runner.aclose()
        await self.first.task_runner.aclose()


class EndedCalls:
    """Hears where the calls of a replica came from."""

    refusing = False

    def __init__(self) -> None:
        self.peers: list[str] = []

    def record_end(self, call: Call, *rest: object) -> CommitFuture:
        """Keep the address of the caller; the commit has ended already."""
        self.peers.append(call.peer)
        commit = CommitFuture()
        commit.resolve()
        return commit


@pytest.fixture
async def replicas() -> AsyncIterator[SharedTaskReplicas]:
    replicas = SharedTaskReplicas()
    yield replicas
    await replicas.aclose()


@pytest.mark.requirement("K-07", "K-09", "J-13")
async def test_k_07_any_replica_shows_a_task(replicas: SharedTaskReplicas) -> None:
    """While it runs and when it has ended, all see the same."""
    task = await replicas.first.start("look_up")
    (await next_run()).set()
    ended = await replicas.first.until(task["taskId"])

    assert ended["status"] == "completed"
    assert await replicas.second.get(task["taskId"]) == ended


@pytest.mark.requirement("K-13", "K-12")
@pytest.mark.parametrize("connected", [True, False])
async def test_k_13_answers_and_cancellations_arrive_where_the_task_runs(
    replicas: SharedTaskReplicas, connected: bool
) -> None:
    """They arrive over the shared store at once, or else when the replica next reads the record."""
    if not connected:
        replicas.second = EndpointTaskClient(
            TOOLS,
            records=replicas.records,
            shared_store=MemorySharedStore(),
            task_limits=TASK_LIMITS,
        )
    asking = await replicas.first.start("confirm_delete", {"filename": "a"})
    requests = (await replicas.first.until(asking["taskId"], "input_required"))["inputRequests"]
    answers = {key: accepted_form(confirm=True) for key in requests}
    await replicas.second.answer(asking["taskId"], **answers)
    running = await replicas.first.start("pay")
    await replicas.second.about("cancel", running["taskId"])

    assert (await replicas.first.until(asking["taskId"]))["status"] == "completed"
    assert (await replicas.first.until(running["taskId"]))["status"] == "cancelled"


@pytest.mark.parametrize("tool", ["look_up", "set_once"])
async def test_a_repeatable_task_runs_at_another_replica(
    replicas: SharedTaskReplicas, tool: str
) -> None:
    """The replica uses the stored call; the client sees only a result."""
    task = await replicas.first.start(tool)
    await next_run()
    replicas.crash()
    await replicas.second.task_runner.sweep()
    (await next_run()).set()

    assert (await replicas.second.until(task["taskId"]))["status"] == "completed"


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_second_run_records_the_address_of_the_original_caller(
    replicas: SharedTaskReplicas, is_kept: bool
) -> None:
    """If `peers` is off, the stored call has no address."""
    heard = EndedCalls()
    replicas.second.runner.recorder = heard
    replicas.first.task_runner.task_store.limits = msgspec.structs.replace(
        TASK_LIMITS, peers=is_kept
    )
    replicas.first.scope = {"client": ("203.0.113.9", 0)}
    task = await replicas.first.start("look_up")
    await next_run()
    record = await replicas.records.of("acme").tasks.get(task["taskId"])
    replicas.crash()
    await replicas.second.task_runner.sweep()
    (await next_run()).set()
    await replicas.second.until(task["taskId"])

    assert record is not None
    assert (b"203.0.113.9" in record.call) is is_kept
    assert heard.peers == ["203.0.113.9" if is_kept else ""]


@pytest.mark.requirement("K-10", "K-16")
async def test_an_unrepeatable_task_has_an_unknown_effect(replicas: SharedTaskReplicas) -> None:
    """The tool does not run a second time."""
    task = await replicas.first.start("pay")
    await next_run()
    replicas.crash()
    await replicas.second.task_runner.sweep()
    ended = await replicas.second.get(task["taskId"])

    assert (ended["status"], ended["error"]["code"]) == ("failed", -32603)
    assert "whether it took effect is unknown" in ended["statusMessage"]
    assert Runs.begun.empty()


async def test_a_renewed_lease_keeps_other_replicas_away(replicas: SharedTaskReplicas) -> None:
    """No replica takes up a task that runs at another, however often it sweeps."""
    task = await replicas.first.start("look_up")
    go_on = await next_run()
    for _ in range(5):
        replicas.time_passes(TASK_LIMITS.lease_s * 0.8)
        before = await replicas.records.of("acme").tasks.get(task["taskId"])
        assert before is not None
        moved = asyncio.get_running_loop().create_future()
        await asyncio.wait({moved}, timeout=TASK_LIMITS.lease_s / 5)
        await replicas.second.task_runner.sweep()

    assert Runs.begun.empty()
    go_on.set()
    assert (await replicas.first.until(task["taskId"]))["status"] == "completed"


async def test_a_replica_without_its_task_stores_no_result(replicas: SharedTaskReplicas) -> None:
    """The result is that of the replica that took the task over."""
    task = await replicas.first.start("look_up")
    late = await next_run()
    replicas.crash()
    await replicas.second.task_runner.sweep()
    go_on = await next_run()
    late.set()
    replicas.cable.cut = False
    await replicas.first.pubsub.of("acme").moved(task["taskId"])
    await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=0.2)

    assert (await replicas.second.get(task["taskId"]))["status"] == "working"
    go_on.set()
    assert (await replicas.second.until(task["taskId"]))["status"] == "completed"


async def test_a_task_is_started_at_most_three_times(replicas: SharedTaskReplicas) -> None:
    """A call that stops every server that runs it must not stop them all."""
    task = await replicas.first.start("look_up")
    await next_run()
    for _ in range(2):
        await replicas.keep(task["taskId"], leased_until=0.0, runner="gone")
        await replicas.second.task_runner.sweep()
        await next_run()
    await replicas.keep(task["taskId"], leased_until=0.0, runner="gone")
    await replicas.second.task_runner.sweep()

    ended = await replicas.second.get(task["taskId"])
    assert (ended["status"], Runs.begun.empty()) == ("failed", True)
    assert "stopped, 3 times" in ended["statusMessage"]


TASK_ENDINGS: list[tuple[dict[str, Any], str, str]] = [
    ({"cancelled": True}, "cancelled", "Cancelled by its client."),
    ({"tool": "gone"}, "failed", "The tool is no longer available."),
    ({"call": b"[]"}, "failed", "The server that ran the call stopped"),
]


@pytest.mark.parametrize(("changes", "status", "words"), TASK_ENDINGS)
async def test_a_task_that_no_process_can_run_ends(
    replicas: SharedTaskReplicas, changes: dict[str, Any], status: str, words: str
) -> None:
    """Cancelled while its server was gone, of a tool that is gone, or of another release."""
    task = await replicas.first.start("look_up")
    await next_run()
    replicas.crash()
    await replicas.keep(task["taskId"], **changes)
    await replicas.second.task_runner.sweep()
    record = await replicas.records.of("acme").tasks.get(task["taskId"])

    assert record is not None
    assert (record.status, Runs.begun.empty()) == (status, True)
    assert str(record.status_message).startswith(words)


async def test_a_suspended_tenants_tasks_are_not_run_again(replicas: SharedTaskReplicas) -> None:
    """No replica runs a task of a suspended tenant."""
    task = await replicas.first.start("look_up")
    await next_run()
    replicas.crash()
    replicas.second.task_runner.is_out = lambda caller: caller.tenant_id == "acme"
    await replicas.second.task_runner.sweep()
    record = await replicas.records.of("acme").tasks.get(task["taskId"])

    assert record is not None
    assert (record.status, record.status_message) == ("failed", "The caller's access was revoked.")


@pytest.mark.requirement("K-11", "K-12")
async def test_k_11_a_second_run_does_not_repeat_answered_input_requests(
    replicas: SharedTaskReplicas,
) -> None:
    """It reuses the stored answers and asks new questions with new keys."""
    task = await replicas.first.start("ask_twice")
    await replicas.first.until(task["taskId"], "input_required")
    await replicas.first.answer(task["taskId"], first=accepted_form(confirm=True))
    (await next_run()).set()
    await replicas.first.until(task["taskId"], "input_required")
    replicas.crash()
    await replicas.second.task_runner.sweep()
    (await next_run()).set()
    again = await replicas.second.when(
        task["taskId"], lambda t: "second-2" in t.get("inputRequests", {})
    )
    stale = {"second": accepted_form(confirm=True), "first": {"action": "decline"}}
    await replicas.second.answer(task["taskId"], **stale)
    unmoved = await replicas.second.get(task["taskId"])
    await replicas.second.answer(task["taskId"], **{"second-2": {"action": "cancel"}})

    assert [*again["inputRequests"]] == [*unmoved["inputRequests"]] == ["second-2"]
    ended = await replicas.second.until(task["taskId"])
    assert ended["result"]["content"][0]["text"] == "accept cancel"


async def test_a_server_that_stops_hands_its_tasks_over(replicas: SharedTaskReplicas) -> None:
    """
    Other replicas take them up at once, before the leases end; a task that ends in the drain ends
    here.
    """
    quick, long = await replicas.first.start("look_up"), await replicas.first.start("set_once")
    (await next_run()).set()
    await next_run()
    replicas.first.task_runner.drain(0.05)
    await replicas.first.task_runner.aclose()
    assert (await replicas.second.get(quick["taskId"]))["status"] == "completed"
    assert (await replicas.second.get(long["taskId"]))["status"] == "working"
    await replicas.second.task_runner.sweep()
    (await next_run()).set()

    assert (await replicas.second.until(long["taskId"]))["status"] == "completed"


async def test_one_replica_takes_up_an_abandoned_task(replicas: SharedTaskReplicas) -> None:
    """This holds even if many find the task at the same moment."""
    task = await replicas.first.start("look_up")
    await next_run()
    replicas.crash()
    others = [
        EndpointTaskClient(
            TOOLS, records=replicas.records, shared_store=replicas.second.shared_store
        )
        for _ in range(4)
    ]
    for other in others:
        other.clock.now = replicas.second.clock.now
    await asyncio.gather(*(other.task_runner.sweep() for other in others))
    (await next_run()).set()

    assert (await replicas.second.until(task["taskId"]))["status"] == "completed"
    assert Runs.begun.empty()
    for other in others:
        await other.task_runner.aclose()


async def test_a_result_is_stored_after_a_store_outage(replicas: SharedTaskReplicas) -> None:
    """The result is stored once the store is back."""
    task = await replicas.first.start("pay")
    go_on = await next_run()
    replicas.cable.cut = True
    go_on.set()
    await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=0.1)
    assert (await replicas.second.get(task["taskId"]))["status"] == "working"
    replicas.cable.cut = False

    assert (await replicas.second.until(task["taskId"]))["status"] == "completed"


@pytest.mark.requirement("K-07")
async def test_k_07_without_the_store_no_call_begins(replicas: SharedTaskReplicas) -> None:
    """503 and not a task; the tool has not run."""
    replicas.cable.cut = True
    response = await replicas.first.call_with("pay")

    assert response.error == (503, -32603)
    assert Runs.begun.empty()
