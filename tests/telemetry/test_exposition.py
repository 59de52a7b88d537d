"""`/metrics` over HTTP has its own address, and any worker answers for all."""

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
from gatepost.secrets.keyring import create
from gatepost.telemetry.exposition import Exposition, registry_of
from gatepost.telemetry.metrics import Meter
from gatepost.telemetry.shared_memory import SharedMetrics
from tests.support.client import exchange
from tests.support.commands import ServerProcess, run, server_process
from tests.support.internet import MetricsPage, fetch, scrape
from tests.support.issuers import AsgiServer, Idp
from tests.support.measuring import eventually
from tests.support.processes import free_port
from tests.support.server import issuer_settings
from tests.support.stores import Valkey

pytestmark = pytest.mark.requirement("P16")
ECHO_LABELS = {"tool": "pid", "outcome": "success"}
CALLS = "gatepost_tool_calls_total"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Serve the metrics of one call, and return the port."""
    metrics = SharedMetrics()
    meter = Meter(metrics.of_process(0))
    meter.start(now=1.0)
    meter.set_label_values(["echo"], None)
    meter.called("tool", "echo", "success", 0.1)
    with AsgiServer(Exposition(registry_of(metrics, version="1"))) as server:
        yield server.port


def test_the_page_is_text_that_prometheus_reads(port: int) -> None:
    """The default is version 0.0.4 of the text format."""
    status, kind, text = fetch(port)

    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert scrape(port).value(CALLS, tool="echo", outcome="success") == 1
    assert "# TYPE gatepost_tool_calls_total counter" in text


ACCEPT_HEADERS = {
    "application/openmetrics-text; version=1.0.0,text/plain;q=0.5": True,
    "application/openmetrics-text;version=9.9.9;escaping=allow-utf-8": True,
    "application/openmetrics-text; version=x;version=1e99": True,
    "text/plain;version=1.0.0;escaping=values": False,
    "*/*": False,
    "": False,
}


@pytest.mark.parametrize("accept", ACCEPT_HEADERS, ids=range(len(ACCEPT_HEADERS)))
def test_openmetrics_is_sent_if_the_scraper_accepts_it(port: int, accept: str) -> None:
    """The version is always 1.0.0, and nothing of the request is repeated."""
    status, kind, text = fetch(port, Accept=accept)

    assert status == 200
    assert kind.startswith("application/openmetrics-text; version=1.0.0") is ACCEPT_HEADERS[accept]
    assert text.endswith("# EOF\n") is ACCEPT_HEADERS[accept]
    assert "9.9.9" not in kind


REFUSED_REQUESTS = {
    "post": ("POST", "/metrics", {}, 405),
    "trace": ("TRACE", "/metrics", {}, 405),
    "root": ("GET", "/", {}, 404),
    "endpoint": ("POST", "/mcp", {}, 404),
    "dots": ("GET", "/x/../metrics", {}, 404),
    "another site": ("GET", "/metrics", {"Origin": "https://evil.example"}, 403),
    "a page's image": ("GET", "/metrics", {"Sec_Fetch_Site": "cross-site"}, 403),
    "a rebound name": ("GET", "/metrics", {"Sec_Fetch_Site": "same-origin"}, 403),
}


@pytest.mark.parametrize("case", REFUSED_REQUESTS)
def test_the_metrics_address_serves_only_metrics_and_health(port: int, case: str) -> None:
    """Other paths and methods, and pages of other sites in a browser, are refused."""
    method, path, headers, status = REFUSED_REQUESTS[case]

    answered, _, text = fetch(port, path, method, **headers)
    assert answered == status
    assert "gatepost_" not in text


def test_head_and_health_answer_without_a_page(port: int) -> None:
    """Both answer without making a page."""
    assert fetch(port, "/metrics", "HEAD")[::2] == (200, "")
    assert fetch(port, "/health")[::2] == (200, "ok\n")
    assert fetch(port, Sec_Fetch_Site="none")[0] == 200


def test_frequent_scrapes_reuse_one_page() -> None:
    """A page is reused for a moment."""
    metrics, now = SharedMetrics(), [0.0]
    meter = Meter(metrics.of_process(0))
    meter.start(now=1.0)
    meter.set_label_values(["echo"], None)
    app = Exposition(registry_of(metrics, version="1"), clock=lambda: now[0])
    labels = {"tool": "echo", "outcome": "success"}
    with AsgiServer(app) as server:
        port = server.port
        assert scrape(port).value(CALLS, **labels) == 0
        meter.called("tool", "echo", "success", 0.1)
        assert scrape(port).value(CALLS, **labels) == 0
        now[0] = 1.0
        assert scrape(port).value(CALLS, **labels) == 1


class CountingCollector(Collector):
    """A collector without metrics, which counts how often it is asked."""

    asked = 0

    def collect(self) -> Iterator[Metric]:
        self.asked += 1
        return iter(())


def test_concurrent_scrapes_share_one_page() -> None:
    """Scrapes that arrive while a page is made wait for it."""
    registry, collector = CollectorRegistry(), CountingCollector()
    registry.register(collector)
    with (
        AsgiServer(Exposition(registry, clock=lambda: 0.0)) as server,
        ThreadPoolExecutor(8) as pool,
    ):
        answers = [pool.submit(fetch, server.port) for _ in range(8)]
        assert {answer.result(10)[0] for answer in answers} == {200}

    assert collector.asked == 1


class Workers(NamedTuple):
    """Two workers, and the port of their metrics."""

    server: ServerProcess
    port: int

    def page(self, calls: int) -> MetricsPage:
        """
        Return the first page that counts that number of calls.

        A delayed worker reports a moment later, and the page of the other one may be a moment old.
        """
        pages: list[MetricsPage] = []

        def is_counted() -> bool:
            pages.append(scrape(self.port))
            return pages[-1].value(CALLS, **ECHO_LABELS) >= calls

        eventually(is_counted, within=20)
        return pages[-1]


@pytest.fixture(scope="module")
def workers(
    idp: Idp, tmp_path_factory: pytest.TempPathFactory, valkey_server: Valkey
) -> Iterator[Workers]:
    folder, port = tmp_path_factory.mktemp("workers"), free_port()
    create(folder / "keyring.json")
    issuers = [issuer_settings(idp, tenants={"acme": "acme"})]
    ring = {"ring": "file:keyring.json"}
    storage = {"database": "sqlite:///gatepost.db", "shared": valkey_server.url()}
    env = {"GATEPOST_LISTEN__METRICS": f"127.0.0.1:{port}"}
    with server_process(
        idp, folder, issuers, "--workers", "2", env=env, keys=ring, storage=storage
    ) as server:
        yield Workers(server, port)


def test_a_scrape_covers_every_worker_and_keeps_the_counts_of_a_killed_one(
    workers: Workers,
) -> None:
    """Any worker answers for all; a successor continues a killed worker's counts."""
    server, port = workers
    token = server.token()
    pids = []
    for _ in range(400):
        pids.append(server.pid(token))
        if len(set(pids)) == 2:
            break
    assert len(set(pids)) == 2
    eventually(lambda: scrape(port).value("gatepost_workers") == 2, within=20)
    before = workers.page(len(pids))
    assert before.value(CALLS, **ECHO_LABELS) == len(pids)

    os.kill(pids[0], signal.SIGKILL)
    server.process.wait_for("worker_replaced")
    answered = len(pids)
    for _ in range(20):
        # The connection may be one that the killed process had taken.
        with contextlib.suppress(ConnectionError):
            server.pid(token)
            answered += 1
    after = workers.page(answered)

    assert after.value(CALLS, **ECHO_LABELS) == answered
    grown = after.counters()
    assert [key for key, value in before.counters().items() if grown.get(key, 0) < value] == []


def test_the_endpoint_serves_no_metrics_and_the_metrics_no_endpoint(workers: Workers) -> None:
    """The endpoint has no `/metrics`, and the address of the metrics has no tools."""
    server, port = workers

    assert server.client.send("GET", "/metrics").status == 401
    assert server.client.send("GET", "/metrics", token=server.token()).status == 404
    assert fetch(port, "/mcp", "POST")[0] == 404


def test_an_endless_request_head_is_refused(workers: Workers) -> None:
    """The limits of request heads hold for `/metrics`, too."""
    head = b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + b"X-Fill: " + b"a" * 300_000

    with contextlib.suppress(ConnectionError):
        assert exchange(workers.port, head).status in (400, 431)


def test_a_port_in_use_is_reported_in_one_sentence(idp: Idp, tmp_path: Path) -> None:
    """A second server with the same address names the setting and ends."""
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
    """By default, `gatepost dev` serves no metrics."""
    assert dev_config(8000, tools=(), state=tmp_path).metrics_address is None
