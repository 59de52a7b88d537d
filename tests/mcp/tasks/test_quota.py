"""What tasks keep for their callers is bounded, and what comes of it is told (K-07, P12)."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from gatepost import CallContext, Pack
from gatepost.storage.stored_bytes import ROW_BYTES
from tests.support import client_requests
from tests.support.endpoint import EndpointTaskClient, a_caller

MAX_BYTES = 100_000
pack = Pack("hoarding")


@pack.tool(task_support="required")
async def hoard(ctx: CallContext, size: int, note: str = "") -> str:
    """Answer so many characters."""
    return "x" * size


@pytest.fixture
async def client() -> AsyncIterator[EndpointTaskClient]:
    """Yield a client whose caller may store 100 kB."""
    tools = [*pack.tools.values(), *client_requests.task_pack.tools.values()]
    client = EndpointTaskClient(tools)
    limits = SimpleNamespace(stored_bytes=MAX_BYTES, tenant=SimpleNamespace(stored_bytes=0))
    client.task_runner.task_store.quota.apply(limits)
    yield client
    await client.task_runner.aclose()


async def stored_bytes(client: EndpointTaskClient) -> int:
    owner = a_caller().principal_digest
    return (await client.records.for_tenant("acme").usage(owner, client.clock.now)).bytes


def refusal(body: Any) -> tuple[int, str, bool]:
    error = body["error"]
    return error["code"], error["data"]["limit"], error["data"]["retryAfter"] > 0


async def test_tasks_of_one_caller_have_a_quota(client: EndpointTaskClient) -> None:
    """Results count as long as they can be looked at; beyond them -32000 says whose quota it is."""
    while (started := await client.call_with("hoard", {"size": 20_000})).json.get("result"):
        await client.until(started.json["result"]["taskId"])

    assert started.status == 200
    assert refusal(started.json) == (-32000, "caller", True)
    assert "limits.stored_bytes" in started.json["error"]["message"]
    assert MAX_BYTES - 21_000 - 2 * ROW_BYTES < await stored_bytes(client) <= MAX_BYTES
    client.caller = a_caller(subject="bob")
    assert "result" in (await client.call_with("hoard", {"size": 20_000})).json


async def test_a_task_fails_if_its_result_exceeds_the_quota(client: EndpointTaskClient) -> None:
    """The error says that the work was done, so that the agent does not repeat it."""
    task = await client.start("hoard", {"size": MAX_BYTES})
    ended = await client.until(task["taskId"])

    assert ended["status"] == "failed"
    assert "was carried out" in ended["error"]["message"]
    assert await stored_bytes(client) < 2 * ROW_BYTES


async def test_answers_to_a_task_count_against_the_quota(client: EndpointTaskClient) -> None:
    """They are kept until the task ends."""
    task = await client.start("multi_input")
    state = await client.until(task["taskId"], "input_required")
    key = next(iter(state["inputRequests"]))
    large = {"action": "accept", "content": {"name": "n" * MAX_BYTES}}
    answer = await client.answer(task["taskId"], **{key: large})

    assert refusal(answer.json) == (-32000, "caller", True)
    assert await stored_bytes(client) < 5 * ROW_BYTES


async def test_arguments_of_a_running_task_count_against_the_quota(
    client: EndpointTaskClient,
) -> None:
    """They are kept for a second run, and removed when the task ends."""
    note = {"size": 0, "note": "n" * (MAX_BYTES // 2)}
    for _ in range(4):
        await client.until((await client.start("hoard", note))["taskId"])
    refused = await client.call_with("hoard", {"size": 0, "note": "n" * MAX_BYTES})

    assert refusal(refused.json) == (-32000, "caller", True)
    assert await stored_bytes(client) < 8 * ROW_BYTES
