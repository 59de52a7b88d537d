"""What a running server sends to a collector, and what it never sends."""

import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from gatepost.runtime.exporter import NoExporter
from tests.support.client import RestClient, result
from tests.support.internet import metrics_page
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.processes import python_environment
from tests.support.server import Server, issuer_settings, running_server
from tests.telemetry.test_otlp_http import Collector, attributes_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
KEY = "collector-key-0001"
PRIVATE_ARGUMENT = "argument-of-alice-4711"


class TracedServer(NamedTuple):
    gatepost: Server
    collector: Collector

    @property
    def token(self) -> str:
        token: str = self.gatepost.token(org_id="acme", sub="alice-4711", scope="files:read")
        return token


def settings(collector: Collector, **telemetry: Any) -> dict[str, Any]:
    return {
        "telemetry": {
            "otlp_endpoint": collector.url,
            "otlp_headers": {"X-Api-Key": "env:COLLECTOR_KEY"},
            "service_name": "gate-of-tests",
            **telemetry,
        },
        "tools": {"packs": ["demo", "filesystem"]},
        "tenancy": {"create_on_first_use": True},
    }


@pytest.fixture(scope="module")
def idp_with_key() -> Iterator[Idp]:
    with pytest.MonkeyPatch.context() as patch, Idp() as idp:
        patch.setenv("COLLECTOR_KEY", KEY)
        patch.setattr("gatepost.telemetry.otlp.EVERY_MS", 50)
        yield idp


@pytest.fixture(scope="module")
def server(idp_with_key: Idp) -> Iterator[TracedServer]:
    idp = idp_with_key
    with (
        Collector() as collector,
        running_server(idp, [issuer_settings(idp)], **settings(collector)) as running,
    ):
        yield TracedServer(running, collector)


@pytest.fixture(autouse=True)
def only_this_test(server: TracedServer) -> None:
    """Let the collector return only spans of this test."""
    server.collector.since_ns = time.time_ns()


def test_a_call_is_one_span_with_the_names_of_the_convention(server: TracedServer) -> None:
    """The span has method, tool, revision and outcome, and the resource names the service."""
    server.gatepost.client.call(server.token, "echo", {"text": PRIVATE_ARGUMENT})
    span = server.collector.span("tools/call echo")
    attributes = attributes_of(span.attributes)

    assert attributes["mcp.method.name"] == "tools/call"
    assert attributes["gen_ai.tool.name"] == "echo"
    assert attributes["gen_ai.operation.name"] == "execute_tool"
    assert attributes["mcp.protocol.version"] == "2026-07-28"
    assert attributes["gatepost.outcome"] == "success"
    assert span.kind == span.SPAN_KIND_SERVER
    assert span.end_time_unix_nano > span.start_time_unix_nano
    assert span.parent_span_id == b""
    assert server.collector.resources[-1]["service.name"] == "gate-of-tests"
    assert server.collector.headers[-1]["X-Api-Key"] == KEY


FAILED_CALLS: dict[str, tuple[str, dict[str, Any], str, dict[str, str]]] = {
    "by the tool": (
        "fs_read_text",
        {"path": "none.txt"},
        "tools/call fs_read_text",
        {"error.type": "tool_error", "gatepost.outcome": "not_found"},
    ),
    "by its arguments": (
        "echo",
        {"txt": PRIVATE_ARGUMENT},
        "tools/call echo",
        {"error.type": "tool_error", "gatepost.outcome": "validation"},
    ),
    "unknown tool": (
        "ghp_no_such_tool",
        {},
        "tools/call",
        {"error.type": "-32602", "rpc.response.status_code": "-32602"},
    ),
}


@pytest.mark.parametrize("case", FAILED_CALLS)
def test_a_failed_call_has_its_kind_of_failure(server: TracedServer, case: str) -> None:
    """The span has the kind of failure, and no name that only the client knows."""
    tool, arguments, name, expected = FAILED_CALLS[case]
    server.gatepost.client.call(server.token, tool, arguments)
    span = server.collector.span(
        name,
        error__type=expected["error.type"],
        **{key.replace(".", "__"): value for key, value in expected.items() if key != "error.type"},
    )

    assert span.status.code == span.status.STATUS_CODE_ERROR
    assert span.status.message == ""
    assert list(span.events) == []


def test_a_call_by_rest_is_a_span_too(server: TracedServer) -> None:
    """It has the route and the status."""
    RestClient(server.gatepost, server.token).call("echo", {"text": PRIVATE_ARGUMENT})
    span = server.collector.span("POST /tool/{name}/call", gen_ai__tool__name="echo")

    assert attributes_of(span.attributes)["http.response.status_code"] == "200"


def test_a_context_of_a_caller_becomes_a_link(server: TracedServer) -> None:
    """Contexts from `_meta` and from the header become links of a new trace."""
    meta = {"traceparent": PARENT, "tracestate": "vendor=theirs"}
    server.gatepost.client.ask(
        server.token,
        "tools/call",
        {"name": "whoami", "arguments": {}, "_meta": meta},
        fields=[("traceparent", PARENT.replace(SPAN, "1" * 16))],
    )
    span = server.collector.span("tools/call whoami")

    assert span.trace_id.hex() != TRACE
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in span.links] == [
        (TRACE, SPAN),
        (TRACE, "1" * 16),
    ]
    assert "theirs" not in str(span)


@pytest.mark.requirement("J-17")
@pytest.mark.parametrize("parent", ["nonsense", 42, None, {"a": 1}, PARENT.upper()])
def test_a_malformed_trace_context_is_ignored(server: TracedServer, parent: Any) -> None:
    """A malformed context changes neither the answer nor the span."""
    params = {"name": "echo", "arguments": {"text": "x"}, "_meta": {"traceparent": parent}}
    answer = server.gatepost.client.ask(server.token, "tools/call", params)

    assert result(answer)["isError"] is False
    server.collector.span("tools/call echo")


def test_log_events_arrive_with_their_span_and_without_secrets(server: TracedServer) -> None:
    """Exported log records are redacted like the log."""
    logging.getLogger("gatepost.test").warning("Bearer abcdefgh12345678 was refused by %s", "us")
    eventually(
        lambda: [
            record for record in server.collector.records if "by us" in record.body.string_value
        ],
        within=10,
    )

    assert not any(b"abcdefgh12345678" in body for body in server.collector.raw)


def test_audit_records_arrive_without_the_caller(server: TracedServer) -> None:
    """They have kind, number, tool and outcome."""
    server.gatepost.client.call(server.token, "echo", {"text": PRIVATE_ARGUMENT})

    def records() -> list[dict[str, str]]:
        return [
            attributes_of(record.attributes)
            for record in server.collector.records
            if record.event_name == "gatepost.audit"
        ]

    eventually(records, within=10)
    assert records()[-1]["gatepost.outcome"]
    assert "gatepost.tenant" not in records()[-1]


def test_no_private_data_of_a_caller_is_exported(server: TracedServer) -> None:
    """The collector gets no token, argument, subject, tenant or name that only the client knows."""
    token = server.token
    server.gatepost.client.call(token, "echo", {"text": PRIVATE_ARGUMENT})
    server.gatepost.client.call(token, "ghp_no_such_tool", {})
    server.gatepost.client.ask(token, f"made/{PRIVATE_ARGUMENT}", {})
    server.collector.span("_OTHER")
    sent = b"".join(server.collector.raw)

    for private in (token, PRIVATE_ARGUMENT, "alice-4711", "ghp_no_such_tool", "acme", KEY):
        assert private.encode() not in sent


def test_a_caller_may_be_trusted_with_its_trace(idp_with_key: Idp) -> None:
    """With `trust_parent`, its trace continues and its sampling decision holds."""
    idp = idp_with_key
    with Collector() as collector:
        trusting = settings(collector, trust_parent=True, trace_tenant=True)
        with running_server(idp, [issuer_settings(idp)], **trusting) as running:
            token = running.token(org_id="acme")
            for flags, tool in (("00", "whoami"), ("01", "echo")):
                meta = {"traceparent": f"00-{TRACE}-{SPAN}-{flags}", "tracestate": "vendor=1"}
                params = {"name": tool, "arguments": {"text": "x"} if tool == "echo" else {}}
                running.client.ask(token, "tools/call", {**params, "_meta": meta})
            span = collector.span("tools/call echo")

    assert span.trace_id.hex() == TRACE
    assert span.parent_span_id.hex() == SPAN
    assert span.trace_state == "vendor=1"
    assert attributes_of(span.attributes)["gatepost.tenant"] == "acme"
    assert [span.name for span in collector.spans if "whoami" in span.name] == []


def test_a_collector_that_is_down_blocks_nothing(idp_with_key: Idp) -> None:
    """Calls are answered, dropped spans are counted, and the server stops in time."""
    idp = idp_with_key
    with Collector() as collector:
        collector.status = 400
        with running_server(idp, [issuer_settings(idp)], **settings(collector)) as running:
            token = running.token(org_id="acme")
            assert result(running.client.call(token, "echo", {"text": "x"}))["isError"] is False
            metrics = running.shared_metrics
            eventually(
                lambda: metrics_page(metrics).value(
                    "gatepost_telemetry_dropped_total", signal="traces"
                ),
                within=10,
            )

    assert collector.spans == []


def test_unsampled_spans_are_not_sent(idp_with_key: Idp) -> None:
    """This holds whatever the caller's context says about sampling."""
    idp = idp_with_key
    with Collector() as collector:
        config = settings(collector, sample_ratio=0.0, logs=False)
        with running_server(idp, [issuer_settings(idp)], **config) as running:
            token = running.token(org_id="acme")
            for _ in range(20):
                running.client.ask(
                    token,
                    "tools/call",
                    {"name": "whoami", "arguments": {}, "_meta": {"traceparent": PARENT}},
                    fields=[("traceparent", PARENT)],
                )

    assert json.dumps([span.name for span in collector.spans]) == "[]"


PROGRAM = """
import sys
import gatepost.serve, gatepost.cli.serve
unused = ("opentelemetry", "prometheus_client", "requests")
print([name for name in sys.modules if name.startswith(unused)])
"""


def test_a_server_without_a_collector_loads_no_exporter() -> None:
    """Such a server spends neither start-up time nor memory on the libraries."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert ran.stdout.strip() == "[]"


def test_a_server_without_a_collector_has_no_tracer() -> None:
    """It has no tracer and does not listen to the audit writer."""
    with (
        Idp() as idp,
        running_server(
            idp, [issuer_settings(idp)], tenancy={"create_on_first_use": True}
        ) as server,
    ):
        exporter = server.services.exporter

        assert isinstance(exporter, NoExporter)
        assert exporter.tracer is None
        assert exporter.recorded is None
