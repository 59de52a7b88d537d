"""What a collector is sent by a running server, and what it is never sent."""

import json
import logging
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.rest.octopus import Octopus
from tests.support.door import result
from tests.support.idp import Idp
from tests.support.waiting import eventually
from tests.telemetry.collector import Collector, said
from tests.telemetry.page import page_of
from tests.tenancy.house import House, house, issuer

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
KEY = "collector-key-0001"
PRIVATE = "argument-of-alice-4711"


class Site(NamedTuple):
    house: House
    collector: Collector

    @property
    def token(self) -> str:
        token: str = self.house.token(org_id="acme", sub="alice-4711", scope="files:read")
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
def site(idp_with_key: Idp) -> Iterator[Site]:
    idp = idp_with_key
    with Collector() as collector, house(idp, [issuer(idp)], **settings(collector)) as found:
        yield Site(found, collector)


@pytest.fixture(autouse=True)
def of_this_test_alone(site: Site) -> None:
    """What is asked for is what this test has caused."""
    site.collector.since_ns = time.time_ns()


def test_a_call_is_one_span_with_the_names_of_the_convention(site: Site) -> None:
    """Method, tool, revision and outcome; the service it was is named in the resource."""
    site.house.door.call(site.token, "echo", {"text": PRIVATE})
    span = site.collector.span("tools/call echo")
    told = said(span.attributes)

    assert told["mcp.method.name"] == "tools/call"
    assert told["gen_ai.tool.name"] == "echo"
    assert told["gen_ai.operation.name"] == "execute_tool"
    assert told["mcp.protocol.version"] == "2026-07-28"
    assert told["gatepost.outcome"] == "success"
    assert span.kind == span.SPAN_KIND_SERVER
    assert span.end_time_unix_nano > span.start_time_unix_nano
    assert span.parent_span_id == b""
    assert site.collector.resources[-1]["service.name"] == "gate-of-tests"
    assert site.collector.headers[-1]["X-Api-Key"] == KEY


FAILED: dict[str, tuple[str, dict[str, Any], str, dict[str, str]]] = {
    "by the tool": (
        "fs_read_text",
        {"path": "none.txt"},
        "tools/call fs_read_text",
        {"error.type": "tool_error", "gatepost.outcome": "not_found"},
    ),
    "by its arguments": (
        "echo",
        {"txt": PRIVATE},
        "tools/call echo",
        {"error.type": "tool_error", "gatepost.outcome": "validation"},
    ),
    "as nobody has it": (
        "ghp_no_such_tool",
        {},
        "tools/call",
        {"error.type": "-32602", "rpc.response.status_code": "-32602"},
    ),
}


@pytest.mark.parametrize("case", FAILED)
def test_a_call_that_fails_says_of_which_kind(site: Site, case: str) -> None:
    """By our own word for it; a name that a client made up is nowhere."""
    tool, arguments, name, wanted = FAILED[case]
    site.house.door.call(site.token, tool, arguments)
    span = site.collector.span(
        name,
        error__type=wanted["error.type"],
        **{key.replace(".", "__"): value for key, value in wanted.items() if key != "error.type"},
    )

    assert span.status.code == span.status.STATUS_CODE_ERROR
    assert span.status.message == ""
    assert list(span.events) == []


def test_a_call_by_rest_is_a_span_too(site: Site) -> None:
    """With its route, and the status that it had."""
    Octopus(site.house, site.token).call("echo", {"text": PRIVATE})
    span = site.collector.span("POST /tool/{name}/call", gen_ai__tool__name="echo")

    assert said(span.attributes)["http.response.status_code"] == "200"


def test_a_context_of_a_stranger_is_a_link_and_no_parent(site: Site) -> None:
    """From `_meta` and from the header; a trace of our own, sampled by our own dice."""
    meta = {"traceparent": PARENT, "tracestate": "vendor=theirs"}
    site.house.door.ask(
        site.token,
        "tools/call",
        {"name": "whoami", "arguments": {}, "_meta": meta},
        fields=[("traceparent", PARENT.replace(SPAN, "1" * 16))],
    )
    span = site.collector.span("tools/call whoami")

    assert span.trace_id.hex() != TRACE
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in span.links] == [
        (TRACE, SPAN),
        (TRACE, "1" * 16),
    ]
    assert "theirs" not in str(span)


@pytest.mark.requirement("J-17")
@pytest.mark.parametrize("parent", ["nonsense", 42, None, {"a": 1}, PARENT.upper()])
def test_a_context_that_is_none_changes_nothing(site: Site, parent: Any) -> None:
    """Neither the answer nor the span; nothing of it is sent on."""
    params = {"name": "echo", "arguments": {"text": "x"}, "_meta": {"traceparent": parent}}
    answer = site.house.door.ask(site.token, "tools/call", params)

    assert result(answer)["isError"] is False
    site.collector.span("tools/call echo")


def test_log_events_arrive_with_their_span_and_without_secrets(site: Site) -> None:
    """As clean as the log itself."""
    logging.getLogger("gatepost.test").warning("Bearer abcdefgh12345678 was refused by %s", "us")
    eventually(
        lambda: [one for one in site.collector.records if "by us" in one.body.string_value],
        within=10,
    )

    assert not any(b"abcdefgh12345678" in body for body in site.collector.raw)


def test_audit_records_arrive_without_who_it_was(site: Site) -> None:
    """Kind, number, tool and outcome, for whoever collects them where logs are collected."""
    site.house.door.call(site.token, "echo", {"text": PRIVATE})

    def records() -> list[dict[str, str]]:
        return [
            said(one.attributes)
            for one in site.collector.records
            if one.event_name == "gatepost.audit"
        ]

    eventually(records, within=10)
    assert records()[-1]["gatepost.outcome"]
    assert "gatepost.tenant" not in records()[-1]


def test_nothing_of_a_caller_ever_arrives(site: Site) -> None:
    """No token, no argument, no subject, no tenant, and no name that the client made up."""
    token = site.token
    site.house.door.call(token, "echo", {"text": PRIVATE})
    site.house.door.call(token, "ghp_no_such_tool", {})
    site.house.door.ask(token, f"made/{PRIVATE}", {})
    site.collector.span("_OTHER")
    sent = b"".join(site.collector.raw)

    for private in (token, PRIVATE, "alice-4711", "ghp_no_such_tool", "acme", KEY):
        assert private.encode() not in sent


def test_a_caller_may_be_trusted_with_its_trace(idp_with_key: Idp) -> None:
    """Then its trace goes on, and what it does not sample is not sampled here."""
    idp = idp_with_key
    with Collector() as collector:
        trusting = settings(collector, trust_parent=True, trace_tenant=True)
        with house(idp, [issuer(idp)], **trusting) as found:
            token = found.token(org_id="acme")
            for flags, tool in (("00", "whoami"), ("01", "echo")):
                meta = {"traceparent": f"00-{TRACE}-{SPAN}-{flags}", "tracestate": "vendor=1"}
                params = {"name": tool, "arguments": {"text": "x"} if tool == "echo" else {}}
                found.door.ask(token, "tools/call", {**params, "_meta": meta})
            span = collector.span("tools/call echo")

    assert span.trace_id.hex() == TRACE
    assert span.parent_span_id.hex() == SPAN
    assert span.trace_state == "vendor=1"
    assert said(span.attributes)["gatepost.tenant"] == "acme"
    assert [one.name for one in collector.spans if "whoami" in one.name] == []


def test_a_collector_that_is_down_holds_nobody_up(idp_with_key: Idp) -> None:
    """Calls are answered, what could not be sent is counted, and the server stops in time."""
    idp = idp_with_key
    with Collector() as collector:
        collector.status = 400
        with house(idp, [issuer(idp)], **settings(collector)) as found:
            token = found.token(org_id="acme")
            assert result(found.door.call(token, "echo", {"text": "x"}))["isError"] is False
            board = found.inside.board
            eventually(
                lambda: page_of(board).value("gatepost_telemetry_dropped_total", signal="traces"),
                within=10,
            )

    assert collector.spans == []


def test_what_is_not_sampled_is_not_sent(idp_with_key: Idp) -> None:
    """Whatever a caller says about its own sampling."""
    idp = idp_with_key
    with Collector() as collector:
        config = settings(collector, sample_ratio=0.0, logs=False)
        with house(idp, [issuer(idp)], **config) as found:
            token = found.token(org_id="acme")
            for _ in range(20):
                found.door.ask(
                    token,
                    "tools/call",
                    {"name": "whoami", "arguments": {}, "_meta": {"traceparent": PARENT}},
                    fields=[("traceparent", PARENT)],
                )

    assert json.dumps([one.name for one in collector.spans]) == "[]"
