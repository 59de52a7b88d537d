"""The dashboard as people meet it in production: over https, with TLS of its own or a proxy's."""

import json
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import expect

from gatepost.secrets.keyring import create
from tests.dashboard.conftest import CLIENT, SECRET, ProductionProvider
from tests.support.client import RawAnswer, ResourceClient, exchange, request
from tests.support.commands import Gatepost, running, toml
from tests.support.issuers import AsgiServer, Scope, TokenFactory
from tests.support.measuring import each
from tests.support.processes import free_port
from tests.support.programs import WITHIN_MS, chromium, forms_of, in_a_browser
from tests.support.proxies import Balancer, CertificateAuthority, ConnectProxy, connect_proxy

BASE_PATH, WITHIN_S = "/dashboard", 30
FORWARDED_FIELDS = (b"x-forwarded-proto", b"x-forwarded-for")


class TlsProxy(Balancer):
    """Ends TLS and says so, whatever the client says."""

    def headers(self, scope: Scope, upstream: str) -> list[tuple[bytes, bytes]]:
        """Return the request's fields, with the scheme and the address of the client."""
        headers = [
            (name, value) for name, value in scope["headers"] if name not in FORWARDED_FIELDS
        ]
        peer = scope["client"][0].encode()
        return [*headers, *zip(FORWARDED_FIELDS, (b"https", peer), strict=True)]


class ProductionServer:
    """The running server: where people reach it, and where it listens itself."""

    def __init__(
        self, process: Gatepost, port: int, provider: ProductionProvider, out: ConnectProxy
    ) -> None:
        self.process, self.port, self.provider, self.out = process, port, provider, out
        self.trusting: ssl.SSLContext
        self.origin = process.origin
        self.home = self.origin + BASE_PATH

    @property
    def client(self) -> ResourceClient:
        """Return a client of the address that agents use."""
        return ResourceClient(f"{self.origin}/mcp", tls=self.trusting)

    def token(self, **claims: Any) -> str:
        """Return a token of an agent."""
        return TokenFactory(self.provider.issuer("main"), f"{self.origin}/mcp").token(**claims)

    def rest(self, tool: str, filename: str, **more: Any) -> int:
        """Return the status of one call of an agent."""
        body = json.dumps({"filename": filename, **more}).encode()
        return self.client.send("POST", f"/tool/{tool}/call", body=body, token=self.token()).status

    @contextmanager
    def user_browser(self) -> Iterator["HttpsBrowser"]:
        """Open a browser and close it at the end."""
        with (
            httpx2.Client(base_url=self.origin, timeout=WITHIN_S, verify=self.trusting) as here,
            httpx2.Client(proxy=self.out.url, timeout=WITHIN_S, verify=self.trusting) as far,
        ):
            yield HttpsBrowser(here, far)


class HttpsBrowser:
    """Keeps cookies, checks certificates, names its origin with forms, follows nothing itself."""

    def __init__(self, http: httpx2.Client, far: httpx2.Client) -> None:
        self.http, self._far = http, far

    def get(self, below: str = "") -> httpx2.Response:
        return self.http.get(BASE_PATH + below)

    def sign_in(self) -> list[httpx2.Response]:
        """Sign in; return the dashboard's first and last answers."""
        page = forms_free(self.get("/sign-in").text)
        start = self.http.get(page)
        back = self._far.get(start.headers["location"]).headers["location"]
        return [start, self.http.get(back)]

    def post(self, below: str, origin: str, **fields: str) -> httpx2.Response:
        """Send a form with the token of this session."""
        fields = {"csrf": self.token(), **fields}
        return self.http.post(BASE_PATH + below, data=fields, headers={"origin": origin})

    def token(self) -> str:
        """Return the token that the forms of this session contain."""
        fields = [field for form in forms_of(self.get().text) for field in form.fields]
        return dict(fields)["csrf"]

    def cookies(self) -> dict[str, str]:
        return {cookie.name: cookie.value or "" for cookie in self.http.cookies.jar}


def forms_free(page: str) -> str:
    """Return the address of the link to the only issuer."""
    start = page.index(f"{BASE_PATH}/sign-in/start?")
    return page[start : page.index('"', start)].replace("&amp;", "&")


@contextmanager
def open_production_server(
    folder: Path, provider: ProductionProvider, out: ConnectProxy, **listen: Any
) -> Iterator[ProductionServer]:
    """Run `gatepost serve` in production, at the address that *listen* and `at` name."""
    port, at = listen.setdefault("port", free_port()), listen.pop("at", 0)
    create(folder / "keyring.json")
    (folder / "secret").write_text(SECRET)
    issuer = {
        "issuer": provider.issuer("main"),
        "tenant": {"claim": "org_id"},
        "tenants": {"acme": "acme"},
        "roles": {"approver": {"claim": "roles", "value": "approver"}},
        "dashboard": {"client_id": CLIENT, "client_secret": "file:secret"},
    }
    tree = {
        "resource": f"https://localhost:{at or port}/mcp",
        "listen": listen,
        "keys": {"ring": "file:keyring.json"},
        "network": {"ca_bundle": listen.pop("ca"), "proxy": out.url},
        "issuers": [issuer],
        "tools": {"packs": ["demo"]},
        "storage": {"database": "sqlite:///gatepost.db"},
    }
    lines = [f"{name} = {toml(value)}" for name, value in tree.items()]
    (folder / "gatepost.toml").write_text("\n".join(lines), encoding="utf-8")
    with running("serve", cwd=folder) as process:
        yield ProductionServer(process, port, provider, out)


@contextmanager
def own_tls(
    folder: Path, authority: CertificateAuthority, provider: ProductionProvider, out: ConnectProxy
) -> Iterator[ProductionServer]:
    """Run a server that ends TLS itself."""
    certificate, key = authority.certify("localhost")
    listen = {"tls_certificate": certificate, "tls_key": key, "ca": str(authority.bundle)}
    with open_production_server(folder, provider, out, **listen) as server:
        server.trusting = ssl.create_default_context(cafile=str(authority.bundle))
        yield server


@contextmanager
def behind_proxy(
    folder: Path, authority: CertificateAuthority, provider: ProductionProvider, out: ConnectProxy
) -> Iterator[ProductionServer]:
    """Run a server behind a proxy on this machine that ends TLS."""
    certificate, key = authority.certify("localhost")
    front = free_port()
    listen = {"trusted_proxies": ["127.0.0.1/32"], "at": front, "ca": str(authority.bundle)}
    with open_production_server(folder, provider, out, **listen) as server:
        server.trusting = ssl.create_default_context(cafile=str(authority.bundle))
        proxy = TlsProxy([f"http://127.0.0.1:{server.port}"])
        options = {"port": front, "ssl_certfile": certificate, "ssl_keyfile": key}
        with AsgiServer(proxy, lifespan="on", **options):
            yield server


pytestmark = pytest.mark.requirement("A7", "O7")

SITES = {"TLS of its own": own_tls, "TLS of a proxy": behind_proxy}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def provider(authority: CertificateAuthority) -> Iterator[ProductionProvider]:
    with ProductionProvider(authority) as provider:
        yield provider


@pytest.fixture(scope="module")
def out(provider: ProductionProvider) -> Iterator[ConnectProxy]:
    with connect_proxy(provider.port) as proxy:
        yield proxy


@pytest.fixture(scope="module", params=SITES.values(), ids=SITES.keys())
def server(
    request: pytest.FixtureRequest,
    authority: CertificateAuthority,
    provider: ProductionProvider,
    out: ConnectProxy,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ProductionServer]:
    with request.param(tmp_path_factory.mktemp("site"), authority, provider, out) as server:
        yield server


COOKIE_VALUE, FLAGS = r"[\w.-]+", "Path=/; HttpOnly; SameSite=Lax"


def test_a_user_signs_in_and_out_over_https(server: ProductionServer) -> None:
    """The issuer redirects to https; cookies have the `__Host-` prefix and are deleted."""
    with server.user_browser() as user_browser:
        request, opened = user_browser.sign_in()
        assert server.provider.asked[-1]["redirect_uri"] == f"{server.home}/callback"
        assert server.provider.asked[-1]["resource"] == f"{server.origin}/mcp"
        assert re.fullmatch(
            rf"__Host-gatepost-sign-in={COOKIE_VALUE}; {FLAGS}; Max-Age=600; Secure",
            request.headers["set-cookie"],
        )
        assert (opened.status_code, opened.headers["location"]) == (303, BASE_PATH)
        session, ended = opened.headers.get_list("set-cookie")
        assert re.fullmatch(rf"__Host-gatepost-session={COOKIE_VALUE}; {FLAGS}; Secure", session)
        assert ended == f"__Host-gatepost-sign-in=; {FLAGS}; Max-Age=0; Secure"
        assert user_browser.cookies().keys() == {"__Host-gatepost-session"}
        assert user_browser.get().status_code == 200

        response = user_browser.post("/sign-out", server.origin)
        assert response.headers["location"] == f"{BASE_PATH}/signed-out"
        assert (
            response.headers["set-cookie"]
            == f"__Host-gatepost-session=; {FLAGS}; Max-Age=0; Secure"
        )
        assert user_browser.get().headers["location"] == f"{BASE_PATH}/sign-in"


def test_every_answer_has_strict_transport_security(server: ProductionServer) -> None:
    """This includes redirects, files, refusals and missing pages (RFC 6797 section 7.1)."""
    with server.user_browser() as user_browser:
        answers = [
            *user_browser.sign_in(),
            user_browser.get(),
            user_browser.get("/nothing"),
            user_browser.get("/callback"),
        ]
        asset = re.search(r'(?:src|href)="(/dashboard/[^"]+\.(?:js|css))"', answers[2].text)
        assert asset is not None
        answers += [
            user_browser.http.get(asset[1]),
            user_browser.http.get(BASE_PATH, headers={"host": "evil.test"}),
        ]

    assert [answer.status_code for answer in answers] == [303, 303, 200, 404, 400, 200, 421]
    for answer in answers:
        assert answer.headers["strict-transport-security"] == "max-age=31536000"
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_forms_are_accepted_only_from_the_https_origin(server: ProductionServer) -> None:
    """The http origin, another port, another origin and a wrong token are refused."""
    plain = server.origin.replace("https", "http")
    with server.user_browser() as user_browser:
        user_browser.sign_in()
        for origin in (
            plain,
            "https://localhost",
            f"{server.origin}0",
            "https://evil.test",
            "null",
        ):
            assert user_browser.post("/sign-out", origin).status_code == 403
        assert user_browser.post("/sign-out", server.origin, csrf="made-up").status_code == 403
        assert user_browser.get().status_code == 200
        assert user_browser.post("/sign-out", server.origin).status_code == 303


def test_an_arriving_call_is_shown_live_and_approved_over_https(server: ProductionServer) -> None:
    """The stream sends events at once; the agent's call runs once with the approval."""
    assert server.rest("save_csv", "old", rows=[]) == 200
    with server.user_browser() as user_browser:
        user_browser.sign_in()
        with user_browser.http.stream("GET", f"{BASE_PATH}/live") as stream:
            assert stream.status_code == 200
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = stream.iter_lines()
            next(lines)
            assert server.rest("delete_csv", "old") == 503
            link = next(match[1] for line in lines if (match := LINK.search(line)))
        page = user_browser.http.get(link)
        seen = re.search(r'name="seen" value="([^"]+)"', page.text)
        assert seen is not None
        decided = user_browser.post(
            f"{link.removeprefix(BASE_PATH)}/approve", server.origin, seen=seen[1]
        )
        assert decided.status_code == 303, decided.text
    assert server.rest("delete_csv", "old") == 200


LINK = re.compile(r'href="(/dashboard/approvals/[^"]+)"')
PLAIN_HTTP_FIELDS = {
    "the proxy says nothing": [],
    "the proxy says http": [("X-Forwarded-Proto", "http")],
    "a link of the chain was http": [("X-Forwarded-Proto", "https, http")],
    "it is said twice": [("X-Forwarded-Proto", "https"), ("X-Forwarded-Proto", "http")],
    "it is said otherwise": [("Forwarded", "proto=https")],
}


def in_the_clear(server: ProductionServer, below: str, fields: list[tuple[str, str]]) -> RawAnswer:
    head = [("Host", server.origin.partition("://")[2]), ("Connection", "close"), *fields]
    return exchange(server.port, request("GET", BASE_PATH + below, head))


@pytest.fixture(scope="module")
def clear(
    authority: CertificateAuthority,
    provider: ProductionProvider,
    out: ConnectProxy,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ProductionServer]:
    """Yield a server behind a proxy that an attacker bypasses."""
    with behind_proxy(tmp_path_factory.mktemp("clear"), authority, provider, out) as server:
        yield server


@each("case", PLAIN_HTTP_FIELDS)
@each("below", ["", "/sign-in", "/sign-in/start", "/callback", "/live"])
def test_the_dashboard_refuses_plain_http(clear: ProductionServer, below: str, case: str) -> None:
    """Every path returns a page that says so, without a cookie."""
    answer = in_the_clear(clear, below, PLAIN_HTTP_FIELDS[case])

    assert answer.status == 400
    assert b"over HTTPS only" in answer.body
    assert answer.field("set-cookie") is None


def test_a_session_cookie_is_refused_over_plain_http(clear: ProductionServer) -> None:
    """Some client may send the cookie although it is for https only."""
    with clear.user_browser() as user_browser:
        user_browser.sign_in()
        cookie = "; ".join(f"{name}={value}" for name, value in user_browser.cookies().items())
        assert in_the_clear(clear, "", [("Cookie", cookie)]).status == 400
        vouched = [("Cookie", cookie), ("X-Forwarded-Proto", "https")]
        assert in_the_clear(clear, "", vouched).status == 200


def test_a_tls_port_never_answers_plain_http(
    authority: CertificateAuthority,
    provider: ProductionProvider,
    out: ConnectProxy,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """It does not send a page of refusal either."""
    with (
        own_tls(tmp_path_factory.mktemp("own_tls"), authority, provider, out) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=WITHIN_S) as plain,
    ):
        plain.sendall(request("GET", BASE_PATH, [("Host", "localhost")]))
        try:
            assert not plain.recv(4096).startswith(b"HTTP/")
        except ConnectionResetError:
            return


@pytest.mark.slow
@in_a_browser[0]
@in_a_browser[1]
def test_a_browser_signs_in_and_approves_an_arriving_call_over_https(
    server: ProductionServer,
) -> None:
    """Chromium keeps the cookies, reads the stream, posts the forms and logs no error."""
    assert server.rest("save_csv", "seen", rows=[]) == 200
    complaints: list[str] = []
    with chromium() as browser:
        context = browser.new_context(
            ignore_https_errors=True, proxy={"server": server.out.url, "bypass": "localhost"}
        )
        context.set_default_timeout(WITHIN_MS)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(server.home)
        page.get_by_role("link", name="Continue").click()
        expect(page.get_by_role("heading", name="No requests are waiting")).to_be_visible()
        assert page.url == server.home
        assert [
            (cookie["name"], cookie["secure"], cookie["httpOnly"]) for cookie in context.cookies()
        ] == [("__Host-gatepost-session", True, True)]

        assert server.rest("delete_csv", "seen") == 503
        waiting = page.locator(".request")
        expect(waiting).to_have_count(1)
        waiting.get_by_role("link").click()
        page.get_by_role("button", name="Approve this call").click()
        expect(page.get_by_text("Waiting for the agent to make the call")).to_be_visible()
        assert server.rest("delete_csv", "seen") == 200

        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("signed out")
        assert context.cookies() == []
        context.close()
    assert complaints == []
