"""Tasks and time: what is over, what is late, and calls that wait for another's outcome."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from pydantic import BaseModel

from gatepost import CallContext, Pack
from gatepost.mcp import tool_calls
from gatepost.mcp.request import IDEMPOTENCY_KEY
from gatepost.mcp.tasks.store import TaskLimits
from tests.support.endpoint import EndpointTaskClient

pack = Pack("times")
ENDED_TASKS: list[str] = []


class ExpirySignal:
    """What lets the tool of this page finish; one for each test."""

    go = asyncio.Event()


class Consent(BaseModel):
    """A form with one field."""

    goes_on: bool


@pack.tool(task_support="optional", timeout_s=60)
async def ask(ctx: CallContext, at_once: bool) -> str:
    """Ask the user at once, or when the test says so."""
    try:
        if not at_once:
            await ExpirySignal.go.wait()
        await ctx.ask("Go on?", Consent)
    finally:
        ENDED_TASKS.append("ended")
    return "done"


@pack.tool(task_support="optional", timeout_s=60)
async def wait(ctx: CallContext) -> str:
    """Wait to be let go."""
    try:
        await ExpirySignal.go.wait()
    finally:
        ENDED_TASKS.append("ended")
    return "done"


@pack.tool(task_support="optional", timeout_s=0.05)
async def too_slow(ctx: CallContext) -> str:
    """Take longer than it may."""
    await ExpirySignal.go.wait()
    return "done"


@pytest.fixture
async def client() -> AsyncIterator[EndpointTaskClient]:
    ENDED_TASKS.clear()
    ExpirySignal.go = asyncio.Event()
    client = EndpointTaskClient(pack.tools.values(), task_limits=TaskLimits(ttl_s=100, lease_s=0.5))
    yield client
    await client.task_runner.aclose()


@pytest.mark.requirement("K-06")
async def test_k_06_a_task_has_its_creation_and_update_times(client: EndpointTaskClient) -> None:
    """Each visible change updates the second; durations are whole milliseconds."""
    task = await client.start("wait")
    client.clock.now += 7.25
    before = await client.get(task["taskId"])
    ExpirySignal.go.set()
    ended = await client.until(task["taskId"])

    assert before == task | {"resultType": "complete"}
    assert (ended["status"], ended["createdAt"]) == ("completed", task["createdAt"])
    assert task["createdAt"] == task["lastUpdatedAt"] == "2027-01-15T08:00:00.000Z"
    assert ended["lastUpdatedAt"] == "2027-01-15T08:00:07.250Z"
    assert (ended["ttlMs"], ended["pollIntervalMs"]) == (160_000, 1000)
    assert not {"ttl", "pollInterval", "task"} & ended.keys()


@pytest.mark.requirement("K-19")
async def test_k_19_a_task_that_still_runs_at_its_expiry_is_stopped(
    client: EndpointTaskClient,
) -> None:
    """The task fails, and its id is unknown from then on."""
    task = await client.start("wait")
    client.clock.now += task["ttlMs"] / 1000 + 1
    store = client.records.for_tenant("acme").tasks
    async with asyncio.timeout(20):
        while (record := await store.get(task["taskId"])) and record.status == "working":
            await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=0.02)

    assert record is not None
    assert (record.status, ENDED_TASKS) == ("failed", ["ended"])
    assert (await client.about("get", task["taskId"])).error == (400, -32602)


@pytest.mark.requirement("K-10", "CX-05")
async def test_k_10_a_tool_that_takes_too_long_is_stopped(client: EndpointTaskClient) -> None:
    """A task has no more time than its tool declares; the result says so."""
    task = await client.start("too_slow")
    ended = await client.until(task["taskId"])

    assert (ended["status"], ended["result"]["isError"]) == ("completed", True)
    assert "0.05 seconds" in ended["result"]["content"][0]["text"]


@pytest.mark.requirement("K-02")
async def test_k_02_a_retried_call_waits_as_a_task(
    client: EndpointTaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second call with the key is another task with the same result; the tool runs once."""
    monkeypatch.setattr(tool_calls, "UNSTARTED_S", 0.05)
    client.meta = {**client.meta, IDEMPOTENCY_KEY: "k1"}
    first, second = await client.start("wait"), await client.start("wait")
    ExpirySignal.go.set()
    results = [(await client.until(task["taskId"]))["result"] for task in (first, second)]

    assert first["taskId"] != second["taskId"]
    assert results[0] == results[1]
    assert ENDED_TASKS == ["ended"]


@pytest.mark.requirement("K-13")
async def test_k_13_a_task_with_an_idempotency_key_is_cancelled_too(
    client: EndpointTaskClient,
) -> None:
    """The tool is stopped, although the call could be repeated with its key."""
    client.meta = {**client.meta, IDEMPOTENCY_KEY: "k2"}
    task = await client.start("wait")
    await client.about("cancel", task["taskId"])

    assert (await client.until(task["taskId"]))["status"] == "cancelled"
    assert ENDED_TASKS == ["ended"]


@pytest.mark.requirement("K-13")
@pytest.mark.parametrize("at_once", [True, False], ids=["it has asked", "it asks later"])
async def test_a_tool_does_not_wait_forever_for_answers_to_a_cancelled_task(
    client: EndpointTaskClient, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """The tool runs on for a second call with the key, but no client can answer it."""
    monkeypatch.setattr(tool_calls, "UNSTARTED_S", 0.05)
    client.meta = {**client.meta, IDEMPOTENCY_KEY: "k3"}
    first = await client.start("ask", {"at_once": at_once})
    await client.until(first["taskId"], "input_required" if at_once else "working")
    second = await client.start("ask", {"at_once": at_once})
    await client.about("cancel", first["taskId"])
    await client.until(first["taskId"], "cancelled")
    ExpirySignal.go.set()

    ended = await client.until(second["taskId"])
    assert ended["result"]["isError"]
    assert "no client answers" in ended["result"]["content"][0]["text"]
    assert ENDED_TASKS == ["ended"]
