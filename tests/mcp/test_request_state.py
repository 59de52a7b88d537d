"""A `requestState` is sealed, for one caller and one call, and expires."""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gatepost import CallContext, Pack
from gatepost.mcp.round_trips import STATE_LASTS_S
from tests.support.client_requests import (
    CONFIRMATION,
    FILES,
    INVALID_PARAMS,
    ROUNDS,
    RUNS,
    Ok,
    accepted_form,
    call_with_responses,
    input_requests_of,
    next_round,
    result_text,
)
from tests.support.endpoint import META, EndpointClient, Response, a_caller


@pytest.fixture
def client() -> EndpointClient:
    RUNS.clear()
    FILES["count"] = 3
    return EndpointClient(ROUNDS.tools.values())


@pytest.mark.requirement("M-05", "M-13", "J-13")
async def test_m_05_m_13_any_replica_continues_a_round_trip(client: EndpointClient) -> None:
    """Two rounds share only what the client sends and the key ring of the replicas."""
    other = EndpointClient(ROUNDS.tools.values(), keyring=client.keyring)
    first = await call_with_responses(client, "purge")

    assert result_text(await next_round(other, "purge", first, CONFIRMATION)) == "accept ok=True"


STATE_CHANGES = [
    ("a letter more", lambda state: state + "A"),
    ("an ending", lambda state: state + "-TAMPERED"),
    ("a letter less", lambda state: state[:-1]),
    ("another first letter of the seal", lambda state: state.replace(".", ".A", 1)),
    ("an unknown key", lambda state: "ffffffff" + state[8:]),
    ("nothing", lambda state: ""),
    ("junk", lambda state: "\u2603." * 9),
    ("too much", lambda state: state * 2000),
]


@pytest.mark.requirement("M-06")
@pytest.mark.parametrize(("what", "change"), STATE_CHANGES, ids=[what for what, _ in STATE_CHANGES])
async def test_m_06_a_changed_state_is_refused(
    client: EndpointClient, what: str, change: Any
) -> None:
    """The tool does not run with a state that was changed in any way."""
    state = (await call_with_responses(client, "purge")).json["result"]["requestState"]
    RUNS.clear()

    response = await call_with_responses(
        client, "purge", inputResponses=CONFIRMATION, requestState=change(state)
    )

    assert (response.error, RUNS) == (INVALID_PARAMS, [])


OTHER_CALLERS = [
    {"tenant_id": "globex"},
    {"subject": "bob"},
    {"subject_kind": "client"},
    {"actor": "an-agent"},
    {"issuer": "https://other.example.com"},
    {"client_id": "another-client"},
    {"client_id": None},
]


@pytest.mark.requirement("M-07", "E-09", "E-16")
@pytest.mark.parametrize("change", OTHER_CALLERS, ids=str)
async def test_m_07_a_state_is_its_callers_own(
    client: EndpointClient, change: dict[str, Any]
) -> None:
    """The state of another caller looks exactly like a forged one."""
    first = await call_with_responses(client, "purge")
    forged = await call_with_responses(
        client, "purge", inputResponses=CONFIRMATION, requestState="forged"
    )
    client.caller = a_caller(**change)
    RUNS.clear()

    response = await next_round(client, "purge", first, CONFIRMATION)

    assert (response.json["error"], RUNS) == (forged.json["error"], [])


@pytest.mark.requirement("M-07")
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("purge", {"table": "other", "size": 1.5}),
        ("purge", {"table": "t", "size": 1.5000000000000000000001}),
        ("purge", {"table": "t"}),
        ("ask_twice", {"table": "t", "size": 1.5}),
    ],
)
async def test_m_07_a_state_is_for_one_call(
    client: EndpointClient, tool: str, arguments: dict[str, Any]
) -> None:
    """An answer to one call does not count for another."""
    first = await call_with_responses(client, "purge", {"table": "t", "size": 1.5})
    RUNS.clear()
    if arguments.get("size") == 1.5 and tool == "purge" and arguments["table"] == "t":
        arguments = {"table": "t", "size": 2**70}

    response = await next_round(client, tool, first, CONFIRMATION, arguments)

    assert (response.error, RUNS) == (INVALID_PARAMS, [])


@pytest.mark.requirement("M-07")
async def test_m_07_a_state_for_one_resource_is_for_no_other() -> None:
    """The state of one resource is refused for another."""
    notes = Pack("notes")

    @notes.resource("note://{name}")
    async def note(ctx: CallContext, name: str) -> str:
        """Return a note."""
        return str((await ctx.ask("Please?", Ok, key="confirm")).action)

    client = EndpointClient(notes.offers)
    declared = {META + "clientCapabilities": {"elicitation": {}}}

    async def read(uri: str, **more: Any) -> Response:
        params = {"uri": uri, "name": "same", **more}
        return await client.ask("resources/read", params, meta=declared, mcp_name=uri)

    state = (await read("note://mine")).json["result"]["requestState"]
    again = {"requestState": state, "inputResponses": CONFIRMATION}

    assert (await read("note://yours", **again)).error == INVALID_PARAMS
    assert (await read("note://mine", **again)).status == 200


@pytest.mark.requirement("M-05")
async def test_m_05_the_spelling_of_arguments_may_differ(client: EndpointClient) -> None:
    """A client that writes its members in another order asks the same."""
    first = await call_with_responses(client, "purge", {"table": "t", "size": 2})

    assert result_text(
        await next_round(client, "purge", first, CONFIRMATION, {"size": 2, "table": "t"})
    )


@pytest.mark.requirement("M-07")
async def test_m_07_a_state_expires(client: EndpointClient) -> None:
    """An old approval by the person counts no more."""
    first = await call_with_responses(client, "purge")
    client.clock.now += STATE_LASTS_S - 1
    assert result_text(await next_round(client, "purge", first, CONFIRMATION))
    client.clock.now += 1

    assert (await next_round(client, "purge", first, CONFIRMATION)).error == INVALID_PARAMS


@pytest.mark.requirement("M-07", "E-13")
async def test_m_07_an_answer_counts_only_for_its_own_input_request(client: EndpointClient) -> None:
    """If the question has changed since, the person is asked again."""
    first = await call_with_responses(client, "purge")
    FILES["count"] = 300
    RUNS.clear()

    second = await next_round(client, "purge", first, CONFIRMATION)

    assert input_requests_of(second)["confirm"]["params"]["message"] == "Delete 300 rows of t?"
    assert RUNS == ["started"]


@pytest.mark.requirement("M-08")
async def test_m_08_a_repeated_state_grants_no_more_than_before(client: EndpointClient) -> None:
    """The state holds answers and no permission: each run is a call like any other."""
    first = await call_with_responses(client, "ask_twice")
    answers = {"question-1": accepted_form(ok=True)}
    again = [await next_round(client, "ask_twice", first, answers) for _ in range(2)]

    assert [list(input_requests_of(response)) for response in again] == [["question-2"]] * 2


@pytest.mark.requirement("M-09")
async def test_m_09_unanswered_client_requests_leave_no_task(client: EndpointClient) -> None:
    """A thousand of them leave no asyncio task behind."""
    before = len(asyncio.all_tasks())
    for _ in range(1000):
        await call_with_responses(client, "purge")

    assert len(asyncio.all_tasks()) == before


async def test_answers_too_large_for_another_round_are_refused(client: EndpointClient) -> None:
    """The state that the client carries has a maximum size."""
    large = {**accepted_form(ok=True), "padding": "x" * 200_000}
    first = await call_with_responses(client, "ask_twice")

    assert (
        await next_round(client, "ask_twice", first, {"question-1": large})
    ).error == INVALID_PARAMS


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tenant=st.sampled_from(["acme", "globex", "acme2"]),
    subject=st.sampled_from(["alice", "bob", ""]),
    kind=st.sampled_from(["user", "client"]),
    issuer=st.sampled_from(["https://id.example.com", "https://other.example.com"]),
    client_id=st.sampled_from(["some-client", None, "other"]),
)
async def test_m_07_only_the_same_principal_can_use_a_state(
    client: EndpointClient, tenant: str, subject: str, kind: Any, issuer: str, client_id: str | None
) -> None:
    """The state of any other caller is refused."""
    client.caller = a_caller()
    first = await call_with_responses(client, "purge")
    client.caller = a_caller(
        tenant_id=tenant, subject=subject, subject_kind=kind, issuer=issuer, client_id=client_id
    )
    response = await next_round(client, "purge", first, CONFIRMATION)

    assert ("result" in response.json) is (client.caller == a_caller())
