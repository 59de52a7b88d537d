"""2026-07-28 with tasks: a call that waits for an approval is a task until it ends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gatepost.mcp import tool_calls
from gatepost.mcp.tasks.store import TaskLimits
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.shared_store import MemorySharedStore
from gatepost.storage.tasks import TaskRecord
from tests.mcp.conftest import (
    MESSAGE,
    PAGE,
    DecisionStage,
    DetachableRecords,
    Paid,
    Request,
    Verdict,
    paying_pack,
    with_decision_stage,
)
from tests.support.endpoint import JSON, META, TASKS, VERSION, EndpointTaskClient, message

TASK_LIMITS = TaskLimits(lease_s=0.5)


class ApprovingTaskClient(EndpointTaskClient):
    """A client of tasks that opens pages, too."""

    meta = {
        META + "clientCapabilities": {"elicitation": {"url": {}}, "extensions": {TASKS: {}}},
    }


class TaskReplicas:
    """Two replicas with one stage, each with its own connection to the store."""

    def __init__(self, decision_stage: DecisionStage, kind: type[EndpointTaskClient]) -> None:
        records, shared_store = MemoryRecords(), MemorySharedStore()
        self.cables = [DetachableRecords(records), DetachableRecords(records)]
        self.first, self.second = (
            with_decision_stage(
                decision_stage,
                kind,
                records=cable,
                shared_store=shared_store,
                task_limits=TASK_LIMITS,
            )
            for cable in self.cables
        )

    async def crash(self) -> None:
        """Cut the first replica off until the other takes its tasks over, and exchange the two."""
        self.cables[0].cut = True
        for replica in (self.first, self.second):
            replica.clock.now += TASK_LIMITS.lease_s + 1
        await self.second.task_runner.sweep()
        self.cables[0].cut = False
        self.cables.reverse()
        self.first, self.second = self.second, self.first

    async def aclose(self) -> None:
        await self.second.task_runner.aclose()
        await self.first.task_runner.aclose()


@pytest.fixture(params=[EndpointTaskClient, ApprovingTaskClient])
async def server(
    request: pytest.FixtureRequest, decision_stage: DecisionStage
) -> AsyncIterator[TaskReplicas]:
    server = TaskReplicas(decision_stage, request.param)
    yield server
    await server.aclose()


def text(task: Any) -> str:
    return str(task["result"]["content"][0]["text"])


def can_show_page(client: EndpointTaskClient) -> bool:
    return isinstance(client, ApprovingTaskClient)


async def waiting_task(server: TaskReplicas, task_id: str) -> Any:
    """Return the task as soon as its status says what it waits for."""
    status = "input_required" if can_show_page(server.first) else "working"
    return await server.first.when(
        task_id, lambda t: t["status"] == status and t.get("statusMessage")
    )


VERDICTS: list[tuple[Verdict, str]] = [
    ("approved", "paid 1"),
    ("rejected", "It was rejected."),
    ("expired", "It was expired."),
]


@pytest.mark.requirement("A7", "A8", "K-02", "K-09")
@pytest.mark.parametrize(("verdict", "words"), VERDICTS)
async def test_a7_a_waiting_task_shows_its_approval_message(
    server: TaskReplicas, decision_stage: DecisionStage, verdict: Verdict, words: str
) -> None:
    """The status has the message; a client that opens pages gets the page, too."""
    task = await server.first.start("pay")
    state = await waiting_task(server, task["taskId"])
    (await decision_stage.only()).decide(verdict)
    ended = await server.second.until(task["taskId"])

    assert state["statusMessage"] == f"{MESSAGE} {PAGE}"
    if can_show_page(server.first):
        (request,) = state["inputRequests"].values()
        assert request["params"] == {"mode": "url", "message": MESSAGE, "url": PAGE}
    assert (ended["status"], text(ended)) == ("completed", words)
    assert "inputRequests" not in ended
    assert Paid.amounts == ([1] if verdict == "approved" else [])


@pytest.mark.requirement("A7")
@pytest.mark.parametrize(
    ("action", "ends"), [("accept", False), ("decline", True), ("cancel", True)]
)
async def test_a7_a_clients_answer_to_the_page_is_not_an_approval(
    decision_stage: DecisionStage, action: str, *, ends: bool
) -> None:
    """Accepting the page keeps the task waiting; declining it ends the task with a failure."""
    server = TaskReplicas(decision_stage, ApprovingTaskClient)
    task_id = (await server.first.start("pay"))["taskId"]
    (key,) = (await waiting_task(server, task_id))["inputRequests"]
    await server.second.answer(task_id, **{key: {"action": action}})
    if ends:
        ended = await server.first.until(task_id)
        assert ended["result"]["isError"]
        assert text(ended).startswith(f"{MESSAGE} {PAGE} Try again")
    else:
        answered = await server.first.until(task_id, "working")
        assert answered["statusMessage"] == f"{MESSAGE} {PAGE}"
    assert Paid.amounts == []
    (await decision_stage.only()).decide("approved")
    again = await server.first.call_with("pay") if ends else await server.first.until(task_id)

    assert "paid 1" in str(again if not ends else again.body)
    await server.aclose()


@pytest.mark.requirement("K-07", "A7")
async def test_a7_a_waiting_task_survives_its_servers(
    server: TaskReplicas, decision_stage: DecisionStage
) -> None:
    """Its tool has not started, so another replica takes it up, any number of times."""
    task_id = (await server.first.start("pay"))["taskId"]
    await waiting_task(server, task_id)
    request = await decision_stage.only()
    for _ in range(5):
        await server.crash()
        await wait_for_record(server, task_id, lambda record: b'"unstarted":true' in record.call)
    await request.watched_by(1)
    request.decide("approved")
    ended = await server.first.until(task_id)

    assert (ended["status"], text(ended)) == ("completed", "paid 1")
    assert Paid.amounts == [1]


@pytest.mark.requirement("K-07", "K-10", "A7")
@pytest.mark.parametrize("taken_up", [True, False])
async def test_a7_an_approved_task_that_has_begun_does_not_run_again(
    server: TaskReplicas, decision_stage: DecisionStage, *, taken_up: bool
) -> None:
    """If its server stops while it pays, the task fails and says that the effect is unknown."""
    task_id = (await server.first.start("pay_slowly"))["taskId"]
    await waiting_task(server, task_id)
    request = await decision_stage.only()
    if taken_up:
        request.verdict = "approved"  # no notification: the runner that takes the task up finds it
        await server.crash()
    else:
        request.decide("approved")
    await asyncio.wait_for(Paid.begun.wait(), 20)
    await server.crash()
    ended = await server.first.until(task_id)

    assert (ended["status"], Paid.amounts) == ("failed", [1])
    assert "whether it took effect is unknown" in ended["statusMessage"]


@pytest.mark.requirement("K-13", "A7")
async def test_k_13_a_cancelled_task_does_not_begin(
    server: TaskReplicas, decision_stage: DecisionStage
) -> None:
    """The caller was told of the cancellation before the request was approved."""
    task_id = (await server.first.start("pay"))["taskId"]
    await waiting_task(server, task_id)
    await server.second.about("cancel", task_id)
    (await decision_stage.only()).decide("approved")

    assert (await server.first.until(task_id))["status"] == "cancelled"
    assert Paid.amounts == []


@pytest.mark.requirement("A7")
async def test_a7_a_task_is_kept_for_as_long_as_a_person_takes(
    server: TaskReplicas, decision_stage: DecisionStage
) -> None:
    """The decision may come long after the task's own lifetime."""
    task_id = (await server.first.start("pay"))["taskId"]
    state = await waiting_task(server, task_id)
    for _ in range(5):
        for replica in (server.first, server.second):
            replica.clock.now += state["ttlMs"] / 1000 * 0.8
        record = await server.first.records.for_tenant("acme").tasks.get(task_id)
        assert record is not None
        before = record.expires_at
        await wait_for_record(server, task_id, lambda now, before=before: now.expires_at > before)
    (await decision_stage.only()).decide("approved")

    assert text(await server.first.until(task_id)) == "paid 1"


async def wait_for_record(
    server: TaskReplicas, task_id: str, condition: Callable[[TaskRecord], object]
) -> None:
    """Return once *condition* holds for the record."""
    async with asyncio.timeout(20):
        record = None
        while record is None or not condition(record):
            record = await server.first.records.for_tenant("acme").tasks.get(task_id)
            await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=0.01)


@pytest.mark.requirement("K-01", "K-02")
async def test_k_01_tasks_are_declared_if_a_tool_may_need_approval(
    decision_stage: DecisionStage,
) -> None:
    """No tool has to support tasks itself; an approved call does not become one."""
    asks, asks_not = (
        with_decision_stage(decision_stage, EndpointTaskClient),
        EndpointTaskClient(paying_pack.tools.values()),
    )
    for client, declared in ((asks, True), (asks_not, False)):
        discovered = (await client.ask("server/discover")).json["result"]
        assert (TASKS in discovered["capabilities"]["extensions"]) is declared
    (request := Request(PAGE)).decide("approved")
    decision_stage.requests[b"{}"] = request

    assert (await asks.call_with("pay")).json["result"]["resultType"] == "complete"


@pytest.mark.requirement("K-02")
async def test_k_02_a_long_approved_call_of_a_plain_tool_is_no_task(
    decision_stage: DecisionStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only waiting for a decision turns such a call into a task."""
    monkeypatch.setattr(tool_calls, "UNSTARTED_S", 0.0)
    client = with_decision_stage(decision_stage, EndpointTaskClient)
    (request := Request(PAGE)).decide("approved")
    decision_stage.requests[b"{}"] = request
    work = asyncio.create_task(client.call_with("pay_slowly"))
    await asyncio.wait_for(Paid.begun.wait(), 20)
    Paid.go_on.set()

    assert (await work).json["result"]["resultType"] == "complete"


@pytest.mark.requirement("A7", "T-11")
async def test_t_11_a_disconnect_before_the_task_is_stored_leaves_no_task(
    decision_stage: DecisionStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The approval request stays for the next call."""
    client = with_decision_stage(decision_stage, EndpointTaskClient)

    async def create(*args: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(client.task_runner.task_store, "create", create)
    hang_up = asyncio.Event()
    params = {"name": "pay", "arguments": {}, "_meta": meta_of(client)}
    headers = [("mcp-protocol-version", VERSION), ("mcp-method", "tools/call"), ("mcp-name", "pay")]
    body = message("tools/call", params)
    work = asyncio.create_task(client.send(body, [JSON, *headers], hang_up=hang_up))
    await decision_stage.only()
    hang_up.set()

    assert (await asyncio.wait_for(work, 5)).status == 0
    (await decision_stage.only()).decide("approved")
    assert Paid.amounts == []


def meta_of(client: EndpointTaskClient) -> dict[str, Any]:
    return {META + "protocolVersion": VERSION, **client.meta}
