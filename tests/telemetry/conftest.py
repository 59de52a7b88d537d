"""`/metrics` as a scraper reads it, a small OpenTelemetry collector, and where servers write."""

import http.client
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gatepost.telemetry.exposition import registry_of
from gatepost.telemetry.shared_memory import SharedMetrics
from tests.support.measuring import eventually


class Collector:
    """
    Listens on loopback for the time of a `with` block; *status* is what it answers.

    With *certificate*, the paths of a certificate and its key, it speaks TLS.
    """

    def __init__(self, certificate: tuple[str, str] | None = None) -> None:
        self.status = 200
        self.reason: str | None = None
        self.location: str | None = None
        self.refusals: list[int] = []
        """The statuses of the next answers, before *status*."""
        self.answers = threading.Event()
        """Cleared: it takes requests and does not answer."""
        self.answers.set()
        self.raw: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.spans: list[Any] = []
        self.records: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.since_ns = 0
        """When the present test began: spans that others began before come late, too."""
        collector = self

        class CollectorHandler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = collector.refusals.pop(0) if collector.refusals else collector.status
                collector.answers.wait(60)
                if status == 200:
                    collector.take(self.path, body, dict(self.headers.items()))
                self.send_response(status, collector.reason)
                if collector.location is not None:
                    self.send_header("location", collector.location)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), CollectorHandler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        self.raw.append(body)
        self.headers.append(headers)
        if path == "/v1/traces":
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(attributes_of(group.resource.attributes))
                self.spans += [span for scope in group.scope_spans for span in scope.spans]
        elif path == "/v1/logs":
            for group in ExportLogsServiceRequest.FromString(body).resource_logs:
                self.records += [one for scope in group.scope_logs for one in scope.log_records]

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def span(self, name: str, **wanted: str) -> Any:
        """The newest span of that name since then, with these attributes (`__` for dots)."""
        exactly = {key.replace("__", "."): value for key, value in wanted.items()}

        def found() -> list[Any]:
            return [
                one
                for one in self.spans
                if one.name == name
                and one.start_time_unix_nano >= self.since_ns
                and exactly.items() <= attributes_of(one.attributes).items()
            ]

        eventually(found, within=20)
        return found()[-1]

    def __enter__(self) -> "Collector":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def attributes_of(attributes: Any) -> dict[str, str]:
    """Return attributes by key, with values as text."""
    return {
        one.key: one.value.string_value or str(one.value.int_value or one.value.bool_value)
        for one in attributes
    }


class MetricsPage:
    """One answer of `/metrics`, read by the parser of the Prometheus client library."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {one.name: one for one in text_string_to_metric_families(text)}
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for found in self.families.values()
            for sample in found.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """The sample of that name with exactly these labels; 0 where there is none."""
        return self.samples.get((name, frozenset(labels.items())), 0.0)

    def labels(self, label: str) -> set[str]:
        """Every value of that label, in any family."""
        return {value for _, found in self.samples for name, value in found if name == label}

    def counters(self) -> Mapping[tuple[str, frozenset[tuple[str, str]]], float]:
        """The samples that must never become less."""
        growing = ("_total", "_count", "_sum", "_bucket")
        return {key: value for key, value in self.samples.items() if key[0].endswith(growing)}


def page_of(metrics: SharedMetrics) -> MetricsPage:
    """Return the page of these metrics."""
    return MetricsPage(generate_latest(registry_of(metrics, version="1.2.3")).decode())


def fetch(
    port: int, path: str = "/metrics", method: str = "GET", **headers: str
) -> tuple[int, str, str]:
    """Return status, content type and text of one request to this port of this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=fields)
        answer = connection.getresponse()
        return answer.status, answer.getheader("content-type") or "", answer.read().decode()
    finally:
        connection.close()


def scrape(port: int) -> MetricsPage:
    """Scrape this port of this machine."""
    status, _, text = fetch(port)
    assert status == 200, text
    return MetricsPage(text)


@pytest.fixture(autouse=True, scope="module")
def in_working_directory(working_directory: Path) -> None:
    """Servers keep their state where they are started."""
