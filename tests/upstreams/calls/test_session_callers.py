"""Callers with a session: they are asked on their stream, whatever the upstream speaks."""

import asyncio

import pytest

from gatepost.upstreams.connection import UpstreamResult
from tests.support.client_requests import SESSION_CAPABILITIES, next_request, session_result_text
from tests.support.endpoint_clients import EndpointPair, OpenExchange
from tests.upstreams.calls.test_calls import (
    Exchanged,
    ScriptedUpstreamCalls,
    UpstreamGate,
    asks_in_rounds,
    asks_once,
    form,
    offered_tool,
    text_result,
)

TOOL = "mcp_crm__act"
CONFIRMATION = {"action": "accept", "content": {"ok": True}}


async def opened_pair(upstream: ScriptedUpstreamCalls, version: str = "2025-11-25") -> EndpointPair:
    gate = UpstreamGate(upstream)
    pair = EndpointPair([offered_tool(gate.calls)], version=version)
    return await pair.open(**SESSION_CAPABILITIES)


async def wait_for_call(live: OpenExchange) -> None:
    await asyncio.wait_for(live.task, 20)


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
@pytest.mark.parametrize("era", ["modern", "session"])
async def test_a_session_caller_is_asked_on_its_stream(version: str, era: str) -> None:
    """The rounds of a modern upstream are answered here; a session upstream gets its answer."""
    modern = era == "modern"
    upstream = ScriptedUpstreamCalls(
        asks_in_rounds if modern else asks_once, era="modern" if modern else "session"
    )
    pair = await opened_pair(upstream, version)
    live = pair.call(pair.one, TOOL)

    elicited = await next_request(live)
    assert elicited["params"]["message"] == "crm: Sure?"
    assert await pair.answer(pair.two, elicited["id"], result=CONFIRMATION) == 202

    assert await session_result_text(live) == (False, "{'ok': True}")
    assert upstream.ran() == (2 if modern else 1)


async def test_a_cancelled_call_is_cancelled_at_the_upstream() -> None:
    upstream = ScriptedUpstreamCalls(lambda _: asyncio.Event().wait(), era="session")  # type: ignore[arg-type,return-value]
    pair = await opened_pair(upstream)
    live = pair.call(pair.one, TOOL)
    await asyncio.wait_for(upstream.begun.wait(), 20)

    await pair.cancel(pair.one, 7)
    await wait_for_call(live)
    await asyncio.wait_for(upstream.ended.wait(), 20)

    assert upstream.exchanges[0].cancelled


async def test_progress_reaches_the_caller_and_grows() -> None:
    async def works(exchange: Exchanged) -> UpstreamResult:
        for progress in (1, 2, 2, float("nan"), 3):
            exchange.tell(
                "notifications/progress", progress=progress, total=3, message="at\u202e it"
            )
        return text_result("done")

    pair = await opened_pair(ScriptedUpstreamCalls(works, era="session"))
    *progress_events, _ = await pair.call(pair.one, TOOL).rest()

    assert [event["params"]["progress"] for event in progress_events] == [1, 2, 3]
    assert {notification["params"]["message"] for notification in progress_events} == {"at it"}


async def test_a_session_caller_answers_two_client_requests_in_a_row() -> None:
    async def asks_twice(exchange: Exchanged) -> UpstreamResult:
        first = await exchange.ask("elicitation/create", form("First?"))
        second = await exchange.ask("elicitation/create", form("Second?"))
        return text_result(f"{first['result']['action']} {second['result']['action']}")

    upstream = ScriptedUpstreamCalls(asks_twice, era="session")
    pair = await opened_pair(upstream)
    live = pair.call(pair.one, TOOL)
    for message in ("crm: First?", "crm: Second?"):
        elicited = await next_request(live)
        assert elicited["params"]["message"] == message
        await pair.answer(pair.one, elicited["id"], result=CONFIRMATION)

    assert await session_result_text(live) == (False, "accept accept")


async def test_a_client_that_fails_is_an_error_for_the_upstream() -> None:
    """The upstream decides what then becomes of its call."""

    async def asks(exchange: Exchanged) -> UpstreamResult:
        return text_result(str((await exchange.ask("elicitation/create", form()))["error"]["code"]))

    pair = await opened_pair(ScriptedUpstreamCalls(asks, era="session"))
    live = pair.call(pair.one, TOOL)
    elicited = await next_request(live)
    await pair.answer(pair.one, elicited["id"], error={"code": -1, "message": "no"})

    assert await session_result_text(live) == (False, "-1")
