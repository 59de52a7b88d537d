"""The older revisions without a session: the printed requests, as servers without state do."""

import asyncio
import json
from typing import Any

import pytest

from gatepost import CallContext, Pack
from gatepost.mcp.sessions.requests import SESSION_ID_REQUIRED
from tests.mcp import fixture_tools
from tests.support.endpoint import JSON, VERSION, EndpointClient, Header, a_caller, message

pytestmark = pytest.mark.requirement("DE-07", "DE-24", "DE-25", "A1", "P1")

EVENTS = ("accept", "application/json, text/event-stream")
VERSIONS = [None, "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]
ASSUMED_REVISIONS = {None: "2025-03-26", "2024-11-05": "2025-03-26"}
"""The revision that a request is served in, where that is not the one its header names."""

pack = Pack("sessionless")


@pack.tool()
async def tell(ctx: CallContext) -> str:
    """Report and log."""
    await ctx.progress(1, 1, "half")
    await ctx.log("warning", "careful")
    return "told"


@pack.tool()
async def hang(ctx: CallContext) -> str:
    """Wait forever."""
    Hung.begun.set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        Hung.stopped.set()
        raise
    return ""


class Hung:
    """What happened to the call that never ends."""

    begun = asyncio.Event()
    stopped = asyncio.Event()


def version_headers(version: str | None, *more: Header) -> list[Header]:
    return [JSON, *more] if version is None else [JSON, ("mcp-protocol-version", version), *more]


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_documented_call_is_answered_without_a_session(version: str | None) -> None:
    """`tools/call` in each older revision and in none; no session is opened for it."""
    body = message("tools/call", {"name": "echo", "arguments": {"text": "hello"}}, identity=2)
    answer = await EndpointClient().send(body, version_headers(version))

    assert answer.status == 200
    assert answer.json["id"] == 2
    assert answer.json["result"]["content"] == [{"type": "text", "text": "hello"}]
    assert answer.json["result"]["isError"] is False
    assert "mcp-session-id" not in answer.headers


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_method_that_needs_no_session_answers_without_one(version: str | None) -> None:
    """Each method gives the same answer as in a session."""
    client = EndpointClient(
        [*fixture_tools.resource_pack.offers, *fixture_tools.question_pack.tools.values()]
    )
    session = await client.open(ASSUMED_REVISIONS.get(version, version))
    reference = {"type": "ref/prompt", "name": "test_prompt_with_arguments"}
    methods: list[tuple[str, Any]] = [
        ("ping", None),
        ("tools/list", None),
        ("resources/list", {}),
        ("resources/templates/list", {}),
        ("resources/read", {"uri": "test://static-text"}),
        ("prompts/list", {}),
        ("prompts/get", {"name": "test_simple_prompt"}),
        ("completion/complete", {"ref": reference, "argument": {"name": "arg1", "value": "p"}}),
        ("resources/read", {"uri": "test://no-such"}),
        ("no/method", {}),
        ("server/discover", {}),
        ("tools/list", {"cursor": 5}),
    ]
    for method, params in methods:
        alone = await client.send(message(method, params), version_headers(version))
        within = await client.within(session, message(method, params))

        assert (alone.status, alone.body) == (within.status, within.body), method


@pytest.mark.parametrize("verb", ["POST", "GET", "DELETE"])
async def test_revision_2024_11_05_in_the_header_counts_as_no_header(verb: str) -> None:
    """Samples name 2024-11-05 in the header, also of a handshake, a notification and a batch."""
    client = EndpointClient()
    params = {"protocolVersion": "2024-11-05"}
    bodies = [
        message("initialize", params),
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
        b"[" + message("ping") + b"]",
    ]
    for body in bodies if verb == "POST" else [b""]:
        plain = await client.send(body, version_headers(None), verb=verb)
        named = await client.send(body, version_headers("2024-11-05"), verb=verb)

        assert (named.status, named.body) == (plain.status, plain.body)
        assert ("mcp-session-id" in named.headers) == ("mcp-session-id" in plain.headers)


async def test_an_ended_session_is_unknown_and_not_served_without_one() -> None:
    """A named session is looked up: its client must learn that it is gone."""
    client = EndpointClient()
    session = await client.open()
    await client.send(b"", [("mcp-session-id", session)], verb="DELETE")

    for lost in (session, "invented", ""):
        assert (await client.within(lost, message("tools/list"))).status == 404


async def test_a_tool_that_asks_fails_without_a_session() -> None:
    """The client's capabilities are unknown, so it is asked nothing, whatever it accepts."""
    client = EndpointClient(fixture_tools.question_pack.tools.values())
    body = message("tools/call", {"name": "test_elicitation", "arguments": {"message": "Who?"}})
    for version in VERSIONS:
        answer = await client.send(body, version_headers(version, EVENTS))
        result = answer.json["result"]

        assert result["isError"] is True
        assert "elicitation" in result["content"][0]["text"]


async def test_a_client_of_event_streams_receives_more_than_a_client_of_json() -> None:
    """Progress and log messages come before the answer, where `Accept` names events."""
    client = EndpointClient(pack.tools.values())
    params = {"name": "tell", "arguments": {}, "_meta": {"progressToken": 1.5}}
    body = message("tools/call", params)
    heard = (await client.send(body, version_headers(None, EVENTS))).events
    plain = [
        await client.send(body, version_headers(None)),
        await client.send(body, [JSON, ("accept", "*/*")]),
    ]

    assert [message.get("method") for message in heard] == [
        "notifications/progress",
        "notifications/message",
        None,
    ]
    assert heard[0]["params"]["progressToken"] == 1.5
    for answer in plain:
        assert answer.json["result"]["content"][0]["text"] == "told"


async def test_a_disconnect_cancels_a_request_without_a_session() -> None:
    """A notification could not: there is no session to find the request in."""
    Hung.begun, Hung.stopped, leave = asyncio.Event(), asyncio.Event(), asyncio.Event()
    client = EndpointClient(pack.tools.values())
    body = message("tools/call", {"name": "hang", "arguments": {}})
    async with asyncio.timeout(20):
        calling = asyncio.create_task(client.send(body, hang_up=leave))
        await Hung.begun.wait()
        leave.set()
        await Hung.stopped.wait()
        await calling


async def test_a_suspended_tenant_and_a_repeated_header_are_refused() -> None:
    """The way without a session is no way around what guards the other."""
    client = EndpointClient(suspended=frozenset({"acme"}))
    suspended = await client.send(message("tools/list"))
    client.caller = a_caller(tenant_id="globex")
    twice = [("mcp-protocol-version", "2025-06-18"), ("mcp-protocol-version", "2025-11-25")]
    doubled = await client.send(message("tools/list"), [JSON, *twice])
    plain = await client.send(message("tools/list"), [("content-type", "text/plain")])
    modern = await client.send(message("tools/list"), version_headers(VERSION))

    assert suspended.error == (200, -31001)
    assert doubled.error == (400, -32020)
    assert plain.status == 415
    assert modern.error == (400, -32602)


async def test_a_refusal_in_a_batch_keeps_no_reference_to_its_request() -> None:
    """The exception is a constant, so a traceback would gather data of every request."""
    batch = [json.loads(message("logging/setLevel", {"level": "info"}, identity=1))] * 10
    answer = await EndpointClient().send(json.dumps(batch).encode(), version_headers(None))

    assert [message["error"]["message"] for message in answer.json] == [
        str(SESSION_ID_REQUIRED.message)
    ] * 10
    assert SESSION_ID_REQUIRED.__traceback__ is None
