"""No URL leads a tool to an internal address, however it is written, resolved or redirected."""

import json
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from tests.packs.conftest import PackCaller, PackServer, open_server
from tests.support.client import ToolResult
from tests.support.internet import PUBLIC, Internet, page_answer, redirect_answer
from tests.support.measuring import each

LITERALS = """
127.0.0.1 127.1 127.0.1 2130706433 0x7f000001 0x7F.0.0.1 0x7f.1 0177.0.0.1 017700000001
127.000.000.001 127.0.0.1. 127.0.0.1.. 0 0.0.0.0 00.0.0.0 127.0.0.2 127.255.255.254 0x7f000001.
[::1] [0:0:0:0:0:0:0:1] [::] [::ffff:127.0.0.1] [::ffff:7f00:1] [0:0:0:0:0:ffff:127.0.0.1]
[::127.0.0.1] [::7f00:1] [64:ff9b::127.0.0.1] [64:ff9b:1::7f00:1] [2002:7f00:1::]
[2001:0:7f00:1::] [fe80::1] [fe80::1%25lo] [::1%25lo] [::1%lo] [fec0::1] [fc00::1] [fd00:ec2::254]
[ff02::1] [100::1] [::ffff:0:7f00:1] 10.0.0.1 172.16.0.1 192.168.0.1 169.254.169.254 0xa9fea9fe
2852039166 100.64.0.1 100.100.100.200 168.63.129.16 192.0.0.192 192.0.2.1 198.18.0.1 224.0.0.1
255.255.255.255 240.0.0.1 127.0.0.1%2f %31%32%37.0.0.1 127%2e0%2e0%2e1 127.0.0.1%00 [127.0.0.1]
[::1 ::1 [[::1]] [v1.7f000001] 127.0.0.1,www.web.test 4294967297 127.0.0.1.nip
"""
"""Addresses of this machine and of internal hosts, in every spelling that a parser accepts."""

LOOKALIKE_HOSTS = [
    "\uff11\uff12\uff17.0.0.1",
    "\u2460\u2461\u2466.\u24ea.\u24ea.\u2460",
    "127\u30020\u30020\u30021",
    "127\uff0e0\uff0e0\uff0e1",
    "\u24db\u24de\u24d2\u24d0\u24db\u24d7\u24de\u24e2\u24e3",
    "\u2113ocalhost",
    "loc\u200balhost",
    "loc\xadalhost",
    "localho\u017ft",
    "localhost\u0301",
    "[\uff1a\uff1a1]",
    "\u0661\u0662\u0667.0.0.1",
    "xn--localhost-",
    "localhost\u3002",
    "\ufeff127.0.0.1",
    "127\u20240\u20240\u20241",
]
"""Characters that some library folds into digits, dots and letters (UTS 46)."""

NAMES: dict[str, list[list[str]]] = {
    "inside.example": [["127.0.0.1"]],
    "inside6.example": [["::1"]],
    "mapped.example": [["::ffff:127.0.0.1"]],
    "nat64.example": [["64:ff9b::7f00:1"]],
    "6to4.example": [["2002:7f00:1::"]],
    "mixed.example": [[PUBLIC, "127.0.0.1"]],
    "mixed6.example": [["127.0.0.1", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"]],
    "any.example": [["0.0.0.0"]],
    "zone.example": [["fe80::1%lo"]],
    "private.example": [["10.0.0.8"]],
    "shared.example": [["100.64.0.1"]],
    "metadata.google.internal": [["169.254.169.254"]],
    "wireserver.example": [["168.63.129.16"]],
    "rebound.example": [[PUBLIC], ["127.0.0.1"]],
    "rebound6.example": [[PUBLIC], ["::1"]],
    "kubernetes.default.svc": [["10.96.0.1"]],
    "empty.example": [[]],
}
"""What names mean, the first time and from then on."""

OTHER_NAMES = ["LOCALHOST", "localhost.", "a.localhost", "inside.example.", "INSIDE.example"]

WHOLE_URLS = [
    "http://www.web.test@127.0.0.1:{port}/",
    "http://www.web.test:80@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}@www.web.test/",
    "http://@127.0.0.1:{port}/",
    "http://:@127.0.0.1:{port}/",
    "http://www.web.test\\@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}\\@www.web.test/",
    "http://127.0.0.1:{port}\\.web.test/",
    "http://127.0.0.1:{port}#@www.web.test/",
    "http://127.0.0.1:{port}?@www.web.test/",
    "http://127.0.0.1:{port};@www.web.test/",
    "http://127.0.0.1\t:{port}/",
    "http://\t127.0.0.1:{port}/",
    " http://127.0.0.1:{port}/",
    "\x00http://127.0.0.1:{port}/",
    "http://127.0.0.1:{port}/\n",
    "ht\ntp://127.0.0.1:{port}/",
    "http://127.0.\r\n0.1:{port}/",
    "http://www.web.test\r\nHost: 127.0.0.1:{port}/",
    "http://www.web.test/ HTTP/1.1\r\nHost: inside\r\n\r\nGET http://127.0.0.1:{port}/",
    "http:/127.0.0.1:{port}/",
    "http:127.0.0.1:{port}/",
    "http:///127.0.0.1:{port}/",
    "http:////127.0.0.1:{port}/",
    "//127.0.0.1:{port}/",
    "///127.0.0.1:{port}/",
    "127.0.0.1:{port}/",
    "\\\\127.0.0.1:{port}\\",
    "http:\\\\127.0.0.1:{port}\\",
    "HTTP://127.0.0.1:{port}/",
    "http://127.0.0.1:0{port}/",
    "http://127.0.0.1:{port}.0/",
    "http://127.0.0.1:+{port}/",
    "http://127.0.0.1: {port}/",
    "http://127.0.0.1:{port}:80/",
    "http://[::1]:{port}]/",
    "http://[::1]127.0.0.1:{port}/",
    "https://127.0.0.1:{port}/",
    "file:///etc/passwd",
    "file://127.0.0.1:{port}/etc/passwd",
    "gopher://127.0.0.1:{port}/_GET",
    "dict://127.0.0.1:{port}/info",
    "ftp://127.0.0.1:{port}/",
    "ldap://127.0.0.1:{port}/",
    "ws://127.0.0.1:{port}/",
    "data:text/html,<p>x",
    "javascript:fetch('http://127.0.0.1:{port}/')",
    "view-source:http://127.0.0.1:{port}/",
    "jar:http://127.0.0.1:{port}/!/",
    "blob:http://127.0.0.1:{port}/x",
    "unix:///var/run/docker.sock",
    "http+unix://%2Fvar%2Frun%2Fdocker.sock/info",
    "http://unix:/var/run/docker.sock",
    "about:blank",
    "",
    "http://",
    "http://:{port}/",
    "http://#",
    "http://.{port}/",
    "http://" + "a" * 300 + "/",
    "http://" + "a." * 4_000 + "/",
    "http://www.web.test:22/",
    "http://www.web.test:25/",
    "http://www.web.test:443/",
    "https://www.web.test:80/",
    "http://www.web.test:6667/",
    "http://www.web.test:0/",
    "http://www.web.test:65536/",
    "http://www.web.test:-1/",
    "http://www.web.test:x/",
]

REFUSED_URLS = [
    *(f"http://{host}:{{port}}/" for host in (*LITERALS.split(), *LOOKALIKE_HOSTS, *OTHER_NAMES)),
    *(f"http://{name}:{{port}}/" for name in NAMES if not name.startswith("rebound")),
    "http://localhost:{port}/",
    "http://127.0.0.1/",
    "http://169.254.169.254/latest/meta-data/",
    *WHOLE_URLS,
]
"""No proxy is asked for these."""

REBOUND_URLS = ["http://rebound.example:{port}/", "http://rebound6.example:{port}/"]
"""Names that resolve to a public address once, and to an internal address afterwards."""


def spelt(url: str) -> str:
    """Return the start of a URL as the name of a test."""
    return url[:60].encode("unicode_escape").decode()


Call = tuple[str, dict[str, Any]]


class UrlTool(NamedTuple):
    """How a URL gets to a tool: the calls to make, the last of which would send a request."""

    what: str
    pack: str
    calls: Callable[[str], list[Call]]
    follows: bool
    """Whether it follows redirects."""


def description_call(server: str, **more: Any) -> Call:
    """Load a description of an API that says where its server is."""
    document = {
        "openapi": "3.1.0",
        "info": {"title": "x", "version": "1"},
        "servers": [{"url": server}],
        "paths": {"/to": {"get": {"responses": {}}}},
    }
    return "openapi_load", {"name": "x", "spec_content": json.dumps(document), **more}


CALL: Call = ("openapi_call", {"name": "x", "path": "/to", "method": "GET", "timeout_s": 5})

URL_TOOLS = [
    UrlTool("web_fetch", "web", lambda url: [("web_fetch", {"url": url})], follows=True),
    UrlTool(
        "openapi_load spec_url",
        "openapi",
        lambda url: [("openapi_load", {"name": "x", "spec_url": url})],
        follows=True,
    ),
    UrlTool(
        "openapi_load base_url_override",
        "openapi",
        lambda url: [description_call("https://www.web.test", base_url_override=url), CALL],
        follows=False,
    ),
    UrlTool(
        "gitlab_openapi_spec spec_url",
        "gitlab",
        lambda url: [("gitlab_openapi_spec", {"spec_url": url, "refresh": True})],
        follows=True,
    ),
    UrlTool("openapi servers", "openapi", lambda url: [description_call(url), CALL], follows=False),
    UrlTool(
        "gitlab_request endpoint",
        "gitlab",
        lambda url: [
            ("gitlab_request", {"endpoint": url, "token": "x", "path": "/to", "timeout_s": 5})
        ],
        follows=True,
    ),
]


REFUSED_BATCHES = [REFUSED_URLS[at : at + 12] for at in range(0, len(REFUSED_URLS), 12)]
EACH_SHARE = pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.slow)])
"""
The first tool is given every URL, each other one a third of them, and with --slow all.

They have one client, which judges what it is about to connect to.
"""
RESOLUTIONS_PER_NAME = 3
"""How often a test resolves a name whose address changes."""


class Inside:
    """A listener at an internal address; it never answers, and counts every connection."""

    def __init__(self) -> None:
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self.port = self._sockets[0].getsockname()[1]
        if socket.has_dualstack_ipv6():
            self._sockets.append(socket.create_server(("::1", self.port), family=socket.AF_INET6))
        for listener in self._sockets:
            listener.setblocking(False)

    def connections(self) -> int:
        """Return how many connections came since the last call."""
        connections_made = 0
        for listener in self._sockets:
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                continue
            connection.close()
            connections_made += 1
        return connections_made

    def close(self) -> None:
        for listener in self._sockets:
            listener.close()


@pytest.fixture(scope="module")
def internal_server() -> Iterator[Inside]:
    listening = Inside()
    yield listening
    listening.close()


@pytest.fixture(scope="module")
def server(
    shared_internet: Internet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PackServer]:
    """Yield a server with every pack whose tools take URLs, in development mode."""
    with open_server(
        tmp_path_factory.mktemp("office"),
        sorted({taker.pack for taker in URL_TOOLS}),
        network=shared_internet.network(),
        packs={"web": {"robots": False, "timeout_s": 5}, "gitlab": {"literals": True}},
        prepare=shared_internet.resolves_for,
    ) as server:
        yield server


@pytest.fixture(scope="module")
def agent(server: PackServer) -> PackCaller:
    return server.agent("rest")


@pytest.fixture
def internet(internet: Internet, internal_server: Inside) -> Iterator[Internet]:
    """Yield the internet; assert afterwards that no request reached the internal server."""
    internet.names.known |= {name: list(answers) for name, answers in NAMES.items()}
    yield internet
    assert internal_server.connections() == 0
    assert {target.split()[1].rpartition(":")[0] for target in internet.proxy.asked} <= {PUBLIC}


def share_of(urls: Sequence[str], taker: UrlTool, share: int) -> Sequence[str]:
    """Return the share of the URLs that the tool is given."""
    number = URL_TOOLS.index(taker)
    return urls[number % share :: share] if number else urls


def last_result(agent: PackCaller, taker: UrlTool, url: str) -> ToolResult:
    """Return the result of the last call; an earlier one may have been refused."""
    reply = ToolResult()
    for tool, arguments in taker.calls(url):
        reply = agent.call(tool, **arguments)
        if reply.failure is not None:
            break
    return reply


@pytest.mark.requirement("P9", "X4", "X5", "X7")
@EACH_SHARE
@each("some", REFUSED_BATCHES, ids=lambda urls: spelt(urls[0]))
@each("taker", URL_TOOLS, ids=lambda taker: taker.what)
def test_a_url_does_not_lead_to_an_internal_address(
    agent: PackCaller,
    internet: Internet,
    internal_server: Inside,
    share: int,
    taker: UrlTool,
    some: Sequence[str],
) -> None:
    """Gatepost refuses it with a sentence and asks no server."""
    for url in share_of(some, taker, share):
        reply = last_result(agent, taker, url.replace("{port}", str(internal_server.port)))

        assert reply.failure is not None, url
        assert reply.kind in {"denied", "validation", "upstream_unavailable"}, (url, reply)
        assert (internet.site.seen, internal_server.connections()) == ([], 0), url


@pytest.mark.requirement("P9", "X5", "X7")
@EACH_SHARE
@each("some", REFUSED_BATCHES, ids=lambda urls: spelt(urls[0]))
@each("taker", [tool for tool in URL_TOOLS if tool.follows], ids=lambda tool: tool.what)
def test_a_redirect_does_not_lead_to_an_internal_address(
    agent: PackCaller,
    internet: Internet,
    internal_server: Inside,
    share: int,
    taker: UrlTool,
    some: Sequence[str],
) -> None:
    """The redirect may point to any spelling of an internal address."""
    for url in share_of(some, taker, share):
        target = url.replace("{port}", str(internal_server.port))
        internet.site.pages["/to"] = redirect_answer(
            "".join(c for c in target if c not in "\r\n\0\t")
        )

        reply = last_result(agent, taker, "http://www.web.test/to")

        assert reply.kind != "internal", (url, reply)
        assert internal_server.connections() == 0, url


@pytest.mark.requirement("P9")
@each("url", REBOUND_URLS, ids=spelt)
@each("taker", URL_TOOLS, ids=lambda taker: taker.what)
def test_dns_rebinding_does_not_lead_to_an_internal_address(
    agent: PackCaller, internet: Internet, internal_server: Inside, taker: UrlTool, url: str
) -> None:
    """Gatepost connects to the address that it checked, and checks the next one again."""
    internet.names.known |= {name: list(answers) for name, answers in NAMES.items()}
    internet.site.pages["/"] = internet.site.pages["/to"] = page_answer("<p>x")
    for _ in range(RESOLUTIONS_PER_NAME):
        reply = last_result(agent, taker, url.replace("{port}", str(internal_server.port)))
        assert reply.kind != "internal", reply


@pytest.mark.requirement("P9")
@each("status", [303, 308])
@each("taker", URL_TOOLS, ids=lambda taker: taker.what)
def test_a_chain_of_redirects_ends(
    agent: PackCaller, internet: Internet, taker: UrlTool, status: int
) -> None:
    """It may be a circle or endless."""
    internet.site.seen.clear()
    internet.site.pages["/"] = redirect_answer("/to", status)
    internet.site.pages["/to"] = redirect_answer("https://other.web.test/", status)

    assert last_result(agent, taker, "https://www.web.test/").kind != "internal"
    assert len(internet.site.seen) <= 12
