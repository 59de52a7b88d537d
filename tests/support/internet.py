"""
What is outside Gatepost: a small internet, an OpenTelemetry collector, and a scraper of `/metrics`.
"""

import http.client
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gatepost.outbound.http_client import OutboundClient
from gatepost.runtime.services import Services
from gatepost.telemetry.exposition import registry_of
from gatepost.telemetry.shared_memory import SharedMetrics
from gatepost_authz.config import Network
from gatepost_authz.fetch import Fetcher
from tests.support.issuers import AsgiServer, Receive, Scope, Send, respond
from tests.support.measuring import eventually
from tests.support.proxies import CertificateAuthority, ConnectProxy, connect_proxy

PUBLIC = "93.184.215.14"
DOMAIN = "web.test"


class ReceivedRequest(msgspec.Struct, frozen=True):
    """One request that arrived."""

    scheme: str
    host: str
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    query: Mapping[str, str]
    connection: int
    """Its number: the same for requests that shared it."""


Page = Callable[[ReceivedRequest, Send], Awaitable[None]]


class WebSite:
    """Answers what its pages say, by path, and remembers what was asked."""

    def __init__(self) -> None:
        self.seen: list[ReceivedRequest] = []
        self.pages: dict[str, Page] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        seen = ReceivedRequest(
            scope["scheme"],
            headers["host"],
            scope["method"],
            scope["path"],
            headers,
            body,
            dict(parse_qsl(scope["query_string"].decode())),
            scope["client"][1],
        )
        self.seen.append(seen)
        page = self.pages.get(scope["path"], echo)
        await page(seen, send)


async def echo(seen: ReceivedRequest, send: Send) -> None:
    """Say what was asked."""
    await respond(send, 200, msgspec.json.encode(seen))


class ScriptedNames:
    """Resolves what it knows: each name to its addresses, the last ones again and again."""

    def __init__(self) -> None:
        self.known: dict[str, list[Sequence[str]]] = {}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host == "localhost":
            return ["127.0.0.1"]
        if host not in self.known:
            if host.endswith(f".{DOMAIN}"):
                return [PUBLIC]
            raise OSError("no such name")
        answers = self.known[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]


def says(body: bytes | str, kind: str = "text/html", status: int = 200, **headers: str) -> Page:
    """A page with that content; header names are given with `_` for `-`."""
    data = body.encode() if isinstance(body, str) else body
    fields = {"content-type": kind, "content-length": str(len(data))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    raw = tuple((name.encode(), value.encode()) for name, value in fields.items() if value)

    async def page(seen: ReceivedRequest, send: Send) -> None:
        await respond(send, status, data, raw)

    return page


def leads(location: str, status: int = 302) -> Page:
    """A redirect."""
    return says("" if status == 304 else "elsewhere", status=status, location=location)


class Internet(msgspec.Struct, frozen=True):
    """What there is: pages, names, and the only way to them."""

    site: WebSite
    names: ScriptedNames
    proxy: ConnectProxy
    company: CertificateAuthority
    plain: int
    """The port of the site without TLS, on this machine."""
    secure: int

    def reset(self) -> "Internet":
        """Forget what was said, asked and known."""
        self.site.seen.clear()
        self.site.pages.clear()
        self.names.asked.clear()
        self.names.known.clear()
        self.proxy.asked.clear()
        return self

    def network(self, **more: Any) -> dict[str, Any]:
        """`[network]` of a server that reaches it."""
        return {"ca_bundle": str(self.company.bundle), "proxy": self.proxy.url, **more}

    def resolves_for(self, services: Services) -> None:
        """Let a server ask this world's names."""
        services.outbound.resolver = self.names

    def client(self) -> OutboundClient:
        """Return a server's client, whose only way out is the proxy."""
        network = Network(
            ca_bundle=str(self.company.bundle),
            proxy=self.proxy.url,
            allow_hosts=(f"localhost:{self.plain}",),
        )
        tls = Fetcher(development=True, network=network).tls
        return OutboundClient(network, tls=tls, resolver=self.names)


@contextmanager
def small_internet(folder: Path) -> Iterator[Internet]:
    """Run it for the time of a block. Every `*.web.test` is a public name of the one site."""
    company, site = CertificateAuthority(folder), WebSite()
    certificate, key = company.certify(f"*.{DOMAIN}")
    with (
        AsgiServer(site) as plain,
        AsgiServer(site, ssl_certfile=certificate, ssl_keyfile=key) as secure,
        connect_proxy(secure.port, plain.port, user="user:word@") as proxy,
    ):
        yield Internet(site, ScriptedNames(), proxy, company, plain.port, secure.port)


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
