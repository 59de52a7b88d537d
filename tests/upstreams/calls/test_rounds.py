"""Modern callers of modern upstreams: rounds, and what their state is bound to."""

import msgspec
import pytest

from gatepost.secrets.keyring import KeyRing
from gatepost.upstreams.connection import UpstreamResult
from tests.support.client_requests import (
    accepted_form,
    call_with_responses,
    input_requests_of,
    next_round,
    result_text,
)
from tests.support.endpoint import a_caller
from tests.upstreams.calls.test_calls import (
    CRM,
    Exchanged,
    ScriptedUpstreamCalls,
    UpstreamGate,
    asks_in_rounds,
    definition,
    offered_tool,
)

TOOL = "mcp_crm__act"
CONFIRMATION = accepted_form(ok=True)


async def test_a_modern_caller_answers_a_modern_upstream() -> None:
    upstream = ScriptedUpstreamCalls(asks_in_rounds)
    gate = UpstreamGate(upstream)

    first = await call_with_responses(gate.client, TOOL)
    (key, client_request), *_ = input_requests_of(first).items()
    second = await next_round(gate.client, TOOL, first, {key: accepted_form(ok=True)})

    assert client_request["params"]["message"] == "crm: Sure?"
    assert "their-state" not in first.body.decode()
    assert result_text(second) == "{'ok': True}"
    assert upstream.ran() == 2


async def test_the_rounds_of_a_modern_upstream_need_no_replica_of_their_own() -> None:
    upstream, keyring = ScriptedUpstreamCalls(asks_in_rounds), KeyRing.ephemeral()
    here, remote = (UpstreamGate(upstream, keyring=keyring) for _ in range(2))

    first = await call_with_responses(here.client, TOOL)
    second = await next_round(
        remote.client, TOOL, first, dict.fromkeys(input_requests_of(first), CONFIRMATION)
    )

    assert result_text(second) == "{'ok': True}"


async def test_an_answer_that_does_not_fit_the_form_is_asked_again() -> None:
    """The upstream gets only the valid answer."""
    upstream = ScriptedUpstreamCalls(asks_in_rounds)
    gate = UpstreamGate(upstream)
    first = await call_with_responses(gate.client, TOOL)

    again = await next_round(
        gate.client, TOOL, first, dict.fromkeys(input_requests_of(first), accepted_form(ok="?"))
    )
    last = await next_round(
        gate.client, TOOL, again, dict.fromkeys(input_requests_of(first), CONFIRMATION)
    )

    assert input_requests_of(again) == input_requests_of(first)
    assert result_text(last) == "{'ok': True}"
    assert upstream.ran() == 2


async def test_a_state_counts_for_one_caller_and_one_call() -> None:
    upstream = ScriptedUpstreamCalls(asks_in_rounds)
    gate = UpstreamGate(
        upstream,
        offers=lambda calls: [offered_tool(calls), offered_tool(calls, CRM, definition("delete"))],
    )
    first = await call_with_responses(gate.client, TOOL)
    answers = dict.fromkeys(input_requests_of(first), CONFIRMATION)

    refused = [
        await next_round(gate.client, "mcp_crm__delete", first, answers),
        await next_round(gate.client, TOOL, first, answers, {"a": 1}),
    ]
    for changed in ({"subject": "bob"}, {"tenant_id": "globex"}, {"client_id": "other"}):
        gate.client.caller = a_caller(**changed)
        refused.append(await next_round(gate.client, TOOL, first, answers))

    assert {response.error for response in refused} == {(400, -32602)}
    assert upstream.ran() == 1


@pytest.mark.parametrize("changed_part", ["server", "definition"])
async def test_a_state_counts_for_one_server_and_one_definition(changed_part: str) -> None:
    """A server that took over a name must not get the state of the former one."""
    upstream, keyring = ScriptedUpstreamCalls(asks_in_rounds), KeyRing.ephemeral()
    server, changed_definition = CRM, definition()
    before = UpstreamGate(upstream, keyring=keyring)
    if changed_part == "server":
        server = msgspec.structs.replace(CRM, id="another")
    else:
        changed_definition = msgspec.structs.replace(changed_definition, digest="changed")
    after = UpstreamGate(upstream, keyring=keyring, server=server, definition=changed_definition)
    first = await call_with_responses(before.client, TOOL)

    second = await next_round(
        after.client, TOOL, first, dict.fromkeys(input_requests_of(first), CONFIRMATION)
    )

    assert second.json["result"]["isError"]
    assert "Call again" in result_text(second)
    assert upstream.ran() == 1


async def test_a_client_request_that_may_not_pass_ends_the_call() -> None:
    """A modern upstream would repeat a refused question in its next answer."""

    async def wants_a_password(_: Exchanged) -> UpstreamResult:
        schema = {"type": "object", "properties": {"password": {"type": "string"}}}
        params = {"mode": "form", "message": "?", "requestedSchema": schema}
        input_requests = {"q": {"method": "elicitation/create", "params": params}}
        return UpstreamResult({"resultType": "input_required", "inputRequests": input_requests})

    gate = UpstreamGate(ScriptedUpstreamCalls(wants_a_password))

    response = await call_with_responses(gate.client, TOOL)

    assert "may not ask" in result_text(response)


async def test_a_page_is_https_and_marked_as_foreign() -> None:
    async def sends_to(exchange: Exchanged) -> UpstreamResult:
        url = exchange.params["arguments"]["url"]
        params = {"mode": "url", "message": "Sign in", "url": url}
        input_requests = {"q": {"method": "elicitation/create", "params": params}}
        return UpstreamResult({"resultType": "input_required", "inputRequests": input_requests})

    gate = UpstreamGate(ScriptedUpstreamCalls(sends_to))
    good_answer = await call_with_responses(gate.client, TOOL, {"url": "https://crm.example.com/a"})
    (elicitation,) = input_requests_of(good_answer).values()

    assert elicitation["params"]["message"].startswith(
        "crm: Sign in (The page is at crm.example.com"
    )
    for bad in ("http://127.0.0.1/", "javascript:alert(1)", "https://a:b@crm.example.com/"):
        assert "may not ask" in result_text(
            await call_with_responses(gate.client, TOOL, {"url": bad})
        )
