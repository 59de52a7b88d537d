"""A small internet on this machine, and a client whose only way out leads there."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import pytest

from gatepost.outbound.http_client import OutboundClient
from gatepost.runtime.services import Services
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


@contextmanager
def small_internet(folder: Path) -> Iterator[Internet]:
    """Run it for the time of a block. Every `*.web.test` is a public name of the one site."""
    company, site = CertificateAuthority(folder), WebSite()
    certificate, key = company.certify(f"*.{DOMAIN}")
    plain = AsgiServer(site).start()
    secure = AsgiServer(site, ssl_certfile=certificate, ssl_keyfile=key).start()
    with connect_proxy(secure.port, plain.port, user="user:word@") as proxy:
        try:
            yield Internet(site, ScriptedNames(), proxy, company, plain.port, secure.port)
        finally:
            secure.stop()
            plain.stop()


@pytest.fixture(scope="session")
def internet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    """Running as long as the tests do."""
    with small_internet(tmp_path_factory.mktemp("internet")) as world:
        yield world


@pytest.fixture
def world(internet: Internet) -> Internet:
    """The same, with nothing remembered."""
    return internet.reset()


@pytest.fixture
async def client(world: Internet) -> AsyncIterator[OutboundClient]:
    """A server's client, whose only way out is the world's proxy."""
    network = Network(
        ca_bundle=str(world.company.bundle),
        proxy=world.proxy.url,
        allow_hosts=(f"localhost:{world.plain}",),
    )
    made = OutboundClient(
        network, tls=Fetcher(development=True, network=network).tls, resolver=world.names
    )
    yield made
    await made.aclose()
