"""What a tool asks of its client in the older revisions, answered at whichever process."""

from typing import Any

import pytest

from tests.support.client_requests import (
    ACCEPTED_FORM,
    SESSION_CAPABILITIES,
    next_request,
    opened_pair,
    session_result_text,
)
from tests.support.endpoint import message
from tests.support.endpoint_clients import EndpointPair

LEGACY_REVISIONS = ["2025-11-25", "2025-06-18", "2025-03-26"]


@pytest.fixture
async def replicas() -> EndpointPair:
    return await opened_pair()


@pytest.mark.requirement("E-02", "E-12", "DE-10", "SA-04", "E-01")
@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
@pytest.mark.parametrize("at", ["one", "two"])
async def test_e_02_a_form_is_sent_on_the_calls_stream_and_answered_at_any_process(
    version: str, at: str
) -> None:
    """The answer gets 202 at either process; 2025-06-18 has no mode member."""
    replicas = await opened_pair(version)
    live = replicas.call(replicas.one, "ask_name")
    request = await next_request(live)

    assert request["method"] == "elicitation/create"
    assert request["params"]["message"] == "Who are you?"
    assert request["params"]["requestedSchema"]["properties"]["name"] == {"type": "string"}
    assert request["params"].get("mode", "form") == "form"
    assert ("mode" in request["params"]) <= (version == "2025-11-25")
    assert await replicas.answer(getattr(replicas, at), request["id"], result=ACCEPTED_FORM) == 202
    assert await session_result_text(live) == (False, "accept Ann")


@pytest.mark.requirement("E-12")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_e_12_the_tool_sees_a_declined_or_cancelled_form(
    replicas: EndpointPair, action: str
) -> None:
    """The tool learns which of the two it is."""
    live = replicas.call(replicas.one, "ask_name")
    request = await next_request(live)
    await replicas.answer(replicas.two, request["id"], result={"action": action})

    assert await session_result_text(live) == (False, f"{action} None")


@pytest.mark.requirement("SA-02", "SA-01", "RO-01", "RO-02")
@pytest.mark.parametrize("version", LEGACY_REVISIONS)
async def test_sa_02_sampling_and_roots_requests_are_sent_in_every_revision(version: str) -> None:
    """Both requests are sent on the call's stream, in the form of the revision."""
    replicas = await opened_pair(version)
    live = replicas.call(replicas.one, "sample")
    request = await next_request(live)
    message_ = request["params"]["messages"][0]
    assert (request["method"], request["params"]["maxTokens"]) == ("sampling/createMessage", 10)
    assert (message_["role"], message_["content"]["text"]) == ("user", "Say hello")
    sampled = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "hello"}}
    await replicas.answer(replicas.two, request["id"], result=sampled)
    assert await session_result_text(live) == (False, "m")

    live = replicas.call(replicas.two, "roots")
    request = await next_request(live)
    assert request["method"] == "roots/list"
    await replicas.answer(replicas.one, request["id"], result={"roots": [{"uri": "file:///work"}]})
    assert await session_result_text(live) == (False, "file:///work")


@pytest.mark.requirement("E-05", "E-12")
async def test_e_05_a_page_to_open_has_an_id_of_its_own(replicas: EndpointPair) -> None:
    """2025-11-25 wants one; it is the server's and random."""
    ids = set()
    for _ in range(2):
        live = replicas.call(replicas.one, "ask_page")
        request = await next_request(live)
        assert request["params"]["mode"] == "url"
        assert request["params"]["url"] == "https://mcp.example.com/connect"
        ids.add(request["params"]["elicitationId"])
        await replicas.answer(replicas.two, request["id"], result={"action": "accept"})
        assert await session_result_text(live) == (False, "accept")
    assert len(ids) == 2


@pytest.mark.requirement("E-15")
async def test_e_15_a_client_without_a_stream_gets_the_page_in_an_error(
    replicas: EndpointPair,
) -> None:
    """-32042 with HTTP 200 where the answer can be no stream; the client calls again afterwards."""
    call = message("tools/call", {"name": "ask_page", "arguments": {}})

    refused = await replicas.one.within(replicas.session, call, ("accept", "application/json"))

    assert refused.error == (200, -32042)
    (page,) = refused.json["error"]["data"]["elicitations"]
    assert page.pop("elicitationId")
    assert page == {
        "mode": "url",
        "message": "Link your account",
        "url": "https://mcp.example.com/connect",
    }


@pytest.mark.requirement("E-15", "J-18")
@pytest.mark.parametrize(
    ("tool", "version", "declared"),
    [
        ("ask_name", "2025-11-25", SESSION_CAPABILITIES),
        ("ask_both", "2025-11-25", SESSION_CAPABILITIES),
        ("sample", "2025-11-25", SESSION_CAPABILITIES),
        ("ask_page", "2025-11-25", {"elicitation": {}}),
        ("ask_page", "2025-11-25", {"elicitation": {"form": {}}}),
        ("ask_page", "2025-06-18", SESSION_CAPABILITIES),
        ("ask_page", "2025-03-26", SESSION_CAPABILITIES),
    ],
)
async def test_e_15_only_a_page_is_answered_with_error_32042(
    tool: str, version: str, declared: dict[str, Any]
) -> None:
    """Any other request that the client cannot answer fails with a text for the model."""
    replicas = await opened_pair(version, **declared)
    call = message("tools/call", {"name": tool, "arguments": {}})

    result = (
        await replicas.one.within(replicas.session, call, ("accept", "application/json"))
    ).json["result"]

    assert result["isError"] is True
    assert "needs a client" in result["content"][0]["text"]


@pytest.mark.requirement("E-01", "SA-01", "RO-01", "L-04")
@pytest.mark.parametrize(
    ("tool", "version", "declared"),
    [
        ("ask_name", "2025-11-25", {"roots": {}}),
        ("ask_name", "2025-11-25", {"elicitation": {"url": {}}}),
        ("ask_name", "2025-03-26", SESSION_CAPABILITIES),
        ("ask_page", "2025-11-25", {"elicitation": {}}),
        ("ask_page", "2025-06-18", SESSION_CAPABILITIES),
        ("sample", "2025-11-25", {"elicitation": {}}),
        ("roots", "2025-06-18", {"elicitation": {}}),
    ],
)
async def test_e_01_a_client_gets_no_request_that_it_did_not_declare(
    tool: str, version: str, declared: dict[str, Any]
) -> None:
    """No request goes out; the model learns which capability the client lacks."""
    replicas = await opened_pair(version, **declared)
    live = replicas.call(replicas.one, tool)
    await live.over()

    assert live.headers["content-type"] == "application/json"


@pytest.mark.requirement("E-01")
async def test_e_01_an_empty_elicitation_capability_means_forms(replicas: EndpointPair) -> None:
    """Clients that know only forms declare an empty object."""
    replicas = await opened_pair(elicitation={})
    live = replicas.call(replicas.one, "ask_name")
    request = await next_request(live)
    await replicas.answer(replicas.one, request["id"], result=ACCEPTED_FORM)

    assert (await session_result_text(live))[0] is False


@pytest.mark.requirement("E-12", "CX-05")
@pytest.mark.parametrize(
    ("member", "words"),
    [
        ({"error": {"code": -1, "message": "User rejected it"}}, "refused: User rejected it"),
        ({"error": {"code": -32603, "message": "no model"}}, "could not answer: no model"),
        ({"error": {"code": -32603, "message": "x" * 5000}}, "could not answer: xxx"),
        ({"error": "no object"}, "cannot be read"),
        ({"result": "no object"}, "cannot be read"),
        ({"result": {"action": "perhaps"}}, "cannot be used"),
        ({"result": {"action": "accept", "content": {"name": 5}}}, "cannot be used"),
    ],
)
async def test_e_12_a_clients_error_fails_the_call_and_keeps_the_session(
    replicas: EndpointPair, member: dict[str, Any], words: str
) -> None:
    """The model reads why; the client's text is cut."""
    live = replicas.call(replicas.one, "ask_name")
    request = await next_request(live)
    await replicas.answer(replicas.two, request["id"], **member)

    failed, text = await session_result_text(live)

    assert failed
    assert words in text
    assert len(text) < 500
    assert await replicas.ping(replicas.one) == 200
