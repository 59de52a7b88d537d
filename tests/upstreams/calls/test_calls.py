"""What is sent to an upstream, and what callers hear when it fails."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.api import CallContext
from gatepost.tools.client import SilentClient
from gatepost.tools.content import Relevance
from gatepost.tools.offers import ResourceOffer
from gatepost.upstreams.calls.health import FAILURES
from gatepost.upstreams.calls.progress_and_logs import passed_on
from gatepost.upstreams.catalogue import Definition
from gatepost.upstreams.connection import (
    ConnectionFailure,
    Era,
    FailureReason,
    UpstreamError,
    UpstreamMessage,
    UpstreamNotification,
    UpstreamResult,
)
from gatepost.upstreams.upstream_server import Allowed
from gatepost.workspace import TenantWorkspace
from tests.support.client_requests import ask_again, said
from tests.support.endpoint import a_caller
from tests.upstreams.calls.conftest import (
    CRM,
    Exchanged,
    ScriptedUpstreamCalls,
    UpstreamGate,
    definition,
    text_result,
)

TOOL = "mcp_crm__act"


def answering(message: UpstreamMessage | ConnectionFailure) -> ScriptedUpstreamCalls:
    async def script(_: Exchanged) -> UpstreamMessage | ConnectionFailure:
        return message

    return ScriptedUpstreamCalls(script)


async def test_the_request_is_made_anew() -> None:
    """Its own name, headers by its definition, and nothing of the caller's `_meta`."""
    schema = {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "n": {"type": "integer", "x-mcp-header": "N"},
            "on": {"type": "boolean", "x-mcp-header": "On"},
        },
    }
    upstream = answering(text_result("ok"))
    gate = UpstreamGate(upstream, made=definition(inputSchema=schema))
    arguments = {"region": "Zürich", "n": 3, "on": True}
    await ask_again(gate.client, TOOL, arguments, meta={"secret": "x", "progressToken": "p"})

    (sent,) = upstream.exchanges
    assert sent.params == {"name": "act", "arguments": arguments}
    assert sent.options.header_arguments == {
        "Mcp-Param-Region": "=?base64?WsO8cmljaA==?=",
        "Mcp-Param-N": "3",
        "Mcp-Param-On": "true",
    }
    assert sent.options.log_level is None
    assert upstream.principals == [None]


async def test_the_idempotency_key_goes_along_but_differs_for_each_caller() -> None:
    upstream = answering(text_result("ok"))
    gate = UpstreamGate(upstream)
    meta = {"io.gatepost/idempotency-key": "k"}
    await ask_again(gate.client, TOOL, meta=meta)
    gate.client.caller = a_caller(subject="bob")
    await ask_again(gate.client, TOOL, meta=meta)
    await ask_again(gate.client, TOOL)

    alices, bobs, without = (one.options.idempotency_key for one in upstream.exchanges)
    assert alices is not None
    assert bobs is not None
    assert len({alices, bobs, "k"}) == 3
    assert without is None


async def test_a_stateful_server_has_a_session_for_each_caller() -> None:
    upstream = answering(text_result("ok"))
    gate = UpstreamGate(upstream, server=msgspec.structs.replace(CRM, stateful=True))
    await ask_again(gate.client, TOOL)

    assert upstream.principals == [gate.client.caller.principal_key]


FAILURES_HEARD: list[tuple[FailureReason, str]] = [
    ("unreachable", "crm is away."),
    ("unauthorized", "does not accept the credential"),
    ("overloaded", "crm is away."),
    ("session_lost", "crm is away."),
    ("timeout", "It may have been carried out"),
    ("invalid", "It may have been carried out"),
    ("outcome_unknown", "It is unknown whether crm carried out the call."),
]


@pytest.mark.parametrize(("reason", "sentence"), FAILURES_HEARD)
async def test_a_failure_says_what_may_have_happened(reason: FailureReason, sentence: str) -> None:
    """None of them is a 401 of ours, and none invites a call that may run twice."""
    gate = UpstreamGate(answering(ConnectionFailure(reason, "crm is away.")))

    response = await ask_again(gate.client, TOOL)

    assert response.status == 200
    assert response.json["result"]["isError"]
    assert sentence in said(response)


NEEDS_FORMS = UpstreamError(
    -32021, "No forms", {"requiredCapabilities": {"elicitation": {"form": {}}}}
)


@pytest.mark.parametrize(
    ("era", "allow", "declared", "heard"),
    [
        (
            "modern",
            ("elicitation",),
            {},
            "-32021 This needs a client that can do: elicitation form",
        ),
        ("session", ("elicitation",), {}, "crm needs a client that can do: elicitation form."),
        # What is not allowed here, or was declared, is no lack of the client.
        ("modern", (), {}, "-32603 crm: No forms (code -32021)"),
        ("session", ("elicitation",), {"elicitation": {}}, "-32603 crm: No forms (code -32021)"),
    ],
)
async def test_a_client_that_lacks_what_an_upstream_needs_is_told_so(
    era: Era, allow: tuple[Allowed, ...], declared: dict[str, Any], heard: str
) -> None:
    """The answer is that of a local tool; a call of a session counts as made."""

    async def script(_: Exchanged) -> UpstreamError:
        return NEEDS_FORMS

    upstream = ScriptedUpstreamCalls(script, era=era)
    gate = UpstreamGate(upstream, server=msgspec.structs.replace(CRM, allow=allow))

    response = await ask_again(gate.client, TOOL, capabilities=declared)

    if "error" in response.json:
        error = response.json["error"]
        assert heard in f"{error['code']} {error['message']}"
    else:
        assert response.json["result"]["isError"]
        assert said(response) == heard


@pytest.mark.parametrize(
    ("code", "heard"),
    [(-32602, -32602), (-32603, -32603), (17, 17), (-32601, -32603), (-32002, -32603)],
)
async def test_an_error_of_the_upstream_passes_with_code_and_message(code: int, heard: int) -> None:
    """E2; codes that would say something of this server become internal errors."""
    gate = UpstreamGate(answering(UpstreamError(code, "Bad row")))

    error = (await ask_again(gate.client, TOOL)).json["error"]

    assert error["code"] == heard
    assert "Bad row" in error["message"]


async def test_a_page_to_open_first_is_named() -> None:
    data = {"elicitations": [{"url": "https://crm.example.com/x"}, {"url": "javascript:alert(1)"}]}
    gate = UpstreamGate(answering(UpstreamError(-32042, "visit", data)))

    text = said(await ask_again(gate.client, TOOL))

    assert "https://crm.example.com/x" in text
    assert "javascript" not in text


async def test_an_answer_that_breaks_its_schema_is_withheld_and_not_retried() -> None:
    made = definition(outputSchema={"type": "object", "required": ["n"]})
    gate = UpstreamGate(answering(text_result("a secret", structuredContent={})), made=made)

    response = await ask_again(gate.client, TOOL)

    assert response.json["result"]["isError"]
    assert "broke the protocol" in said(response)
    assert "a secret" not in said(response)


async def test_an_open_circuit_answers_at_once() -> None:
    upstream = answering(text_result("ok"))
    upstream.unreachable = ConnectionFailure("unreachable", "crm refuses connections.")
    gate = UpstreamGate(upstream)
    for _ in range(FAILURES):
        await ask_again(gate.client, TOOL)
    upstream.unreachable = None

    response = await ask_again(gate.client, TOOL)

    assert "crm refuses connections." in said(response)
    assert upstream.exchanges == []
    assert gate.calls.health.numbers("acme", CRM.id).circuit == "open"


async def test_errors_of_tools_leave_the_circuit_closed() -> None:
    upstream = answering(text_result("no", isError=True))
    gate = UpstreamGate(upstream)
    for _ in range(3 * FAILURES):
        assert (await ask_again(gate.client, TOOL)).json["result"]["isError"]

    numbers = gate.calls.health.numbers("acme", CRM.id)
    assert (numbers.circuit, numbers.failures, numbers.calls) == ("closed", 0, 3 * FAILURES)


async def test_a_hang_up_cancels_the_call() -> None:
    async def hangs(_: Exchanged) -> None:
        await asyncio.Event().wait()

    upstream = ScriptedUpstreamCalls(hangs)
    gate = UpstreamGate(upstream)
    leaves = asyncio.Event()
    call = {"name": TOOL, "arguments": {}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": _modern(call)})
    headers = [
        ("content-type", "application/json"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", TOOL),
    ]
    sending = asyncio.create_task(gate.client.send(body.encode(), headers, hang_up=leaves))
    await asyncio.wait_for(upstream.begun.wait(), 20)
    leaves.set()
    await asyncio.wait_for(sending, 20)
    await asyncio.wait_for(upstream.ended.wait(), 20)

    assert upstream.exchanges[0].cancelled


def _modern(params: dict[str, Any]) -> dict[str, Any]:
    known = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    return {**params, "_meta": known}


async def test_a_resource_is_read_under_our_uri() -> None:
    made = Definition(
        section="resources", key="a://b", name="mcp-crm-a://b", value={"uri": "a://b"}, digest="d"
    )
    upstream = answering(UpstreamResult({"contents": [{"uri": "a://b", "text": "t"}]}))
    gate = UpstreamGate(
        upstream,
        offers=lambda calls: [
            ResourceOffer(
                uri=made.name,
                name="b",
                description="B.",
                relevance=Relevance(),
                check=lambda _: (made.name, {}),
                invoke=calls.resource(CRM, made),
            )
        ],
    )

    response = await gate.client.ask("resources/read", {"uri": made.name})

    assert response.json["result"]["contents"] == [{"uri": made.name, "text": "t"}]
    assert upstream.exchanges[0].params == {"uri": "a://b"}


async def test_a_large_structured_answer_is_checked_too() -> None:
    """A thread checks it, so that it delays no other call."""
    made = definition(outputSchema={"type": "object", "properties": {"n": {"type": "string"}}})
    fits = answering(text_result("", structuredContent={"n": "x" * 300_000}))
    breaks = answering(text_result("", structuredContent={"n": ["x" * 300_000]}))

    good = await ask_again(UpstreamGate(fits, made=made).client, TOOL)
    bad = await ask_again(UpstreamGate(breaks, made=made).client, TOOL)

    assert len(good.json["result"]["structuredContent"]["n"]) == 300_000
    assert "broke the protocol" in said(bad)


async def test_an_outage_of_our_store_during_a_call_does_not_invite_another_one() -> None:
    """The call was sent: a 503 would make the client send it again."""

    class CutOff(SilentClient):
        async def progress(self, *_: object) -> None:
            raise StoreUnavailable("the shared store")

    ctx = CallContext(
        caller=a_caller(), request_id="r", workspace=TenantWorkspace(-1, "acme"), client=CutOff()
    )
    await passed_on(ctx, CRM, UpstreamNotification("notifications/progress", {"progress": 1}))
