"""Asking the client's model, and which folders the client works in."""

from typing import Any

import pytest

from gatepost import CallContext, Pack, Sampling
from gatepost.mcp.projection import projected
from gatepost.tools.context.client import MissingCapability
from tests.support.client_requests import (
    ROOTS,
    SAMPLING_RESULT,
    call_with_responses,
    input_requests_of,
    next_round,
    result_text,
)
from tests.support.endpoint import EndpointClient
from tests.support.measuring import each

pack = Pack("models")
WEATHER = {"name": "weather", "description": "Tell the weather", "inputSchema": {"type": "object"}}
TEXT = {"type": "text", "text": "Hello"}
TOOL_USE = {"type": "tool_use", "id": "u1", "name": "weather", "input": {}}
RESULT = {"type": "tool_result", "toolUseId": "u1", "content": [TEXT]}


@pack.tool()
async def think(ctx: CallContext, tools: bool = False) -> str:
    """Let a model think."""
    options: Any = {"tools": [WEATHER], "tool_choice": {"mode": "auto"}} if tools else {}
    sampled = await ctx.sample(
        "Think.", max_tokens=9, key="k", system="Be brief.", models=["small"], **options
    )
    return f"{sampled.text}|{sampled.model}|{sampled.stop_reason}|{len(sampled.content)}"


@pack.tool()
async def look(ctx: CallContext) -> str:
    """Look around."""
    return " ".join(f"{root.uri}={root.name}" for root in await ctx.roots(key="k")) or "nothing"


@pytest.fixture
def client() -> EndpointClient:
    return EndpointClient(pack.tools.values())


@pytest.mark.requirement("SA-01")
@pytest.mark.parametrize(
    ("declared", "plain", "with_tools"),
    [
        ({}, {"sampling": {}}, {"sampling": {"tools": {}}}),
        ({"sampling": {}}, None, {"sampling": {"tools": {}}}),
        ({"sampling": {"tools": {}}}, None, None),
    ],
)
async def test_sa_01_a_model_is_asked_where_it_was_offered(
    client: EndpointClient, declared: Any, plain: Any, with_tools: Any
) -> None:
    """It gets tools only if the client declared that it can use them."""
    for tools, lacks in ((False, plain), (True, with_tools)):
        response = await call_with_responses(
            client, "think", {"tools": tools}, capabilities=declared
        )
        if lacks is None:
            assert list(input_requests_of(response)) == ["k"]
        else:
            assert response.json["error"]["data"] == {"requiredCapabilities": lacks}


@pytest.mark.requirement("SA-02")
async def test_sa_02_a_sampling_request_has_messages_and_max_tokens(client: EndpointClient) -> None:
    """The request has the form of the schema."""
    request = input_requests_of(await call_with_responses(client, "think", {"tools": True}))["k"]

    assert request == {
        "method": "sampling/createMessage",
        "params": {
            "messages": [{"role": "user", "content": {"type": "text", "text": "Think."}}],
            "maxTokens": 9,
            "systemPrompt": "Be brief.",
            "modelPreferences": {"hints": [{"name": "small"}]},
            "tools": [WEATHER],
            "toolChoice": {"mode": "auto"},
        },
    }


def message(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


IMPOSSIBLE_REQUESTS: list[tuple[list[Any], str]] = [
    ([], "needs a message"),
    ([{"role": "system", "content": TEXT}], "a role"),
    ([{"role": "user"}], "content blocks"),
    ([{"role": "user", "content": "Hello"}], "content blocks"),
    ([message("assistant", TOOL_USE)], "followed at once"),
    ([message("assistant", TOOL_USE), message("user", TEXT)], "followed at once"),
    ([message("assistant", TOOL_USE), message("user", RESULT, TEXT)], "nothing else"),
    ([message("assistant", TOOL_USE), message("assistant", RESULT)], "followed at once"),
    (
        [message("assistant", TOOL_USE, {**TOOL_USE, "id": "u2"}), message("user", RESULT)],
        "followed",
    ),
    ([message("user", RESULT)], "followed at once"),
    ([message("user", TOOL_USE), message("user", RESULT)], "only the assistant"),
]


@pytest.mark.requirement("SA-02")
@each(("messages", "sentence"), IMPOSSIBLE_REQUESTS)
def test_sa_02_impossible_conversations_are_refused(messages: list[Any], sentence: str) -> None:
    """Each use of a tool must be followed at once by its results and by nothing else."""
    with pytest.raises(ValueError, match=sentence):
        Sampling(messages, 10)


@pytest.mark.requirement("SA-02")
def test_sa_02_a_conversation_with_tools_is_possible() -> None:
    """Results may come in any order, in one message."""
    other = {**TOOL_USE, "id": "u2"}
    messages = [
        message("user", TEXT),
        message("assistant", TOOL_USE, other),
        message("user", {**RESULT, "toolUseId": "u2"}, RESULT),
    ]

    assert Sampling(messages, 10).request.params["messages"] == messages
    with pytest.raises(ValueError, match="positive"):
        Sampling(messages, 0)
    with pytest.raises(ValueError, match="chooses nothing"):
        Sampling(messages, 10, tool_choice={"mode": "auto"})


@pytest.mark.requirement("SA-03")
def test_sa_03_no_other_servers_context_is_ever_asked_for() -> None:
    """An author cannot even say so."""
    assert "includeContext" not in Sampling("Think.", 1, system="x", stop=["y"]).request.params
    with pytest.raises(TypeError):
        Sampling("Think.", 1, includeContext="allServers")  # type: ignore[call-arg]


@pytest.mark.requirement("SA-05")
async def test_sa_05_a_valid_sampling_result_reaches_the_tool(client: EndpointClient) -> None:
    """It has one block or several; unknown members do not matter."""
    first = await call_with_responses(client, "think", {"tools": True})
    several = {**SAMPLING_RESULT, "content": [TEXT, TOOL_USE], "usage": 3}

    answer = await next_round(client, "think", first, {"k": SAMPLING_RESULT}, {"tools": True})
    more = await next_round(client, "think", first, {"k": several}, {"tools": True})

    assert result_text(answer) == "Paris|m-1|endTurn|1"
    assert result_text(more) == "Hello|m-1|endTurn|2"


@pytest.mark.requirement("SA-05")
@pytest.mark.parametrize(
    "change",
    [
        {"role": "system"},
        {"model": None},
        {"content": "Paris"},
        {"content": []},
        {"content": {"type": "text"}},
        {"content": {"type": "text", "text": 5}},
        {"content": {"type": "image", "data": "x"}},
        {"content": {"type": "resource"}},
        {"content": TOOL_USE},
        {"content": [TEXT, 5]},
        {"stopReason": 5},
        {"content": {"type": "text", "text": "x" * 1_000_001}},
    ],
    ids=lambda change: str(change)[:40],
)
async def test_sa_05_an_invalid_sampling_result_is_refused(
    client: EndpointClient, change: Any
) -> None:
    """The tool sees no wrong shape, no use of a tool that it did not offer, and no flood."""
    response = await call_with_responses(
        client, "think", inputResponses={"k": {**SAMPLING_RESULT, **change}}
    )

    assert response.error == (400, -32602)


@pytest.mark.requirement("RO-01")
async def test_ro_01_roots_are_requested_if_declared_and_must_be_files(
    client: EndpointClient,
) -> None:
    """A root with another scheme is refused."""
    first = await call_with_responses(client, "look")
    elsewhere = {"roots": [{"uri": "https://example.com/"}]}

    assert input_requests_of(first) == {"k": {"method": "roots/list", "params": {}}}
    assert result_text(await next_round(client, "look", first, {"k": ROOTS})) == "file:///work=Work"
    assert (await next_round(client, "look", first, {"k": elsewhere})).error == (400, -32602)
    lacking = await call_with_responses(client, "look", capabilities={"sampling": {}})
    assert lacking.error == (400, -32021)


@pytest.mark.requirement("RO-02")
@pytest.mark.parametrize(
    ("roots", "outcome"),
    [
        ([], "nothing"),
        ([{"uri": "file:///gone"}], "file:///gone=None"),
        (None, -32602),
        ([{"uri": "file:///x", "name": 5}], -32602),
        (["file:///x"], -32602),
        ([{"uri": "file:///x"}] * 1001, -32602),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_ro_02_an_empty_list_of_roots_is_valid_and_a_malformed_one_is_not(
    client: EndpointClient, roots: Any, outcome: Any
) -> None:
    """A root may name a file that does not exist."""
    response = await call_with_responses(client, "look", inputResponses={"k": {"roots": roots}})

    if isinstance(outcome, str):
        assert result_text(response) == outcome
    else:
        assert response.error == (400, outcome)


@pytest.mark.requirement("SA-01", "SA-02")
def test_sa_01_sampling_requests_are_reduced_to_each_older_revision() -> None:
    """Before 2025-11-25 a message has one block, and there are no tools."""
    talk = Sampling(
        [message("user", TEXT, TEXT), {"role": "assistant", "content": TEXT}], 5
    ).request
    tools = Sampling("Think.", 5, tools=[WEATHER]).request

    for revision in ("2025-03-26", "2025-06-18"):
        messages = projected(talk, revision)["messages"]
        assert [message["role"] for message in messages] == ["user", "user", "assistant"]
        assert all(message["content"] == TEXT for message in messages)
        with pytest.raises(MissingCapability):
            projected(tools, revision)
    for request in (talk, tools):
        assert projected(request, "2025-11-25") == request.params
