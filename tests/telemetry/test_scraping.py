"""`/metrics` over HTTP: an address of its own, any worker tells for all, and nothing else there."""

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from gatepost.dev.composition import dev_config
from gatepost.keyring import create
from gatepost.telemetry.cells import Board
from gatepost.telemetry.collector import registry_of
from gatepost.telemetry.exposition import Exposition
from gatepost.telemetry.metrics import Meter
from tests.support.gatepost import run
from tests.support.idp import Idp
from tests.support.raw import exchange
from tests.support.sockets import free_port, serving
from tests.support.valkey import Valkey
from tests.support.waiting import eventually
from tests.telemetry.page import Page, fetch, scrape
from tests.tenancy.house import issuer
from tests.tenancy.post import Post, post

pytestmark = pytest.mark.requirement("P16")
ECHOED = {"tool": "pid", "outcome": "success"}
CALLS = "gatepost_tool_calls_total"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of an exposition without a server behind it."""
    board = Board()
    meter = Meter(board.slot(0))
    meter.begin(now=1.0)
    meter.know(["echo"], None)
    meter.called("tool", "echo", "success", 0.1)
    with serving(Exposition(registry_of(board, version="1"))) as origin:
        yield int(origin.rpartition(":")[2])


def test_the_page_is_text_that_prometheus_reads(port: int) -> None:
    """Version 0.0.4 of the format, which everybody understands."""
    status, kind, text = fetch(port)

    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert scrape(port).value(CALLS, tool="echo", outcome="success") == 1
    assert "# TYPE gatepost_tool_calls_total counter" in text


ACCEPTED = {
    "application/openmetrics-text; version=1.0.0,text/plain;q=0.5": True,
    "application/openmetrics-text;version=9.9.9;escaping=allow-utf-8": True,
    "application/openmetrics-text; version=x;version=1e99": True,
    "text/plain;version=1.0.0;escaping=values": False,
    "*/*": False,
    "": False,
}


@pytest.mark.parametrize("accept", ACCEPTED, ids=range(len(ACCEPTED)))
def test_openmetrics_is_spoken_to_whoever_asks_for_it(port: int, accept: str) -> None:
    """In one version, whatever the request says of versions: nothing of it comes back."""
    status, kind, text = fetch(port, Accept=accept)

    assert status == 200
    assert kind.startswith("application/openmetrics-text; version=1.0.0") is ACCEPTED[accept]
    assert text.endswith("# EOF\n") is ACCEPTED[accept]
    assert "9.9.9" not in kind


REFUSED = {
    "post": ("POST", "/metrics", {}, 405),
    "trace": ("TRACE", "/metrics", {}, 405),
    "root": ("GET", "/", {}, 404),
    "endpoint": ("POST", "/mcp", {}, 404),
    "dots": ("GET", "/x/../metrics", {}, 404),
    "another site": ("GET", "/metrics", {"Origin": "https://evil.example"}, 403),
    "a page's image": ("GET", "/metrics", {"Sec_Fetch_Site": "cross-site"}, 403),
    "a rebound name": ("GET", "/metrics", {"Sec_Fetch_Site": "same-origin"}, 403),
}


@pytest.mark.parametrize("case", REFUSED)
def test_nothing_else_is_served_there(port: int, case: str) -> None:
    """No other path or method, and no browser on behalf of somebody's page."""
    method, path, headers, status = REFUSED[case]

    answered, _, text = fetch(port, path, method, **headers)
    assert answered == status
    assert "gatepost_" not in text


def test_head_and_health_answer_without_a_page(port: int) -> None:
    """For whoever only wants to know that it lives."""
    assert fetch(port, "/metrics", "HEAD")[::2] == (200, "")
    assert fetch(port, "/health")[::2] == (200, "ok\n")
    assert fetch(port, Sec_Fetch_Site="none")[0] == 200


def test_asking_all_the_time_costs_one_page() -> None:
    """What was made a moment ago is the answer still."""
    board, now = Board(), [0.0]
    meter = Meter(board.slot(0))
    meter.begin(now=1.0)
    meter.know(["echo"], None)
    app = Exposition(registry_of(board, version="1"), clock=lambda: now[0])
    labels = {"tool": "echo", "outcome": "success"}
    with serving(app) as origin:
        port = int(origin.rpartition(":")[2])
        assert scrape(port).value(CALLS, **labels) == 0
        meter.called("tool", "echo", "success", 0.1)
        assert scrape(port).value(CALLS, **labels) == 0
        now[0] = 1.0
        assert scrape(port).value(CALLS, **labels) == 1


class Looks(Collector):
    """Has nothing to tell, and knows how often it was asked."""

    asked = 0

    def collect(self) -> Iterator[Metric]:
        self.asked += 1
        return iter(())


def test_asking_many_times_at_once_costs_one_page_too() -> None:
    """Those who come while it is made wait for it."""
    registry, looks = CollectorRegistry(), Looks()
    registry.register(looks)
    with serving(Exposition(registry, clock=lambda: 0.0)) as origin, ThreadPoolExecutor(8) as pool:
        port = int(origin.rpartition(":")[2])
        answers = [pool.submit(fetch, port) for _ in range(8)]
        assert {answer.result(10)[0] for answer in answers} == {200}

    assert looks.asked == 1


class Crew(NamedTuple):
    """Two workers, and the port where either tells the numbers of both."""

    site: Post
    port: int

    def page(self, calls: int) -> Page:
        """
        The first that tells of so many calls.

        One worker that the machine holds up tells a moment later, and the other's page may be one
        of a moment ago.
        """
        pages: list[Page] = []

        def told() -> bool:
            pages.append(scrape(self.port))
            return pages[-1].value(CALLS, **ECHOED) >= calls

        eventually(told, within=20)
        return pages[-1]


@pytest.fixture(scope="module")
def crew(
    idp: Idp, tmp_path_factory: pytest.TempPathFactory, valkey_server: Valkey
) -> Iterator[Crew]:
    folder, port = tmp_path_factory.mktemp("crew"), free_port()
    create(folder / "keyring.json")
    issuers = [issuer(idp, tenants={"acme": "acme"})]
    ring = {"ring": "file:keyring.json"}
    storage = {"database": "sqlite:///gatepost.db", "shared": valkey_server.url()}
    env = {"GATEPOST_LISTEN__METRICS": f"127.0.0.1:{port}"}
    with post(idp, folder, issuers, "--workers", "2", env=env, keys=ring, storage=storage) as site:
        yield Crew(site, port)


def test_one_scrape_sees_every_worker_and_none_of_what_a_dead_one_counted_is_lost(
    crew: Crew,
) -> None:
    """Any worker answers for all of them; a killed one's numbers stay, and its successor adds."""
    site, port = crew
    token = site.token()
    pids = []
    for _ in range(400):
        pids.append(site.pid(token))
        if len(set(pids)) == 2:
            break
    assert len(set(pids)) == 2
    eventually(lambda: scrape(port).value("gatepost_workers") == 2, within=20)
    before = crew.page(len(pids))
    assert before.value(CALLS, **ECHOED) == len(pids)

    os.kill(pids[0], signal.SIGKILL)
    site.process.wait_for("a worker ended by itself and is replaced")
    answered = len(pids)
    for _ in range(20):
        # The connection may be one that the killed process had taken.
        with contextlib.suppress(ConnectionError):
            site.pid(token)
            answered += 1
    after = crew.page(answered)

    assert after.value(CALLS, **ECHOED) == answered
    grown = after.counters()
    assert [key for key, value in before.counters().items() if grown.get(key, 0) < value] == []


def test_the_endpoint_serves_no_metrics_and_the_metrics_no_endpoint(crew: Crew) -> None:
    """Behind the gate there is no such path, and without the gate there is no tool."""
    site, port = crew

    assert site.door.send("GET", "/metrics").status == 401
    assert site.door.send("GET", "/metrics", token=site.token()).status == 404
    assert fetch(port, "/mcp", "POST")[0] == 404


def test_a_head_without_end_is_cut_off(crew: Crew) -> None:
    """The limits of the endpoint's sockets hold here too."""
    head = b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + b"X-Fill: " + b"a" * 300_000

    with contextlib.suppress(ConnectionError):
        assert exchange(crew.port, head).status in (400, 431)


def test_a_port_that_is_taken_is_said_in_one_sentence(idp: Idp, tmp_path: Path) -> None:
    """Two servers with the same address: the second names the setting and ends."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        text = (
            f'resource = "http://127.0.0.1:{free_port()}/mcp"\nmode = "development"\n'
            f'issuers = [{{issuer = "{idp.issuer("main")}", tenant = {{value = "acme"}}}}]\n'
            f'listen = {{port = {free_port()}, metrics = "127.0.0.1:{port}"}}\n'
            'tools = {packs = ["demo"]}\nstorage = {database = "memory:"}\n'
        )
        (tmp_path / "gatepost.toml").write_text(text, encoding="utf-8")
        process = run("serve", "--config", "gatepost.toml", cwd=tmp_path)
        try:
            assert process.process.wait(30) == 1, process.output
        finally:
            process.kill()

    assert f"port {port} (listen.metrics)" in process.output
    assert "Traceback" not in process.output


def test_two_development_servers_do_not_collide(tmp_path: Path) -> None:
    """Without being asked to, `gatepost dev` serves no metrics."""
    assert dev_config(8000, tools=(), state=tmp_path).metrics_address is None
