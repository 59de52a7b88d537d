"""
What is outside Gatepost: a small internet, MCP servers that follow a script, and a scraper of
`/metrics`.
"""

import asyncio
import http.client
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gatepost.outbound.http_client import OutboundClient
from gatepost.runtime.services import Services
from gatepost.telemetry.exposition import registry_of
from gatepost.telemetry.shared_memory import SharedMetrics
from gatepost_authz.config import Network
from gatepost_authz.fetch import Fetcher
from tests.support.issuers import AsgiServer, Receive, Scope, Send, respond
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


def page_answer(
    body: bytes | str, kind: str = "text/html", status: int = 200, **headers: str
) -> Page:
    """Return a page with that content; header names are given with `_` for `-`."""
    data = body.encode() if isinstance(body, str) else body
    fields = {"content-type": kind, "content-length": str(len(data))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    raw = tuple((name.encode(), value.encode()) for name, value in fields.items() if value)

    async def page(seen: ReceivedRequest, send: Send) -> None:
        await respond(send, status, data, raw)

    return page


def redirect_answer(location: str, status: int = 302) -> Page:
    """Return a redirect."""
    return page_answer("" if status == 304 else "elsewhere", status=status, location=location)


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
        """Return the `[network]` table of a server that reaches this internet."""
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
        """Return the sample of that name with exactly these labels; 0 where there is none."""
        return self.samples.get((name, frozenset(labels.items())), 0.0)

    def labels(self, label: str) -> set[str]:
        """Return every value of that label, in any family."""
        return {value for _, found in self.samples for name, value in found if name == label}

    def counters(self) -> Mapping[tuple[str, frozenset[tuple[str, str]]], float]:
        """Return the samples that must never become less."""
        growing = ("_total", "_count", "_sum", "_bucket")
        return {key: value for key, value in self.samples.items() if key[0].endswith(growing)}


def metrics_page(metrics: SharedMetrics) -> MetricsPage:
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


class Posted(msgspec.Struct, frozen=True):
    """One request that arrived."""

    verb: str
    headers: Mapping[str, str]
    body: Any
    receive: Receive

    @property
    def method(self) -> str:
        """Return the JSON-RPC method, or the verb of a request without one."""
        return self.body.get("method", "response") if isinstance(self.body, dict) else self.verb

    @property
    def id(self) -> Any:
        return self.body.get("id")


Answer = Callable[[Posted, Send], Awaitable[None]]


JSON, EVENTS = "application/json", "text/event-stream"


async def begin_answer(send: Send, status: int = 200, kind: str = JSON, **headers: str) -> None:
    fields = {"content-type": kind} | {n.replace("_", "-"): v for n, v in headers.items()}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def send_more(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def finish_answer(send: Send, data: bytes = b"") -> None:
    await send({"type": "http.response.body", "body": data})


def raw_answer(data: bytes, status: int = 200, kind: str = JSON, **headers: str) -> Answer:
    """Return an answer of exactly these bytes."""

    async def answer(posted: Posted, send: Send) -> None:
        await begin_answer(send, status, kind, **headers)
        await finish_answer(send, data)

    return answer


def result_answer(value: Mapping[str, Any], **headers: str) -> Answer:
    """Return a JSON answer with a result."""

    async def answer(posted: Posted, send: Send) -> None:
        body = {"jsonrpc": "2.0", "id": posted.id, "result": value}
        await raw_answer(msgspec.json.encode(body), **headers)(posted, send)

    return answer


def error_answer(code: int, message: str, status: int = 200, data: Any = None) -> Answer:
    """Return a JSON answer with an error."""

    async def answer(posted: Posted, send: Send) -> None:
        body = {"code": code, "message": message, "data": data}
        whole = {"jsonrpc": "2.0", "id": posted.id, "error": body}
        await raw_answer(msgspec.json.encode(whole), status)(posted, send)

    return answer


def event_bytes(value: Any, identity: str = "") -> bytes:
    """Return a message as one event of a stream."""
    line = f"id: {identity}\n".encode() if identity else b""
    return line + b"data: " + msgspec.json.encode(value) + b"\n\n"


def send_final_event(posted: Posted, value: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": posted.id, "result": value or {"content": []}}


async def stall(posted: Posted) -> None:
    """Answer nothing until the client goes."""
    while (await posted.receive())["type"] != "http.disconnect":
        pass


DESCRIPTION = {
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {"listChanged": True}},
    "resultType": "complete",
}


HANDSHAKE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}, "logging": {}},
    "serverInfo": {"name": "scripted", "version": "1"},
}


class ScriptedServer:
    """Answers by JSON-RPC method, or by verb; it is modern unless told otherwise."""

    def __init__(self) -> None:
        self.seen: list[Posted] = []
        self.answers: dict[str, Answer] = {
            "server/discover": result_answer(DESCRIPTION),
            "tools/list": result_answer({"tools": []}),
        }
        self.changed = asyncio.Event()

    def has_sessions(self, *ids: str, revision: str = "2025-11-25") -> None:
        """Speak an older revision; each handshake opens the next session of *ids*."""
        left = list(ids)

        async def initialize(posted: Posted, send: Send) -> None:
            headers = {"mcp_session_id": left.pop(0)} if left else {}
            await result_answer(HANDSHAKE | {"protocolVersion": revision}, **headers)(posted, send)

        self.answers["server/discover"] = error_answer(-32601, "no such method", 404)
        self.answers["initialize"] = initialize
        for method in ("notifications/initialized", "notifications/cancelled", "response"):
            self.answers[method] = raw_answer(b"", 202)
        self.answers["DELETE"] = raw_answer(b"", 200)
        self.answers["GET"] = raw_answer(b"", 405)

    def of(self, method: str) -> list[Posted]:
        """Return the requests that arrived for a method."""
        return [one for one in self.seen if one.method == method]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, unfinished = b"", True
        while unfinished:
            message = await receive()
            body += message.get("body", b"")
            unfinished = message.get("more_body", False)
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        posted = Posted(
            scope["method"], headers, msgspec.json.decode(body) if body else None, receive
        )
        self.seen.append(posted)
        await self.answers.get(posted.method, error_answer(-32601, "no such method", 404))(
            posted, send
        )


@pytest.fixture
def scripted_server() -> Iterator[tuple[ScriptedServer, str]]:
    """Yield a scripted server and its URL."""
    app = ScriptedServer()
    with AsgiServer(app) as server:
        yield app, f"{server.url}/mcp"
