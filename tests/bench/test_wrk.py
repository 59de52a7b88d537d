"""The load generator's scripts and its account."""

import shutil
from pathlib import Path

import pytest

from bench import wrk
from bench.__main__ import free_ports
from bench.contestants import CONTESTANTS
from bench.issuer import running
from bench.process import Cores
from bench.rounds import RoundResults, RoundRunner
from bench.tokens import Mint, TokenPools, garbage
from bench.workload import WORKLOADS, BenchEndpoint, Workload

WARM_WORKLOAD = WORKLOADS[0]
UNPINNED_CORES = Cores(None, None)
SHORT_WORKLOADS = {"warm", "garbage"}
"""An answer and a refusal; each run takes a second of both cores, so the others are slow tests."""
SELECTED_WORKLOADS = [
    pytest.param(
        workload,
        id=workload.name,
        marks=[] if workload.name in SHORT_WORKLOADS else [pytest.mark.slow],
    )
    for workload in WORKLOADS
]
OUTPUT = """\
Running 1s test @ http://127.0.0.1:8000
  1 threads and 32 connections
  40000 requests in 1.00s, 9.00MB read
Requests/sec:  39986.41
bench requests=40000 duration_us=1000340 bytes=9437184 p50_us=780 p99_us=1450 \
refused=0 failed=2 reused=7
"""


def test_results_are_parsed_from_the_output_of_wrk() -> None:
    """The line of the script is used, not the rounded figures of wrk."""
    account = wrk.parse(OUTPUT)

    assert (account.requests, account.p50_us, account.p99_us) == (40_000, 780, 1450)
    assert (account.refused, account.failed, account.reused) == (0, 2, 7)
    assert account.rate == pytest.approx(39_986.4, abs=0.1)


def test_output_of_wrk_without_results_is_an_error() -> None:
    """The error quotes the output; a run without results must not become a row of zeros."""
    with pytest.raises(wrk.LoadError, match="unable to connect"):
        wrk.parse("unable to connect to 127.0.0.1:1 Connection refused")


def test_a_missing_load_generator_is_an_error_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A first-time user of the benchmark has no wrk."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(wrk.LoadError, match="apt-get install wrk"):
        wrk.program()


def test_a_script_carries_the_whole_request(tmp_path: Path) -> None:
    """Content-Length, the routing headers of the revision and the body must agree."""
    script = wrk.script(WARM_WORKLOAD, BenchEndpoint(8000), tmp_path / "tokens.txt")

    assert f"Content-Length: {len(WARM_WORKLOAD.body)}" in script
    assert "Mcp-Name: echo" in script
    assert "Authorization: Bearer" in script
    assert "Authorization" not in wrk.script(WARM_WORKLOAD, BenchEndpoint(8000), None)


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
@pytest.mark.parametrize("workload", SELECTED_WORKLOADS)
def test_every_workload_runs_against_the_floor(workload: Workload, tmp_path: Path) -> None:
    """The Lua script is valid, every answer has its status, and the CPU time is measured."""
    floor = next(each for each in CONTESTANTS if each.name == "floor")
    with running() as issuer:
        mint = Mint.create(issuer.url, "http://127.0.0.1/mcp")
        files = {}
        for name, pool in {"one": [mint.token(1)], "garbage": garbage(10)}.items():
            files[name] = tmp_path / name
            files[name].write_text("".join(f"{token}\n" for token in pool), encoding="ascii")
        token_pools = TokenPools(files | {"thousand": files["garbage"], "fresh": files["garbage"]})
        bench = RoundRunner(
            tmp_path, issuer, mint.resource, token_pools, UNPINNED_CORES, free_ports(["floor"])
        )
        with bench.started(floor, 1, workload.tools, RoundResults()) as (process, start):
            sample = bench.measure(1, floor, process, workload, 1)

    assert sample.note == ""
    assert sample.rate > 0
    assert sample.cpu_us > 0
    assert start.first_answer_s > 0
    assert start.resident_idle > 1_000_000
