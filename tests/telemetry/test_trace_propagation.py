"""Which callers and servers get Gatepost's trace context."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from gatepost import CallContext, Pack
from tests.support.client import result
from tests.support.issuers import AsgiServer, Idp, Receive, Scope, Send, respond
from tests.support.measuring import eventually
from tests.support.server import Server, issuer_settings, running_server
from tests.telemetry.test_otlp_http import Collector

pack = Pack("sample")
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pack.tool()
async def name_yourself(ctx: CallContext) -> str:
    """Ask the client for a name."""
    answered = await ctx.ask("Who are you?", FORM)
    return f"{answered.content and answered.content['name']}"


@pack.tool()
async def pass_on(ctx: CallContext) -> str:
    """Call another tool."""
    outcome = await ctx.call("echo", {"text": "inner"})
    return "failed" if outcome.failure else "done"


@pack.tool()
async def fetch(ctx: CallContext, url: str) -> str:
    """Get a page."""
    reply = await ctx.http.send("GET", url)
    return str(reply.status)


PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CLIENT_CAPABILITIES = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}


@contextlib.contextmanager
def trace_server() -> Iterator[tuple[str, list[str | None]]]:
    """Run a server that answers 200; yield its origin, and the `traceparent` of each request."""
    received: list[str | None] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        sent = dict(scope["headers"]).get(b"traceparent")
        received.append(None if sent is None else sent.decode())
        await respond(send, 200, b"")

    with AsgiServer(app) as server:
        yield server.url, received


class ServerWithUpstreams(NamedTuple):
    gatepost: Server
    collector: Collector
    configured: tuple[str, list[str | None]]
    other: tuple[str, list[str | None]]

    def ask(self, tool: str, arguments: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        answer = self.gatepost.client.ask(self.gatepost.token(org_id="acme"), "tools/call", params)
        return result(answer)


@pytest.fixture(scope="module")
def gatepost_server() -> Iterator[ServerWithUpstreams]:
    with (
        Idp() as idp,
        Collector() as collector,
        trace_server() as configured,
        trace_server() as other,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("gatepost.telemetry.otlp.EVERY_MS", 50)
        near = [origin.removeprefix("http://") for origin, _ in (configured, other)]
        config = {
            "telemetry": {
                "otlp_endpoint": collector.url,
                "logs": False,
                "propagate_to": [f"http://{near[0]}"],
            },
            "network": {"allow_hosts": near},
            "tools": {"packs": ["demo"], "load": [__name__]},
            "tenancy": {"create_on_first_use": True},
        }
        with running_server(idp, [issuer_settings(idp)], **config) as running:
            yield ServerWithUpstreams(running, collector, configured, other)


@pytest.fixture(autouse=True)
def only_this_test(gatepost_server: ServerWithUpstreams) -> None:
    """Let the collector return only spans of this test."""
    gatepost_server.collector.since_ns = time.time_ns()


def request_of(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of the only question in an answer."""
    assert answer["resultType"] == "input_required"
    [request] = answer["inputRequests"].values()
    params: dict[str, Any] = request["params"]
    return params


def test_a_caller_that_sent_a_context_gets_ours(gatepost_server: ServerWithUpstreams) -> None:
    """The question's `_meta` has the context, and the next round accepts the answer."""
    first = gatepost_server.ask("name_yourself", {}, {**CLIENT_CAPABILITIES, "traceparent": PARENT})
    traceparent = request_of(first)["_meta"]["traceparent"]

    def span_contexts() -> list[str]:
        spans = [
            span
            for span in gatepost_server.collector.spans
            if span.name == "tools/call name_yourself"
        ]
        return [f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01" for span in spans]

    # Others of these tests ask the same; the collector hears of each a moment later.
    eventually(lambda: traceparent in span_contexts(), within=10)
    [key] = first["inputRequests"]
    params = {
        "name": "name_yourself",
        "arguments": {},
        "_meta": {**CLIENT_CAPABILITIES, "traceparent": PARENT},
        "inputResponses": {key: {"action": "accept", "content": {"name": "Ada"}}},
        "requestState": first["requestState"],
    }
    answer = gatepost_server.gatepost.client.ask(
        gatepost_server.gatepost.token(org_id="acme"), "tools/call", params
    )
    assert result(answer)["content"][0]["text"] == "Ada"


def test_a_caller_without_a_context_gets_none(gatepost_server: ServerWithUpstreams) -> None:
    """Its questions have no `_meta`."""
    assert "_meta" not in request_of(gatepost_server.ask("name_yourself", {}, CLIENT_CAPABILITIES))


def test_only_configured_origins_get_the_context(gatepost_server: ServerWithUpstreams) -> None:
    """Other servers get no context."""
    for origin, _ in (gatepost_server.configured, gatepost_server.other):
        assert gatepost_server.ask("fetch", {"url": f"{origin}/page"}, {})["isError"] is False
    span = gatepost_server.collector.span("tools/call fetch")

    assert gatepost_server.other[1] == [None]
    [traceparent] = gatepost_server.configured[1]
    assert traceparent is not None
    assert traceparent.endswith("-01")
    assert traceparent.split("-")[1] in {
        span.trace_id.hex() for span in gatepost_server.collector.spans
    }
    assert span.kind == span.SPAN_KIND_SERVER


def test_a_nested_call_is_a_child_span(gatepost_server: ServerWithUpstreams) -> None:
    """It belongs to the same trace and has the name of the convention for tools."""
    assert gatepost_server.ask("pass_on", {}, {})["content"][0]["text"] == "done"
    outer = gatepost_server.collector.span("tools/call pass_on")
    inner = gatepost_server.collector.span("execute_tool echo")

    assert inner.trace_id == outer.trace_id
    assert inner.parent_span_id == outer.span_id
    assert inner.kind == inner.SPAN_KIND_INTERNAL
