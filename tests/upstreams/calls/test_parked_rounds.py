"""The later rounds of a parked call: progress, clients that leave, and tasks instead."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from gatepost.secrets.keyring import KeyRing
from gatepost.storage.shared_store import SharedStore
from gatepost.upstreams.connection import UpstreamResult
from tests.support.client_requests import (
    ALL_CAPABILITIES,
    accepted_form,
    call_with_responses,
    next_round,
    result_text,
)
from tests.support.endpoint import META, Response
from tests.upstreams.calls.test_calls import (
    Exchanged,
    ScriptedUpstreamCalls,
    UpstreamGate,
    asks_once,
    form,
    key_of,
    offered_tool,
    text_result,
)

TOOL = "mcp_crm__act"
CHECK = "check before you call again"


async def test_progress_comes_from_the_replica_that_holds_the_call(
    shared_store: SharedStore,
) -> None:
    async def works(exchange: Exchanged) -> UpstreamResult:
        await exchange.ask("elicitation/create", form())
        for progress in (1, 2):
            exchange.tell("notifications/progress", progress=progress, total=2)
        return text_result("done")

    upstream, keyring = ScriptedUpstreamCalls(works, era="session"), KeyRing.ephemeral()
    here, remote = (
        UpstreamGate(upstream, shared_store=shared_store, keyring=keyring) for _ in range(2)
    )
    first = await call_with_responses(here.client, TOOL)
    second = await call_with_responses(
        remote.client,
        TOOL,
        inputResponses={key_of(first): accepted_form(ok=True)},
        requestState=first.json["result"]["requestState"],
        meta={"progressToken": "p"},
    )

    *progress_events, last = second.events
    assert [event["params"]["progress"] for event in progress_events] == [1, 2]
    assert last["result"]["content"][0]["text"] == "done"
    for gate in (here, remote):
        await gate.calls.aclose()


async def test_the_end_of_a_callers_access_cancels_its_parked_calls() -> None:
    upstream = ScriptedUpstreamCalls(asks_once, era="session")
    gate = UpstreamGate(upstream)
    first = await call_with_responses(gate.client, TOOL)

    gate.calls.parked.end(lambda caller: caller.subject == "alice")
    await asyncio.wait_for(upstream.ended.wait(), 20)
    second = await next_round(gate.client, TOOL, first, {key_of(first): accepted_form(ok=True)})

    assert upstream.exchanges[0].cancelled
    assert CHECK in result_text(second)


async def asks_and_hangs(exchange: Exchanged) -> None:
    await exchange.ask("elicitation/create", form())
    exchange.tell("notifications/progress", progress=1)
    await asyncio.Event().wait()


def second_round(first: Response) -> bytes:
    """Return the body of the round that answers the first one."""
    request_meta = {
        META + "protocolVersion": "2026-07-28",
        META + "clientCapabilities": ALL_CAPABILITIES,
        "progressToken": "p",
    }
    params = {
        "name": TOOL,
        "arguments": {},
        "inputResponses": {key_of(first): accepted_form(ok=True)},
        "requestState": first.json["result"]["requestState"],
        "_meta": request_meta,
    }
    call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    return json.dumps(call).encode()


HEADERS = [
    ("content-type", "application/json"),
    ("mcp-protocol-version", "2026-07-28"),
    ("mcp-method", "tools/call"),
    ("mcp-name", TOOL),
]


@pytest.mark.parametrize("at", [0, 1])
async def test_a_round_that_is_given_up_cancels_the_call(
    shared_store: SharedStore, at: int
) -> None:
    """The replica that holds the call can give it up, and so can another one."""
    upstream, keyring = ScriptedUpstreamCalls(asks_and_hangs, era="session"), KeyRing.ephemeral()
    gates = [UpstreamGate(upstream, shared_store=shared_store, keyring=keyring) for _ in range(2)]
    first = await call_with_responses(gates[0].client, TOOL)

    leaves, hears = asyncio.Event(), asyncio.Event()
    sending = asyncio.create_task(
        gates[at].client.send(second_round(first), HEADERS, hang_up=leaves, written=hears)
    )
    await asyncio.wait_for(hears.wait(), 20)
    leaves.set()
    await asyncio.wait_for(sending, 20)
    await asyncio.wait_for(upstream.ended.wait(), 20)

    assert upstream.exchanges[0].cancelled == "The caller cancelled the call"
    for gate in gates:
        await gate.calls.aclose()


async def test_a_round_that_waits_twice_is_given_up_twice() -> None:
    """A client whose connection broke repeats its round, and the server may notice only then."""
    upstream = ScriptedUpstreamCalls(asks_and_hangs, era="session")
    gate = UpstreamGate(upstream)
    first = await call_with_responses(gate.client, TOOL)
    rounds = []
    for _ in range(2):
        leaves, hears = asyncio.Event(), asyncio.Event()
        sending = asyncio.create_task(
            gate.client.send(second_round(first), HEADERS, hang_up=leaves, written=hears)
        )
        rounds.append((sending, leaves))
        await asyncio.sleep(0)
        if not rounds[1:]:
            await asyncio.wait_for(hears.wait(), 20)
    (first_call, leaves_one), (two, leaves_two) = rounds
    async with asyncio.timeout(20):
        while gate.calls.parked.waiting() < 2:  # noqa: ASYNC110  # two requests reach it
            await asyncio.sleep(0)

    leaves_one.set()
    await asyncio.wait_for(first_call, 20)
    assert upstream.exchanges[0].cancelled is None

    leaves_two.set()
    await asyncio.wait_for(two, 20)
    await asyncio.wait_for(upstream.ended.wait(), 20)
    assert upstream.exchanges[0].cancelled


async def test_a_call_of_a_client_with_tasks_waits_in_a_task() -> None:
    """It is not parked; the task asks its questions."""
    upstream = ScriptedUpstreamCalls(asks_once, era="session")
    gate = UpstreamGate(
        upstream,
        offers=lambda calls: [
            msgspec.structs.replace(offered_tool(calls), task_support="optional", detaches=True)
        ],
    )
    declared = {**ALL_CAPABILITIES, "extensions": {"io.modelcontextprotocol/tasks": {}}}
    task_made = (await call_with_responses(gate.client, TOOL, capabilities=declared)).json["result"]
    assert task_made["resultType"] == "task"
    meta = {META + "clientCapabilities": declared}

    async def until(status: str) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while True:
                task_answer = await gate.client.ask(
                    "tasks/get", {"taskId": task_made["taskId"]}, meta=meta
                )
                if task_answer.json["result"]["status"] == status:
                    result: dict[str, Any] = task_answer.json["result"]
                    return result
                await asyncio.sleep(0)

    input_requests = (await until("input_required"))["inputRequests"]
    answers = {key: accepted_form(ok=True) for key in input_requests}
    update = {"taskId": task_made["taskId"], "inputResponses": answers}
    await gate.client.ask("tasks/update", update, meta=meta)
    done = await until("completed")

    assert done["result"]["content"][0]["text"] == "{'ok': True}"
    assert len(gate.calls.parked) == 0
    assert upstream.ran() == 1
