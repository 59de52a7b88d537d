"""How the exporter reaches its collector, and what it does when that fails."""

import asyncio
import logging
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gatepost.config.telemetry import TelemetrySettings
from gatepost.telemetry import otlp
from gatepost.telemetry.otlp import OtlpExporter
from gatepost.telemetry.otlp_http import RareErrors
from tests.support.measuring import eventually
from tests.support.proxies import CertificateAuthority, ConnectProxy


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
                """Discard the message."""

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
                self.records += [
                    record for scope in group.scope_logs for record in scope.log_records
                ]

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def span(self, name: str, **attribute: str) -> Any:
        """Return the newest span of that name since then, with these attributes (`__` for dots)."""
        exactly = {key.replace("__", "."): value for key, value in attribute.items()}

        def matching_spans() -> list[Any]:
            return [
                span
                for span in self.spans
                if span.name == name
                and span.start_time_unix_nano >= self.since_ns
                and exactly.items() <= attributes_of(span.attributes).items()
            ]

        eventually(matching_spans, within=20)
        return matching_spans()[-1]

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
        attribute.key: attribute.value.string_value
        or str(attribute.value.int_value or attribute.value.bool_value)
        for attribute in attributes
    }


KEY = "collector-key-0002"
WITHIN_S = 20
LOGGER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


@pytest.fixture(autouse=True)
def _every_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatepost.telemetry.otlp.EVERY_MS", 50)


@contextmanager
def running_exporter(
    url: str,
    headers: Mapping[str, str] = {},
    *,
    tls: ssl.SSLContext | None = None,
    proxy: str = "",
) -> Iterator[OtlpExporter]:
    """Run an exporter of spans and close it at the end."""
    settings = TelemetrySettings(otlp_endpoint=url, logs=False)
    tls = tls or ssl.create_default_context()
    exporter = OtlpExporter(settings, headers, version="1", tls=tls, proxy=proxy)
    try:
        yield exporter
    finally:
        asyncio.run(exporter.aclose())


def send(exporter: OtlpExporter) -> None:
    """End one span."""
    assert exporter.tracer is not None
    with exporter.tracer.span("work", "internal"):
        pass


@contextmanager
def tunnel(port: int) -> Iterator[ConnectProxy]:
    """Run a proxy that leads to that port."""
    with ConnectProxy(port) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield proxy
        proxy.shutdown()
        thread.join(60)


def test_the_network_settings_count_and_the_environment_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proxy and CA are those of `[network]`; no header of another collector's is sent."""
    company = CertificateAuthority(tmp_path)
    trusted = ssl.create_default_context(cafile=str(company.bundle))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-other=theirs,x-api-key=theirs")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    with (
        Collector(company.certify("otel.test")) as collector,
        tunnel(collector.port) as proxy,
        running_exporter(
            "https://otel.test:4318", {"X-Api-Key": KEY}, tls=trusted, proxy=proxy.url
        ) as exporter,
    ):
        send(exporter)
        collector.span("work")

    assert proxy.asked == ["CONNECT otel.test:4318"]
    names = {name.lower(): value for name, value in collector.headers[0].items()}
    assert names["x-api-key"] == KEY
    assert names["content-type"] == "application/x-protobuf"
    assert "x-other" not in names
    assert "content-encoding" not in names


def test_a_ca_of_the_environment_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the CAs of `[network]` are trusted; the span is counted as dropped."""
    monkeypatch.setattr(otlp, "CLOSING_S", 0.3)
    company = CertificateAuthority(tmp_path)
    for name in ("OTEL_EXPORTER_OTLP_CERTIFICATE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, str(company.bundle))
    with Collector(company.certify("localhost")) as collector:
        only_others = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        url = f"https://localhost:{collector.port}"
        with running_exporter(url, {"X-Api-Key": KEY}, tls=only_others) as exporter:
            send(exporter)

    assert collector.headers == []
    assert exporter.dropped == (1, 0)


@pytest.mark.parametrize("location", ["/elsewhere", None])
def test_a_redirect_of_the_collector_counts_as_dropped_spans(location: str | None) -> None:
    """The exporter does not follow it, so that its headers go to no other server."""
    with Collector() as collector:
        collector.status, collector.location = 307, location
        with running_exporter(collector.url) as exporter:
            send(exporter)
            eventually(lambda: exporter.dropped == (1, 0), within=WITHIN_S)


def test_a_collector_that_is_busy_is_asked_again() -> None:
    """The spans that it then accepts do not count as dropped."""
    with Collector() as collector:
        collector.refusals = [503]
        with running_exporter(collector.url) as exporter:
            send(exporter)
            collector.span("work")

    assert exporter.dropped == (0, 0)


def test_a_stop_waits_three_seconds_for_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits `CLOSING_S`, whatever the collector does; the SDK alone waits ten or more."""
    assert otlp.CLOSING_S == 3
    monkeypatch.setattr(otlp, "CLOSING_S", 0.3)
    with Collector() as collector:
        collector.answers.clear()
        with running_exporter(collector.url) as exporter:
            send(exporter)
            began = time.monotonic()
        took = time.monotonic() - began

    assert took < 8


def test_the_reason_phrase_of_a_collector_is_not_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may repeat the credential that it was sent."""
    logger = logging.getLogger(LOGGER)
    for log_filter in logger.filters:
        if isinstance(log_filter, RareErrors):
            monkeypatch.setattr(log_filter, "_quiet_until", 0.0)
    with Collector() as collector:
        collector.status, collector.reason = 401, f"wrong key {KEY}"
        with running_exporter(collector.url, {"X-Api-Key": KEY}) as exporter:
            send(exporter)
            eventually(lambda: exporter.dropped == (1, 0), within=WITHIN_S)

    logged = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert len(logged) == 1
    assert "401" in logged[0]
    assert KEY not in logged[0]


def test_a_collector_that_is_down_is_logged_once_a_minute() -> None:
    """Gatepost does not log the retries."""
    errors = RareErrors()

    def passed(level: int, at_s: float) -> bool:
        record = logging.makeLogRecord({"levelno": level, "created": at_s})
        return errors.filter(record)

    assert [passed(logging.ERROR, at_s) for at_s in (100, 101, 159, 160, 161)] == [
        *(True, False, False),
        *(True, False),
    ]
    assert not passed(logging.WARNING, 1_000)
