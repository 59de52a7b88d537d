"""Who may answer a request to the client, until when, and how many may wait for an answer."""

import asyncio
import json

import pytest

from gatepost.mcp.endpoint import EndpointLimits
from gatepost.mcp.sessions import client
from tests.support.client_requests import (
    ACCEPTED_FORM,
    SESSION_CAPABILITIES,
    next_request,
    opened_pair,
    session_result_text,
)
from tests.support.endpoint import a_caller, message
from tests.support.endpoint_clients import EndpointPair


@pytest.fixture
async def replicas() -> EndpointPair:
    return await opened_pair()


@pytest.mark.requirement("CX-05")
async def test_cx_05_a_client_request_times_out_and_is_cancelled() -> None:
    """The client is told that its request is over; the tool, that no answer came."""
    replicas = await opened_pair(limits=EndpointLimits(client_request_timeout_s=0.05))
    live = replicas.call(replicas.one, "ask_name")
    request = await next_request(live)

    _, taken_back = await live.event()

    assert taken_back["method"] == "notifications/cancelled"
    assert taken_back["params"]["requestId"] == request["id"]
    assert await session_result_text(live) == (True, "No answer came within 0.05 seconds.")
    assert await replicas.answer(replicas.two, request["id"], result=ACCEPTED_FORM) == 202


@pytest.mark.requirement("CX-05")
async def test_cx_05_the_tools_timeout_pauses_while_the_client_answers(
    replicas: EndpointPair,
) -> None:
    """The tool's timeout does not include the time in which the person answers."""
    live = replicas.call(replicas.one, "ask_name")
    request = await next_request(live)
    done, _ = await asyncio.wait({live.task}, timeout=0.5)
    assert not done
    await replicas.answer(replicas.two, request["id"], result=ACCEPTED_FORM)

    assert await session_result_text(live) == (False, "accept Ann")


@pytest.mark.requirement("DE-10", "SEC-04", "E-09")
async def test_de_10_only_the_client_that_was_asked_answers(replicas: EndpointPair) -> None:
    """An answer of another session, caller or id, a second one and a late one have no effect."""
    mine = replicas.session
    live = replicas.call(replicas.one, "ask_name")
    request = await next_request(live)
    wrong = {"action": "accept", "content": {"name": "Eve"}}
    for identity in (request["id"] + "x", request["id"][:-3], "1", 1, 7, ""):
        assert await replicas.answer(replicas.two, identity, result=wrong) == 202
    await replicas.open(**SESSION_CAPABILITIES)
    assert await replicas.answer(replicas.two, request["id"], result=wrong) == 202
    replicas.become(a_caller(subject="eve"))
    replicas.session = mine
    assert await replicas.answer(replicas.two, request["id"], result=wrong) == 404
    replicas.become(a_caller())

    notes = vars(replicas.one.shared_store.for_tenant("acme"))["_notes"]
    assert [name for name in notes if "/answer/" in name] == []
    await replicas.answer(replicas.two, request["id"], result=ACCEPTED_FORM)
    assert await session_result_text(live) == (False, "accept Ann")
    assert await replicas.answer(replicas.two, request["id"], result=wrong) == 202


@pytest.mark.requirement("DE-10")
async def test_de_10_an_answer_arrives_although_its_notification_is_lost(
    replicas: EndpointPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiting process also polls for the answer."""
    monkeypatch.setattr(client, "POLL_S", 0.02)
    live = replicas.call(replicas.one, "ask_name")
    request = await next_request(live)

    async def lose_message(topic: str, message: bytes) -> None:
        return

    monkeypatch.setattr(replicas.one.shared_store.for_tenant("acme"), "publish", lose_message)
    await replicas.answer(replicas.two, request["id"], result=ACCEPTED_FORM)

    assert await session_result_text(live) == (False, "accept Ann")


@pytest.mark.requirement("SA-04", "S-12")
async def test_sa_04_a_client_request_is_found_again_after_a_lost_connection(
    replicas: EndpointPair,
) -> None:
    """It is in the stream's event log like every message; the answer still finds its call."""
    live = replicas.call(replicas.one, "ask_name")
    block = await live.block()
    assert block is not None
    await next_request(live)
    live.hang_up()

    again = replicas.resume(replicas.two, block["id"])
    request = await next_request(again)
    await replicas.answer(replicas.two, request["id"], result=ACCEPTED_FORM)

    assert await session_result_text(again) == (False, "accept Ann")


async def test_several_client_requests_go_out_at_once(replicas: EndpointPair) -> None:
    """Answered in any order, at any process."""
    live = replicas.call(replicas.one, "ask_two")
    first, second = await next_request(live), await next_request(live)
    await replicas.answer(replicas.two, second["id"], result={"action": "decline"})
    await replicas.answer(replicas.one, first["id"], result=ACCEPTED_FORM)

    assert await session_result_text(live) == (False, "accept decline")


async def test_a_failed_client_request_withdraws_the_others(replicas: EndpointPair) -> None:
    """No person should fill in a form for a call that is over."""
    live = replicas.call(replicas.one, "ask_two")
    first, second = await next_request(live), await next_request(live)
    await replicas.answer(replicas.two, second["id"], error={"code": -1, "message": "no"})

    _, taken_back = await live.event()
    assert taken_back["params"]["requestId"] == first["id"]
    assert (await session_result_text(live))[0]


@pytest.mark.requirement("S-21")
async def test_s_21_a_caller_has_a_bounded_number_of_client_requests() -> None:
    """The next one fails as too many, and may come later; an answer makes room."""
    replicas = await opened_pair(limits=EndpointLimits(client_requests_per_caller=2))
    live = replicas.call(replicas.one, "ask_two")
    requests = [await next_request(live) for _ in range(2)]
    refused = replicas.post(
        replicas.one, message("tools/call", {"name": "ask_name", "arguments": {}}, identity=8)
    )
    await refused.over()
    for request in requests:
        await replicas.answer(replicas.two, request["id"], result=ACCEPTED_FORM)

    assert refused.headers["content-type"] == "application/json"
    assert (await session_result_text(live))[0] is False
    again = replicas.call(replicas.one, "ask_name")
    await replicas.answer(replicas.one, (await next_request(again))["id"], result=ACCEPTED_FORM)
    assert (await session_result_text(again))[0] is False


@pytest.mark.requirement("S-21")
async def test_s_21_beyond_the_stream_limit_the_client_is_not_asked(replicas: EndpointPair) -> None:
    """The call says so instead of waiting."""
    replicas.one.streams.max_per_caller = 0
    body = message("tools/call", {"name": "ask_name", "arguments": {}})

    result = (await replicas.one.within(replicas.session, body)).json["result"]

    assert result["isError"] is True
    assert "cannot be asked now" in result["content"][0]["text"]


@pytest.mark.requirement("DE-09", "J-09", "DE-10")
async def test_de_09_answers_may_come_in_a_batch() -> None:
    """2025-03-26: an array of responses is 202, and each finds its call."""
    replicas = await opened_pair("2025-03-26")
    live = replicas.call(replicas.one, "roots")
    request = await next_request(live)
    answer = {"jsonrpc": "2.0", "id": request["id"], "result": {"roots": []}}

    taken = await replicas.two.within(replicas.session, json.dumps([answer]).encode())

    assert taken.status == 202
    assert await session_result_text(live) == (False, "")


@pytest.mark.requirement("DE-09")
async def test_de_09_within_a_batch_the_client_cannot_be_asked() -> None:
    """The answer of a batch is one array, so the call fails with the missing capability."""
    replicas = await opened_pair("2025-03-26")
    batch = [json.loads(message("tools/call", {"name": "roots", "arguments": {}}))]

    (answer,) = (await replicas.one.within(replicas.session, json.dumps(batch).encode())).json

    assert answer["result"]["isError"] is True
