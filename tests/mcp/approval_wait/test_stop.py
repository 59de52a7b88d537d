"""A stop wakes calls that wait for an approval at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gatepost.mcp import client as mcp_client
from tests.mcp.approval_wait.test_tasks import ApprovingTaskClient, TaskReplicas, waiting_task
from tests.mcp.approval_wait.test_url_elicitation import ACCEPT_ANSWER, PAGES, answer_of
from tests.mcp.conftest import MESSAGE, PAGE, DecisionStage, Paid, with_decision_stage
from tests.support.client_requests import call_with_responses
from tests.support.endpoint import META, EndpointClient, EndpointTaskClient, message
from tests.support.endpoint_clients import EndpointPair

WITHIN_S = 20
HOUR_S = 3600.0
CALL = message("tools/call", {"name": "pay", "arguments": {}})

Calling = tuple[EndpointClient, Awaitable[Any]]
"""Where a call waits, and its result, once it has one."""


@pytest.fixture(autouse=True)
def rare_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make polls so rare that only a decision or the stop wakes a waiting call."""
    monkeypatch.setattr(mcp_client, "KEEP_ALIVE_S", HOUR_S)
    monkeypatch.setattr(mcp_client, "HOLD_S", HOUR_S)


async def without_progress(decision_stage: DecisionStage) -> Calling:
    client = with_decision_stage(decision_stage, EndpointClient)
    return client, _pay_answer(client, {})


async def with_progress(decision_stage: DecisionStage) -> Calling:
    client = with_decision_stage(decision_stage, EndpointClient)
    return client, _pay_answer(client, {}, meta={"progressToken": "p"})


async def without_events(decision_stage: DecisionStage) -> Calling:
    client = with_decision_stage(decision_stage, EndpointClient)
    params = {"name": "pay", "arguments": {}}
    declared = {META + "clientCapabilities": {}}

    async def ask() -> Any:
        answer = await client.ask("tools/call", params, meta=declared, accept="application/json")
        return answer_of(answer)

    return client, ask()


async def second_round(decision_stage: DecisionStage) -> Calling:
    client = with_decision_stage(decision_stage, EndpointClient)
    first = answer_of(await call_with_responses(client, "pay", capabilities=PAGES))
    (key,) = first["inputRequests"]
    more = {"inputResponses": {key: ACCEPT_ANSWER}, "requestState": first["requestState"]}
    return client, _pay_answer(client, PAGES, **more)


async def _pay_answer(client: EndpointClient, capabilities: Any, **more: Any) -> Any:
    return answer_of(await call_with_responses(client, "pay", capabilities=capabilities, **more))


def in_session(version: str, **declared: Any) -> Callable[[DecisionStage], Awaitable[Calling]]:
    async def begin(decision_stage: DecisionStage) -> Calling:
        pair = await with_decision_stage(decision_stage, EndpointPair, version=version).open(
            **declared
        )
        live = pair.post(pair.one, CALL)

        async def last() -> Any:
            return (await live.rest())[-1]["result"]

        return pair.one, last()

    return begin


def alone(batch: bool) -> Callable[[DecisionStage], Awaitable[Calling]]:
    async def begin(decision_stage: DecisionStage) -> Calling:
        pair = await with_decision_stage(decision_stage, EndpointPair, version="2025-03-26").open()
        body = b"[" + CALL + b"]" if batch else CALL
        accept = ("accept", "application/json")

        async def ask() -> Any:
            answer = (await pair.one.within(pair.session, body, accept)).json
            return (answer[0] if batch else answer)["result"]

        return pair.one, ask()

    return begin


WAYS_TO_CALL = {
    "2026-07-28": without_progress,
    "2026-07-28, told of progress": with_progress,
    "2026-07-28, no stream": without_events,
    "2026-07-28, second round": second_round,
    "2025-11-25, shown the page": in_session("2025-11-25", **PAGES),
    "2025-11-25": in_session("2025-11-25"),
    "2025-06-18": in_session("2025-06-18"),
    "2025-03-26": in_session("2025-03-26"),
    "2025-03-26, no stream": alone(batch=False),
    "2025-03-26, batch": alone(batch=True),
}


@pytest.mark.requirement("A7", "N23")
@pytest.mark.parametrize("way", WAYS_TO_CALL)
async def test_a7_a_stop_answers_every_waiting_call(
    decision_stage: DecisionStage, way: str
) -> None:
    """The answer says that nothing ran, where to look and when to retry; the request stays."""
    client, result = await WAYS_TO_CALL[way](decision_stage)
    call = asyncio.ensure_future(result)
    request = await decision_stage.only()
    await request.watched_by(1)
    client.streams.close()
    async with asyncio.timeout(WITHIN_S):
        answer = await call

    assert answer["isError"]
    assert answer["content"][0]["text"].startswith(f"{MESSAGE} {PAGE} Try again in 7 seconds.")
    assert (Paid.amounts, request.watchers, request.verdict) == ([], 0, None)


@pytest.mark.requirement("A7", "N23")
@pytest.mark.parametrize("way", WAYS_TO_CALL)
@pytest.mark.parametrize("when", ["before", "together", "unheard"])
async def test_a7_a_decision_during_a_stop_counts(
    decision_stage: DecisionStage, way: str, when: str
) -> None:
    """A call that got the decision runs; otherwise the next call finds the decision."""
    client, result = await WAYS_TO_CALL[way](decision_stage)
    call = asyncio.ensure_future(result)
    request = await decision_stage.only()
    await request.watched_by(1)
    if when != "unheard":
        request.decide("approved")
    if when == "before":
        await request.watched_by(0)
    request.verdict = "approved"
    client.streams.close()
    async with asyncio.timeout(WITHIN_S):
        answer = await call
        ends_here = not answer.get("isError")
        again = answer if ends_here else answer_of(await call_with_responses(client, "pay"))

    assert when == "together" or ends_here is (when == "before")
    assert again["content"][0]["text"] == "paid 1"
    assert Paid.amounts == [1]


async def wait_until_released(client: EndpointTaskClient, task_id: str) -> None:
    """Return once no process has the task."""
    tasks = client.records.for_tenant("acme").tasks
    async with asyncio.timeout(WITHIN_S):
        while (record := await tasks.get(task_id)) is None or record.runner:
            await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=0.01)


@pytest.mark.requirement("A7", "K-07", "N23")
@pytest.mark.parametrize("kind", [EndpointTaskClient, ApprovingTaskClient])
@pytest.mark.parametrize("late", [True, False])
async def test_a7_a_stop_hands_over_waiting_tasks(
    decision_stage: DecisionStage, kind: type[EndpointTaskClient], *, late: bool
) -> None:
    """This holds for any drain time, and for tasks that begin to wait during the drain."""
    server = TaskReplicas(decision_stage, kind)
    if late:
        server.first.task_runner.drain(HOUR_S)
    task_id = (await server.first.start("pay"))["taskId"]
    if not late:
        await waiting_task(server, task_id)
        server.first.task_runner.drain(HOUR_S)
    await wait_until_released(server.first, task_id)
    await server.first.task_runner.sweep()
    async with asyncio.timeout(WITHIN_S):
        await server.first.task_runner.aclose()
    await server.second.task_runner.sweep()
    await (await decision_stage.only()).watched_by(1)
    (await decision_stage.only()).decide("approved")
    ended = await server.second.until(task_id)

    assert (ended["status"], Paid.amounts) == ("completed", [1])
    await server.second.task_runner.aclose()


@pytest.mark.requirement("A7", "K-07", "N23")
async def test_a7_an_approved_task_may_finish_within_the_drain_time(
    decision_stage: DecisionStage,
) -> None:
    """It has started, so it ends here like any other work."""
    server = TaskReplicas(decision_stage, EndpointTaskClient)
    task_id = (await server.first.start("pay_slowly"))["taskId"]
    await waiting_task(server, task_id)
    (await decision_stage.only()).decide("approved")
    await asyncio.wait_for(Paid.begun.wait(), WITHIN_S)
    server.first.task_runner.drain(HOUR_S)
    Paid.go_on.set()
    async with asyncio.timeout(WITHIN_S):
        await server.first.task_runner.aclose()

    assert (await server.second.get(task_id))["status"] == "completed"
    assert Paid.amounts == [1]
