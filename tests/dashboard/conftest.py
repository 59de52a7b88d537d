"""A server with a dashboard and a real issuer on another port, and people who use it."""

import asyncio
import base64
import hashlib
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from http.cookiejar import Cookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx2
import msgspec
import pytest
from starlette.routing import Route

from gatepost.app import build_app
from gatepost.check.pack_loading import load
from gatepost.config.limits import LimitsSettings
from gatepost.config.settings import Config, StorageSettings, TenancySettings
from gatepost.dashboard.assets import Assets
from gatepost.dashboard.page import (
    PageRequest,
    PageResponse,
    PageRoute,
    ServerSentEvent,
)
from gatepost.dashboard.page_access import CheckedPage, PageServices
from gatepost.dashboard.routes import page_services
from gatepost.dashboard.security_headers import SecurityHeaders
from gatepost.dashboard.templating import Templates
from gatepost.http.edge import Edge
from gatepost.runtime.http_server import bind
from gatepost.runtime.services import Services, SourceOf
from gatepost_authz.config import DashboardClient, Issuer, RoleRule, TenantRule
from gatepost_authz.protected_resource import Resource
from gatepost_keys.issuer import DevelopmentIssuer as Provider
from gatepost_keys.issuer import IssuerSettings, StaticClient, app
from gatepost_keys.mint import TokenSubject as User
from tests.support.issuers import (
    AsgiServer,
    Idp,
    Receive,
    Scope,
    Send,
    TokenFactory,
    jwk,
    respond,
    rsa_key,
)
from tests.support.processes import free_port
from tests.support.programs import BrowserUser
from tests.support.proxies import CertificateAuthority
from tests.support.server import Server

PRODUCTION_HOST = "id.company.test"
SECRET = "known-to-this-test-run-only"
CLIENT = "gatepost-dashboard"
NAME = '<img src=x onerror="document.title=1">'
"""What a user wrote into their profile at the identity provider."""
USERS = (
    User(username="alice", name=NAME, tenant="acme", roles=("approver", "admin")),
    User(username="dave", name="Dave", tenant="acme", roles=("approver",)),
    User(username="eve", name="Eve", tenant="acme"),
    User(username="bob", name="Bob", tenant="globex", roles=("approver",)),
)


async def echo(page_request: PageRequest) -> PageResponse:
    """Return what a handler sees, as JSON in a page."""
    seen = (
        page_request.tenant,
        page_request.user.subject,
        page_request.path,
        page_request.query,
        page_request.form,
        page_request.fragment,
    )
    return PageResponse(
        html=f'<p data-csrf="{page_request.csrf}"></p>' + msgspec.json.encode(seen).decode()
    )


async def redirect_page(page_request: PageRequest) -> PageResponse:
    return PageResponse(location=page_request.form["to"])


async def download(page_request: PageRequest) -> PageResponse:
    return PageResponse(
        file=b"<script>1</script>", file_name='a"\r\nb/<x>.jsonl', file_type="text/html"
    )


async def live(page_request: PageRequest) -> PageResponse:
    async def events() -> AsyncIterator[ServerSentEvent]:
        yield ServerSentEvent("first", "<p>one</p>\n<p>two</p>")
        await asyncio.Event().wait()

    return PageResponse(events=events())


async def broken(page_request: PageRequest) -> PageResponse:
    raise RuntimeError("unforeseen")


NO_ROLES: frozenset[str] = frozenset()
PAGES = (
    PageRoute(path="/test/echo", get=echo, post=echo),
    PageRoute(path="/test/echo/{one}", get=echo),
    PageRoute(path="/test/open", get=echo, roles=NO_ROLES),
    PageRoute(path="/test/admin", get=echo, roles=frozenset({"admin"})),
    PageRoute(path="/test/onward", post=redirect_page),
    PageRoute(path="/test/download", get=download),
    PageRoute(path="/test/live", get=live, background=True),
    PageRoute(path="/test/poll", get=echo, background=True),
    PageRoute(path="/test/broken", get=broken),
)
"""Pages of the tests' own, for what the frame does whatever a page is about."""


def build(config: Config, services: Services) -> Edge:
    """Build the app, with the tests' pages beside its own and before the one for unknown paths."""
    edge = build_app(config, services)
    resource = Resource(config.resource)
    around = page_services(config, services, resource, Templates(Assets().path))

    def route(page: PageRoute) -> Route:
        frame = SecurityHeaders(
            CheckedPage(page, around), resource=resource, development=config.development
        )
        methods = [name for name, one in (("GET", page.get), ("POST", page.post)) if one]
        return Route(around.location.pattern + page.path, frame, methods=methods)

    table: Any = edge.app
    routes = {"dashboard": [*map(route, PAGES)]}
    for one in table.routes:
        routes.setdefault(table.label(one.path), []).append(one)
    edge.app = type(table)(routes, default=table.default)
    return edge


class DashboardServer(Server):
    """A server with a dashboard at *origin* and *base*, and the issuer of its people."""

    provider: Provider
    origin: str
    base: str

    @cached_property
    def _cookies(self) -> dict[str, list[Cookie]]:
        return {}

    @property
    def around(self) -> PageServices:
        """Return the services of its pages, whose sessions and cookies the server accepts."""
        view = Templates(Assets().path)
        return page_services(self.config, self.services, Resource(self.config.resource), view)

    @property
    def home(self) -> str:
        """Return the address of the dashboard."""
        return self.origin + self.base

    @contextmanager
    def user_browser(self, name: str = "", *, fresh: bool = False) -> Iterator["HttpBrowser"]:
        """Yield a browser with *name* signed in, in a shared session unless *fresh*."""
        user_browser = HttpBrowser(self)
        with user_browser.http:
            if name and (fresh or name not in self._cookies):
                user_browser.sign_in(name)
                if not fresh:
                    self._cookies[name] = list(user_browser.http.cookies.jar)
            elif name:
                # Whole, or the one that the server writes anew later would stand beside it.
                for cookie in self._cookies[name]:
                    user_browser.http.cookies.jar.set_cookie(cookie)
            yield user_browser


class HttpBrowser:
    """One browser: keeps cookies, names its origin with forms, follows nothing by itself."""

    def __init__(self, server: DashboardServer) -> None:
        self.server = server
        self.http = httpx2.Client(base_url=server.origin, timeout=10, verify=False)

    def get(self, below: str = "", **headers: str) -> httpx2.Response:
        return self.http.get(self.server.base + below, headers=header_fields(headers))

    def post(
        self, below: str, form: Mapping[str, str] | None = None, **headers: str
    ) -> httpx2.Response:
        """Post a form of a page of ours, with the session's token unless *form* has one."""
        fields = {"csrf": self.token()} | dict(form or {})
        sent = {"origin": self.server.origin, "sec-fetch-site": "same-origin"} | header_fields(
            headers
        )
        sent = {name: value for name, value in sent.items() if value}
        return self.http.post(self.server.base + below, data=fields, headers=sent)

    @contextmanager
    def stream(self, below: str) -> Iterator[Iterator[str]]:
        """Yield the lines of a live page, without the lines that only keep it open."""
        with self.http.stream("GET", self.server.base + below) as answer:
            assert answer.status_code == 200
            lines = answer.iter_lines()
            assert (next(lines), next(lines)) == (":", "")
            yield lines

    def token(self) -> str:
        """Return the token that a page of this session carries."""
        found = re.search(r'data-csrf="([^"]+)"', self.get("/test/open").text)
        return found[1] if found else ""

    def start(self, return_path: str = "", *, which: int = 0) -> httpx2.Response:
        """Begin a sign-in at the first issuer that is offered."""
        page = self.get("/sign-in").text
        links = re.findall(r"issuer=([0-9a-f]+)", page)
        query = {"issuer": links[which], "next": return_path}
        return self.http.get(f"{self.server.base}/sign-in/start", params=query)

    def sign_in(self, name: str, return_path: str = "") -> httpx2.Response:
        """Sign in as *name* with all steps; return the dashboard's answer to the callback."""
        back = BrowserUser(name).follow(self.start(return_path).headers["location"])
        answer = self.http.get(back)
        assert answer.status_code == 303, answer.text
        return answer

    def cookie(self, kind: str = "session") -> str:
        """Return the value of one of the dashboard's cookies; empty without one."""
        return next((c.value or "" for c in self.http.cookies.jar if kind in c.name), "")


def header_fields(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def query_of(url: str) -> dict[str, str]:
    """Return the query of *url*."""
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


@contextmanager
def open_dashboard_server(
    root: Path,
    *,
    path: str = "/mcp",
    change: Callable[[Config], Config] = lambda config: config,
    users: tuple[User, ...] = USERS,
    source_of: SourceOf | None = None,
    **settings: Any,
) -> Iterator[DashboardServer]:
    """Serve a dashboard beside the endpoint at *path*, with the development issuer."""
    port, issuer_port = free_port(), free_port()
    origin, issuer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{issuer_port}/dev-as"
    base = path.rpartition("/")[0] + "/dashboard"
    (root / "secret").write_text(SECRET)
    config = Config(
        resource=origin + path,
        mode="development",
        issuers=(issuer_of(issuer, root),),
        tenancy=TenancySettings(tenants=("acme", "globex")),
        storage=StorageSettings(database="memory:"),
        limits=LimitsSettings(max_body_bytes=100_000),
    )
    config = change(config)
    callbacks = [origin + base.replace("{tenant}", tenant) for tenant in ("acme", "globex")]
    provider = Provider(
        IssuerSettings(
            issuer=issuer,
            resources=(config.resource,),
            users=users,
            **settings,
            clients=(
                StaticClient(
                    client_id=CLIENT,
                    secret=SECRET,
                    redirect_uris=tuple(f"{one}/callback" for one in dict.fromkeys(callbacks)),
                ),
            ),
        )
    )
    sock = bind("127.0.0.1", port)
    loaded_packs = load(config.tools, config.packs, config.network)
    server = DashboardServer(config, loaded_packs, sock, build=build, source_of=source_of)
    server.provider, server.origin = provider, origin
    server.base = base.replace("{tenant}", "acme")
    with AsgiServer(app(provider), port=issuer_port), server.running():
        yield server


def issuer_of(issuer: str, root: Path) -> Issuer:
    """Return an issuer of people, with a client for the dashboard."""
    return Issuer(
        issuer=issuer,
        tenant=TenantRule(claim="org_id"),
        roles={
            name: RoleRule(claim="roles", value=name) for name in ("approver", "admin", "operator")
        },
        dashboard=DashboardClient(client_id=CLIENT, client_secret=f"file:{root / 'secret'}"),
    )


class ProductionProvider(Idp):
    """https://id.company.test: signs every browser in at once, as `person`."""

    def __init__(self, authority: CertificateAuthority) -> None:
        certificate, key = authority.certify(PRODUCTION_HOST)
        super().__init__(f"https://{PRODUCTION_HOST}", ssl_certfile=certificate, ssl_keyfile=key)
        self.person, self.asked = "dave", list[dict[str, str]]()
        self._codes: dict[str, dict[str, str]] = {}
        self.issuer("main", [jwk(rsa_key())])

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/main/authorize":
            asked = dict(parse_qsl(scope["query_string"].decode()))
            self.asked.append(asked)
            code = secrets.token_urlsafe(16)
            self._codes[code] = asked
            way = {"code": code, "state": asked["state"], "iss": self.issuer("main")}
            back = f"{asked['redirect_uri']}?{urlencode(way)}"
            await respond(send, 303, b"", ((b"location", back.encode()),))
        elif scope["path"] == "/main/token":
            form = dict(parse_qsl((await receive())["body"].decode()))
            tokens = self._redeemed(dict(scope["headers"]), form)
            await respond(send, 200 if tokens else 400, json.dumps(tokens).encode())
        else:
            await super()._answer(scope, receive, send)

    def _redeemed(self, headers: dict[bytes, bytes], form: dict[str, str]) -> dict[str, Any]:
        """Redeem a code, once, for the client that requested it (RFC 6749 section 4.1.3)."""
        asked = self._codes.pop(form["code"], {})
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode())
        if (
            not asked
            or asked["redirect_uri"] != form["redirect_uri"]
            or asked["code_challenge"] != challenge
            or headers[b"authorization"] != b"Basic " + basic
        ):
            return {}
        forge = TokenFactory(self.issuer("main"), asked["resource"])
        person = {"sub": self.person, "roles": ["approver"]}
        identity = {"aud": CLIENT, "nonce": asked["nonce"], **person}
        return {
            "token_type": "Bearer",
            "access_token": forge.token(client_id=CLIENT, **person),
            "id_token": forge.token(header={"typ": "JWT"}, **self.identity(identity)),
        }

    def identity(self, claims: dict[str, Any]) -> dict[str, Any]:
        """Return the claims of the ID token."""
        return claims


@pytest.fixture(scope="package")
def shared_dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardServer]:
    """Serve a dashboard that tests share: a test changes nothing that another test sees."""
    with open_dashboard_server(tmp_path_factory.mktemp("dashboard")) as running:
        yield running
