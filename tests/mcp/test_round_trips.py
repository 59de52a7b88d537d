"""Multi round-trip requests (2026-07-28): questions as the answer, answers with the next call."""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gatepost import CallContext, Pack
from gatepost.mcp.round_trips import MAX_RESPONSES, MAX_ROUNDS
from tests.mcp import fixture_tools
from tests.support.client_requests import (
    CONFIRMATION,
    FILES,
    INVALID_PARAMS,
    ROOTS,
    ROUNDS,
    RUNS,
    SAMPLING_RESULT,
    Ok,
    accepted_form,
    call_with_responses,
    input_requests_of,
    next_round,
    result_text,
)
from tests.support.endpoint import META, EndpointClient, Response

more = Pack("more")


@more.tool()
async def ask_in_tasks(ctx: CallContext) -> str:
    """Ask from tasks of its own."""
    async with asyncio.TaskGroup() as group:
        first = group.create_task(ctx.ask("One?", Ok, key="one"))
        two = group.create_task(ctx.ask("Two?", Ok, key="two"))
    return f"{first.result().action} {two.result().action}"


@more.tool()
async def ask_for_ever(ctx: CallContext) -> str:
    """Ask without end."""
    while True:
        await ctx.ask("More?", Ok)


@more.resource("note://{name}", ttl_s=60)
async def note(ctx: CallContext, name: str) -> str:
    """Return a note to a caller that says please."""
    answered = await ctx.ask("Please?", Ok, key="please")
    return f"{name} {answered.action}"


@pytest.fixture
def client() -> EndpointClient:
    RUNS.clear()
    FILES["count"] = 3
    return EndpointClient([*ROUNDS.offers, *more.offers, *fixture_tools.question_pack.offers])


@pytest.mark.requirement("M-01", "C-04")
async def test_m_01_prompts_and_resources_ask_too(client: EndpointClient) -> None:
    """Prompts and resources ask like tools; a result after rounds must not be cached."""
    declared = {META + "clientCapabilities": {"elicitation": {}}}
    prompt = {"name": "test_input_required_result_prompt"}
    read = {"uri": "note://today"}
    first = await client.ask("prompts/get", prompt, meta=declared)
    second = await client.ask("resources/read", read, meta=declared, mcp_name="note://today")
    assert [*input_requests_of(first), *input_requests_of(second)] == ["user_context", "please"]

    answers = {"user_context": accepted_form(context="Latin"), "please": accepted_form(ok=True)}
    prompt |= {"inputResponses": answers, "requestState": first.json["result"]["requestState"]}
    read |= {"inputResponses": answers, "requestState": second.json["result"]["requestState"]}
    got = (await client.ask("prompts/get", prompt, meta=declared)).json["result"]
    note = await client.ask("resources/read", read, meta=declared, mcp_name="note://today")

    assert got["messages"][0]["content"]["text"] == "Help me with Latin."
    assert note.json["result"]["contents"][0]["text"] == "today accept"
    assert (note.json["result"]["ttlMs"], note.json["result"]["cacheScope"]) == (0, "private")


@pytest.mark.requirement("M-02")
async def test_m_02_an_input_request_is_the_result_and_the_next_call_answers_it(
    client: EndpointClient,
) -> None:
    """The tool ends at its question; called again with the answer, it continues."""
    first = await call_with_responses(client, "purge")

    assert input_requests_of(first) == {
        "confirm": {
            "method": "elicitation/create",
            "params": {
                "mode": "form",
                "message": "Delete 3 rows of t?",
                "requestedSchema": {
                    "type": "object",
                    "properties": {"ok": {"type": "boolean", "title": "Ok"}},
                    "required": ["ok"],
                },
            },
        }
    }
    assert isinstance(first.json["result"]["requestState"], str)
    assert RUNS == ["started"]
    assert result_text(await next_round(client, "purge", first, CONFIRMATION)) == "accept ok=True"
    assert RUNS == ["started", "started", "deleted"]


@pytest.mark.requirement("M-03")
async def test_m_03_only_three_kinds_of_client_requests_go_out(client: EndpointClient) -> None:
    """Client requests are listed by key, without the envelope of a request."""
    requests = input_requests_of(
        await call_with_responses(client, "test_input_required_result_multiple_inputs")
    )

    assert {request["method"] for request in requests.values()} == {
        "elicitation/create",
        "sampling/createMessage",
        "roots/list",
    }
    assert all(request.keys() == {"method", "params"} for request in requests.values())


@pytest.mark.requirement("M-12", "C-04")
async def test_m_12_input_requests_carry_no_caching_hints(client: EndpointClient) -> None:
    """No cache may store them."""
    result = (await call_with_responses(client, "purge")).json["result"]

    assert set(result) == {"resultType", "inputRequests", "requestState", "_meta"}


@pytest.mark.requirement("M-01")
async def test_m_01_list_methods_ignore_answers_and_states(client: EndpointClient) -> None:
    """Such a method may not ask."""
    more = {"inputResponses": 5, "requestState": "junk"}
    for method in ("tools/list", "server/discover"):
        assert (await client.ask(method, more)).json["result"]["resultType"] == "complete"


@pytest.mark.requirement("M-10")
async def test_m_10_a_tool_may_ask_again_and_again(client: EndpointClient) -> None:
    """Earlier answers travel in the state, which differs each time; default keys are in order."""
    first = await call_with_responses(client, "ask_twice")
    second = await next_round(client, "ask_twice", first, {"question-1": accepted_form(ok=True)})
    third = await next_round(client, "ask_twice", second, {"question-2": accepted_form(ok=False)})

    assert list(input_requests_of(first)) == ["question-1"]
    assert list(input_requests_of(second)) == ["question-2"]
    states = {response.json["result"]["requestState"] for response in (first, second)}
    assert len(states) == 2
    assert result_text(third) == "ok=True ok=False"


@pytest.mark.requirement("M-10")
async def test_m_10_a_tool_may_ask_a_limited_number_of_times(client: EndpointClient) -> None:
    """A tool that asks without end is stopped."""
    response = await call_with_responses(client, "ask_for_ever")
    for number in range(1, MAX_ROUNDS):
        answers = {f"question-{number}": accepted_form(ok=True)}
        response = await next_round(client, "ask_for_ever", response, answers)
    answers = {f"question-{MAX_ROUNDS}": accepted_form(ok=True)}

    last = await next_round(client, "ask_for_ever", response, answers)

    assert last.error == (200, -32603)


@pytest.mark.requirement("M-11")
async def test_m_11_missing_and_unknown_answers_are_no_error(client: EndpointClient) -> None:
    """A missing answer is asked for again; an answer without a request is ignored."""
    unknown = {"something": accepted_form(x=1), "else": 5}
    first = await call_with_responses(client, "purge", inputResponses=unknown)
    second = await next_round(client, "purge", first, unknown)
    alone = await call_with_responses(client, "purge", inputResponses={**unknown, **CONFIRMATION})

    assert list(input_requests_of(first)) == list(input_requests_of(second)) == ["confirm"]
    assert (
        result_text(await next_round(client, "purge", second, {**unknown, **CONFIRMATION}))
        == "accept ok=True"
    )
    assert result_text(alone) == "accept ok=True"


MALFORMED_ANSWERS = [
    {"confirm": 12345},
    {"confirm": None},
    {"confirm": []},
    {"confirm": {}},
    {"confirm": {"action": "maybe"}},
    {"confirm": {"action": "accept"}},
    {"confirm": {"action": "accept", "content": []}},
    [],
    None,
    7,
    {str(number): {} for number in range(MAX_RESPONSES + 1)},
    {"confirm": accepted_form(ok=True), "padding": "x" * 1_100_000},
]


@pytest.mark.requirement("M-11")
@pytest.mark.parametrize("responses", MALFORMED_ANSWERS, ids=lambda value: str(value)[:40])
async def test_m_11_malformed_answers_are_an_error(client: EndpointClient, responses: Any) -> None:
    """With or without a state, the tool does not get past its question."""
    first = await call_with_responses(client, "purge")
    alone = await call_with_responses(client, "purge", inputResponses=responses)

    assert (await next_round(client, "purge", first, responses)).error == INVALID_PARAMS
    assert alone.error == INVALID_PARAMS
    assert "deleted" not in RUNS


@pytest.mark.requirement("M-11", "E-13")
async def test_m_11_an_answer_that_does_not_fit_is_asked_for_again(client: EndpointClient) -> None:
    """A person who typed the wrong thing gets another chance."""
    first = await call_with_responses(client, "purge")
    second = await next_round(client, "purge", first, {"confirm": accepted_form(ok="perhaps")})

    assert list(input_requests_of(second)) == ["confirm"]
    assert result_text(await next_round(client, "purge", second, CONFIRMATION)) == "accept ok=True"


async def test_input_requests_of_several_tasks_are_sent_at_once(client: EndpointClient) -> None:
    """A tool may ask from tasks of its own."""
    first = await call_with_responses(client, "ask_in_tasks")

    assert set(input_requests_of(first)) == {"one", "two"}
    answers = {"one": accepted_form(ok=True), "two": {"action": "decline"}}
    assert result_text(await next_round(client, "ask_in_tasks", first, answers)) == "accept decline"


@pytest.mark.requirement("J-08", "M-02")
async def test_j_08_a_stream_ends_with_the_input_requests_and_sends_no_request(
    client: EndpointClient,
) -> None:
    """Progress may come first; the input requests are in the result."""
    response = await call_with_responses(
        client, "test_streaming_elicitation", meta={"progressToken": 1}
    )

    *before, last = response.events
    assert [event["method"] for event in before] == ["notifications/progress"]
    assert not any("id" in event for event in before)
    assert last["result"]["resultType"] == "input_required"


async def test_several_kinds_of_client_requests_go_out_at_once(client: EndpointClient) -> None:
    """Their answers come back in one request."""
    tool = "test_input_required_result_multiple_inputs"
    first = await call_with_responses(client, tool)
    methods = {key: request["method"] for key, request in input_requests_of(first).items()}
    answers = {
        "user_name": accepted_form(name="Ada"),
        "greeting": SAMPLING_RESULT,
        "client_roots": ROOTS,
    }

    assert methods == {
        "user_name": "elicitation/create",
        "greeting": "sampling/createMessage",
        "client_roots": "roots/list",
    }
    assert result_text(await next_round(client, tool, first, answers)) == "Paris (1 folders)"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(width=32, allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
ANSWERS = st.dictionaries(st.sampled_from(["confirm", "question-1", "other"]), JSON) | JSON


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(responses=ANSWERS, state=st.text(max_size=60) | JSON | st.just(...))
async def test_m_11_any_answers_and_state_end_in_an_input_request_or_an_error(
    client: EndpointClient, responses: Any, state: Any
) -> None:
    """No input gets past the question."""
    RUNS.clear()
    more = {} if state is ... else {"requestState": state}
    response: Response = await call_with_responses(
        client, "purge", inputResponses=responses, **more
    )

    if "error" in response.json:
        assert response.json["error"]["code"] == -32602
    elif "deleted" in RUNS:
        assert responses["confirm"]["action"] in ("accept", "decline", "cancel")
    else:
        assert list(input_requests_of(response)) == ["confirm"]
