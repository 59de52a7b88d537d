"""Numbers that take long to read do not hold up other callers."""

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gatepost import CallContext, OutboundReply, Outcome, Pack
from gatepost.policy.approvals.conditions import Condition, ConditionVariables
from gatepost_packs.gitlab.api_request import gitlab_response
from gatepost_packs.openapi.description.api_response import shown_body
from gatepost_packs.openapi.errors import refusal_of
from tests.support.client_requests import next_request, opened_pair
from tests.support.endpoint import EndpointClient, message
from tests.support.measuring import HOLD_S, server_garbage_collection, shortest_hold

SLOW_NUMBER = b"1e308"
"""What msgspec's own parser takes ten microseconds for, and Python's a tenth of one."""
MANY_SLOW_NUMBERS = b"[" + b",".join([SLOW_NUMBER] * 39_000) + b"]"
pack = Pack("mirrors")


@pytest.fixture(autouse=True)
def _garbage() -> Iterator[None]:
    with server_garbage_collection():
        yield


@pack.tool(output_schema={"type": "object"})
async def reflect(ctx: CallContext) -> Outcome:
    """Answer encoded JSON from elsewhere."""
    return Outcome(structured=msgspec.Raw(b'{"x":%b}' % MANY_SLOW_NUMBERS))


async def test_slow_numbers_in_client_capabilities_do_not_block_the_loop() -> None:
    """The server reads capabilities as values of any type."""
    client = EndpointClient()
    params = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": "HERE"}}
    body = message("initialize", params).replace(b'"HERE"', MANY_SLOW_NUMBERS)

    async def begin() -> None:
        assert (await client.send(body)).status == 200

    hold_s, limit = await shortest_hold(begin, HOLD_S)
    assert hold_s < limit


async def test_slow_numbers_in_the_answer_to_a_client_request_do_not_block_the_loop() -> None:
    """A client of an older revision answers with a message of its own."""
    replicas = await opened_pair("2025-11-25")

    async def converse() -> None:
        live = replicas.call(replicas.one, "ask_name")
        request = await next_request(live)
        answer = message("x", identity=request["id"]).replace(
            b'"method": "x"',
            b'"result":{"action":"decline","content":{"x":%b}}' % MANY_SLOW_NUMBERS,
        )
        assert (await replicas.one.within(replicas.session, answer)).status == 202
        await live.over()

    hold_s, limit = await shortest_hold(converse, HOLD_S)
    assert hold_s < limit


async def test_slow_numbers_in_an_encoded_result_do_not_block_the_loop() -> None:
    """The server validates the encoded JSON that a tool returns."""
    client = EndpointClient(pack.tools.values())

    async def call() -> None:
        assert "result" in (await client.call("reflect")).json

    hold_s, limit = await shortest_hold(call, HOLD_S)
    assert hold_s < limit


REMOTE_SLOW_NUMBERS = b"[" + b",".join([SLOW_NUMBER] * 166_000) + b"]"
REPLY = OutboundReply(
    status=400,
    headers={"content-type": "application/json"},
    body=REMOTE_SLOW_NUMBERS,
    truncated=False,
    url="",
)


async def test_slow_numbers_in_an_error_of_an_api_do_not_block_the_loop() -> None:
    """The pack reads only the beginning of the error on the event loop."""

    async def work() -> None:
        assert str(refusal_of(REPLY, "The API")).startswith("The API answered 400: [1e308")

    hold_s, limit = await shortest_hold(work, HOLD_S)
    assert hold_s < limit


async def test_slow_numbers_in_arguments_of_a_condition_do_not_block_the_loop() -> None:
    """A condition reads up to 64 KB of arguments for each rule."""
    condition = Condition("size(arguments.x) > 1")
    arguments = b'{"x":%b}' % (b"[" + b",".join([SLOW_NUMBER] * 1_300) + b"]")
    longest = b'{"y":%b,"x":[1,2]}' % (b"[" + b",".join([SLOW_NUMBER] * 10_800) + b"]")

    async def work() -> None:
        for value in (arguments, longest):
            assert condition.is_true(ConditionVariables(value, {}, {}))

    hold_s, limit = await shortest_hold(work, HOLD_S)
    assert hold_s < limit


@pytest.mark.parametrize("pack_name", ["openapi", "gitlab"])
async def test_slow_numbers_in_an_answer_of_an_api_do_not_block_the_loop(pack_name: str) -> None:
    """Both packs read the answer in a thread, which must release the interpreter."""

    def read_reply() -> Any:
        if pack_name == "gitlab":
            return gitlab_response(REPLY, text=False, data=False)
        return shown_body(
            REMOTE_SLOW_NUMBERS, "application/json", truncated=False, max_bytes=100_000
        )

    async def work() -> None:
        assert await asyncio.to_thread(read_reply)

    hold_s, limit = await shortest_hold(work, HOLD_S)
    assert hold_s < limit
