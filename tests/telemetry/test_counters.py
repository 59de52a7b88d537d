"""What a running server counts."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.types import Message

from gatepost.telemetry.exposition import Exposition, registry_of
from gatepost.telemetry.shared_memory import SharedMetrics
from tests.support.client import MODERN_REVISION, RestClient
from tests.support.internet import MetricsPage, metrics_page
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.server import Server, issuer_settings, running_server


def gathered_page(metrics: SharedMetrics) -> MetricsPage:
    """Return the page as a scrape gets it, including everything that ended before the scrape."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": []}
    asyncio.run(Exposition(registry_of(metrics, version="1.2.3"))(scope, receive, send))
    return MetricsPage(sent[1]["body"].decode())


pytestmark = pytest.mark.requirement("P16")
SECRET = "s3cret-of-acme-0001"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with (
        Idp() as idp,
        running_server(
            idp,
            [issuer_settings(idp, tenants={"acme": "acme"})],
            tools={"packs": ["demo", "filesystem"]},
            telemetry={"tenant_label": True},
        ) as server,
    ):
        yield server


def page(server: Server) -> MetricsPage:
    """Return the current metrics."""
    return metrics_page(server.shared_metrics)


def scraped_page(server: Server) -> MetricsPage:
    """Return the metrics as a scrape gets them, including everything that ended before it."""
    return gathered_page(server.shared_metrics)


def assert_increase(
    server: Server, by: float, work: Callable[[], object], name: str, **labels: str
) -> None:
    """Assert that *work* increases this sample by so much."""
    # Another test's calls, that were answered a moment ago, are in it.
    before = scraped_page(server).value(name, **labels)
    work()
    eventually(lambda: page(server).value(name, **labels) >= before + by, within=20)
    assert page(server).value(name, **labels) == before + by


CALLS = {
    "done": ("echo", {"text": "hello"}, {"tool": "echo", "outcome": "success"}),
    "failed": (
        "fs_read_text",
        {"path": "none.txt"},
        {"tool": "fs_read_text", "outcome": "not_found"},
    ),
    "wrong": ("echo", {"txt": "hello"}, {"tool": "echo", "outcome": "validation"}),
    "unknown": ("ecko", {}, {"tool": "unknown", "outcome": "unknown"}),
    "hostile": ('x"} 1\nforged{', {}, {"tool": "unknown", "outcome": "unknown"}),
    "lacking": (
        "fs_write_text",
        {"path": "a", "content": "b"},
        {"tool": "fs_write_text", "outcome": "insufficient_scope"},
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_call_is_counted_however_it_ends(server: Server, case: str) -> None:
    """A call counts under its tool and outcome, over MCP and over REST."""
    tool, arguments, labels = CALLS[case]
    token = server.token(org_id="acme", scope="files:read")

    def both() -> None:
        server.client.call(token, tool, arguments)
        if case != "hostile":  # no path can hold it
            RestClient(server, token).call(tool, arguments)

    times = 1 if case == "hostile" else 2
    assert_increase(server, times, both, "gatepost_tool_calls_total", **labels)
    seconds = page(server).value("gatepost_tool_call_seconds_sum", tool=labels["tool"])
    assert seconds > 0
    assert page(server).labels("tool") <= {"echo", "fs_read_text", "fs_write_text", "unknown"}


def test_calls_are_counted_by_tenant_with_tenant_label(server: Server) -> None:
    """The label is the id in the configuration."""
    token = server.token(org_id="acme")
    labels = {"tenant": "acme", "outcome": "success"}

    assert_increase(
        server, 1, lambda: server.client.call(token, "echo", {"text": "x"}), TENANTS, **labels
    )
    assert page(server).labels("tenant") == {"acme"}


TENANTS = "gatepost_tenant_calls_total"

REFUSED_REQUESTS: dict[str, tuple[str | None, dict[str, str]]] = {
    "no_credentials": (None, {}),
    "invalid_token": ("nonsense", {}),
    "expired_token": ("", {"exp": "past"}),
    "wrong_audience": ("", {"aud": "https://elsewhere.example/mcp"}),
}


@pytest.mark.parametrize("reason", REFUSED_REQUESTS)
def test_a_refusal_of_the_gate_is_counted_by_reason(server: Server, reason: str) -> None:
    """The label is a reason of a fixed list, and nothing from the token."""
    token, claims = REFUSED_REQUESTS[reason]
    if claims:
        changed = {"exp": 1_000} if "exp" in claims else claims
        token = server.token(org_id="acme", **changed)

    def call() -> None:
        assert server.client.call(token).status == 401

    assert_increase(server, 1, call, "gatepost_refusals_total", reason=reason)


def test_a_refusal_of_the_edge_is_counted_by_code(server: Server) -> None:
    """A foreign origin is one such refusal."""

    def call() -> None:
        fields = [("Origin", "https://evil.example")]
        assert server.client.call(server.token(), fields=fields).status == 403

    assert_increase(server, 1, call, "gatepost_refusals_total", reason="forbidden_origin")


ROUTES = {
    "mcp": ("POST", "/mcp", "4xx"),
    "probe": ("GET", "/health", "2xx"),
    "page": ("GET", "/openapi.json", "2xx"),
    "metadata": ("GET", "/mcp/.well-known/oauth-protected-resource", "2xx"),
    "rest": ("GET", "/tools", "4xx"),
    "other": ("GET", "/wp-login.php?x=/tools", "4xx"),
}


@pytest.mark.parametrize("route", ROUTES)
def test_a_request_is_counted_under_its_route(server: Server, route: str) -> None:
    """The path, which a client can choose freely, is no label."""
    method, path, status = ROUTES[route]

    def ask() -> None:
        server.client.send(method, path)

    name = "gatepost_http_requests_total"
    assert_increase(server, 1, ask, name, route=route, status=status)
    assert page(server).value("gatepost_http_request_seconds_count", route=route) >= 1
    assert "wp-login" not in page(server).text


def test_a_thousand_made_up_names_add_no_label(server: Server) -> None:
    """Unknown names of tools, paths, methods, revisions and tenants add no label value."""
    token = server.token(org_id="acme")
    before = set(page(server).samples)
    for number in range(100):
        server.client.call(token, f"no_such_{number}")
        server.client.send("GET", f"/made-up/{number}", token=token)
        server.client.ask(token, f"made/up-{number}")
        RestClient(server, token).call(f"no_such_{number}", {})
    metrics = scraped_page(server)
    text = metrics.text

    assert "no_such" not in text
    assert "made-up" not in text
    assert "made/up" not in text
    assert len(set(metrics.samples) - before) < 200


def test_metrics_contain_nothing_of_a_caller(server: Server) -> None:
    """There is no subject, token, argument, or tenant that is not configured."""
    token = server.token(org_id="acme", sub="alice-4711")
    server.client.call(token, "echo", {"text": SECRET})
    text = scraped_page(server).text

    assert not any(word in text for word in ("alice-4711", SECRET, token, MODERN_REVISION))


def test_sampled_metrics_have_values(server: Server) -> None:
    """Stores, issuers, keys and the process are sampled soon after the start."""
    server.client.call(server.token(org_id="acme"))
    eventually(lambda: page(server).value("gatepost_loop_lag_seconds_count") >= 1, within=20)
    eventually(
        lambda: page(server).value("gatepost_key_fetches_total", result="fetched"), within=20
    )
    metrics = page(server)

    assert metrics.value("gatepost_store_up", store="database") == 1
    assert metrics.value("gatepost_workers") == 1
    assert metrics.value("gatepost_issuers", state="ready") + metrics.value(
        "gatepost_issuers", state="waiting"
    )
    assert metrics.value("process_cpu_seconds_total") > 0
    assert metrics.value("process_resident_memory_bytes") > 1e6
    assert metrics.value("process_open_fds") > 3


LIMITED_SETTINGS: dict[str, Any] = {
    "tenancy": {"create_on_first_use": True},
    "limits": {"requests_per_second": 0.01, "burst": 3, "failures_per_second": 0},
    "approvals": {"require": ["whoami"], "timeout_s": 1.0},
}


@pytest.fixture(scope="module")
def limited_server() -> Iterator[Server]:
    """Yield a server with low limits and a tool that needs approval."""
    with Idp() as idp, running_server(idp, [issuer_settings(idp)], **LIMITED_SETTINGS) as server:
        yield server


def test_a_refusal_by_a_limit_is_counted_by_limit(limited_server: Server) -> None:
    """It also counts as a call with this outcome."""
    token = limited_server.token(org_id="flood")
    for _ in range(5):
        limited_server.client.call(token, "echo", {"text": "x"})
    refused = {"tool": "echo", "outcome": "rate_limit"}
    eventually(
        lambda: scraped_page(limited_server).value("gatepost_tool_calls_total", **refused),
        within=20,
    )
    metrics = scraped_page(limited_server)

    assert metrics.value("gatepost_rate_limited_total", limit="caller") == 2
    assert metrics.value("gatepost_tool_calls_total", **refused) == 2


def test_approvals_are_counted_by_how_they_end(limited_server: Server) -> None:
    """A request without a decision expires; its call counts as pending."""
    RestClient(limited_server, limited_server.token(org_id="patient")).call("whoami", {})
    eventually(
        lambda: (
            scraped_page(limited_server).value("gatepost_approvals_total", result="expired") == 1
        ),
        within=15,
    )
    metrics = scraped_page(limited_server)

    assert (
        metrics.value("gatepost_tool_calls_total", tool="whoami", outcome="approval_pending") == 1
    )
    assert metrics.value("gatepost_approvals_waiting") == 0


def test_audit_commits_are_timed(limited_server: Server) -> None:
    """Each call waits for a commit, so there is at least one."""
    limited_server.client.call(limited_server.token(org_id="recorded"), "echo", {"text": "x"})
    metrics = scraped_page(limited_server)

    assert metrics.value("gatepost_audit_commit_seconds_count") >= 1
    assert metrics.value("gatepost_audit_queue_length") == 0
