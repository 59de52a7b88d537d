"""A dashboard in production: over TLS, with an issuer elsewhere that a test can change."""

import base64
import hashlib
import json
import secrets
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import httpx2
from msgspec.structs import replace

from gatepost.secrets.keyring import create
from gatepost_authz.config import DashboardClient, Issuer, RoleRule, TenantRule
from tests.dashboard.conftest import CLIENT, SECRET, DashboardServer, open_dashboard_server
from tests.support.client import ResourceClient
from tests.support.commands import Gatepost, running, toml
from tests.support.issuers import (
    Idp,
    Receive,
    Scope,
    Send,
    TokenFactory,
    jwk,
    respond,
    rsa_key,
    serving,
)
from tests.support.processes import free_port
from tests.support.programs import forms_of
from tests.support.proxies import Balancer, CertificateAuthority, ConnectProxy

HOST, WITHIN_S = "id.company.test", 30
BASE = "/dashboard"
FORWARDED = (b"x-forwarded-proto", b"x-forwarded-for")


class ProductionProvider(Idp):
    """https://id.company.test: signs every browser in at once, as `person`."""

    def __init__(self, authority: CertificateAuthority) -> None:
        certificate, key = authority.certify(HOST)
        super().__init__(f"https://{HOST}", ssl_certfile=certificate, ssl_keyfile=key)
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
        """Tokens for a code, once, for the client that asked for it (RFC 6749 section 4.1.3)."""
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


class ChangeableProvider(ProductionProvider):
    """
    Signs every browser in as `person`, and has a page to sign out.

    *refuses* is the status and error of its token endpoint, and *declines* the error of its
    sign-in, without `iss`. *audience* is the ID token's, and *metadata* are further members.
    """

    def __init__(self) -> None:
        Idp.__init__(self)
        self.person, self.asked = "alice", list[dict[str, str]]()
        self._codes: dict[str, dict[str, str]] = {}
        self.refuses: tuple[int, str] | None = None
        self.declines = ""
        self.audience: str | list[str] = CLIENT
        self.metadata: dict[str, Any] = {}
        self.keys["main"] = [jwk(rsa_key())]

    def _document(self, path: str) -> dict[str, Any] | None:
        document = super()._document(path)
        return document and (document if "keys" in document else document | self.metadata)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/main/token" and self.refuses:
            status, error = self.refuses
            await respond(send, status, json.dumps({"error": error}).encode())
        elif scope["path"] == "/main/authorize" and self.declines:
            asked = dict(parse_qsl(scope["query_string"].decode()))
            back = f"{asked['redirect_uri']}?error={self.declines}&state={asked['state']}"
            await respond(send, 303, b"", ((b"location", back.encode()),))
        else:
            await super()._answer(scope, receive, send)

    def identity(self, claims: dict[str, Any]) -> dict[str, Any]:
        """Return the claims of the ID token."""
        return claims | {"aud": self.audience}


@contextmanager
def changeable_provider(
    folder: Path, **client: Any
) -> Iterator[tuple[DashboardServer, ChangeableProvider]]:
    """Run a dashboard whose people sign in there; *client* are settings of `issuers.dashboard`."""
    with ChangeableProvider() as provider:
        provider.metadata = {
            "end_session_endpoint": f"{provider.issuer('main')}/end",
            "prompt_values_supported": ["none", "login", "select_account"],
        }
        secret = f"file:{folder / 'secret'}"
        issuer = Issuer(
            issuer=provider.issuer("main"),
            tenant=TenantRule(claim="org_id"),
            roles={"approver": RoleRule(claim="roles", value="approver")},
            dashboard=DashboardClient(client_id=CLIENT, client_secret=secret, **client),
        )
        (folder / "secret").write_text(SECRET)
        changed = open_dashboard_server(folder, change=lambda one: replace(one, issuers=(issuer,)))
        with changed as server:
            yield server, provider


class TlsProxy(Balancer):
    """Ends TLS and says so, whatever the client says."""

    def headers(self, scope: Scope, upstream: str) -> list[tuple[bytes, bytes]]:
        """See `Balancer`."""
        kept = [(name, value) for name, value in scope["headers"] if name not in FORWARDED]
        peer = scope["client"][0].encode()
        return [*kept, *zip(FORWARDED, (b"https", peer), strict=True)]


class ProductionServer:
    """The running server: where people reach it, and where it listens itself."""

    def __init__(
        self, process: Gatepost, port: int, provider: ProductionProvider, out: ConnectProxy
    ) -> None:
        self.process, self.port, self.provider, self.out = process, port, provider, out
        self.trusting: ssl.SSLContext
        self.origin = process.origin
        self.home = self.origin + BASE

    @property
    def client(self) -> ResourceClient:
        """Where agents come in."""
        return ResourceClient(f"{self.origin}/mcp", tls=self.trusting)

    def token(self, **claims: Any) -> str:
        """An agent's."""
        return TokenFactory(self.provider.issuer("main"), f"{self.origin}/mcp").token(**claims)

    def rest(self, tool: str, filename: str, **more: Any) -> int:
        """Status of one call of an agent."""
        body = json.dumps({"filename": filename, **more}).encode()
        return self.client.send("POST", f"/tool/{tool}/call", body=body, token=self.token()).status

    @contextmanager
    def user_browser(self) -> Iterator["HttpsBrowser"]:
        """A browser."""
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
        return self.http.get(BASE + below)

    def sign_in(self) -> list[httpx2.Response]:
        """All the way; what the dashboard answered at the start and at the end."""
        page = forms_free(self.get("/sign-in").text)
        start = self.http.get(page)
        back = self._far.get(start.headers["location"]).headers["location"]
        return [start, self.http.get(back)]

    def post(self, below: str, origin: str, **fields: str) -> httpx2.Response:
        """A form, with the token of this session."""
        fields = {"csrf": self.token(), **fields}
        return self.http.post(BASE + below, data=fields, headers={"origin": origin})

    def token(self) -> str:
        """What this session's forms carry."""
        fields = [field for form in forms_of(self.get().text) for field in form.fields]
        return dict(fields)["csrf"]

    def cookies(self) -> dict[str, str]:
        return {cookie.name: cookie.value or "" for cookie in self.http.cookies.jar}


def forms_free(page: str) -> str:
    """Where the link to the only issuer leads."""
    start = page.index(f"{BASE}/sign-in/start?")
    return page[start : page.index('"', start)].replace("&amp;", "&")


@contextmanager
def open_production_server(
    folder: Path, provider: ProductionProvider, out: ConnectProxy, **listen: Any
) -> Iterator[ProductionServer]:
    """`gatepost serve` in production, at the address that *listen* and `at` say."""
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
    """It speaks TLS itself."""
    certificate, key = authority.certify("localhost")
    listen = {"tls_certificate": certificate, "tls_key": key, "ca": str(authority.bundle)}
    with open_production_server(folder, provider, out, **listen) as server:
        server.trusting = ssl.create_default_context(cafile=str(authority.bundle))
        yield server


@contextmanager
def behind_proxy(
    folder: Path, authority: CertificateAuthority, provider: ProductionProvider, out: ConnectProxy
) -> Iterator[ProductionServer]:
    """A proxy on this machine ends TLS."""
    certificate, key = authority.certify("localhost")
    front = free_port()
    listen = {"trusted_proxies": ["127.0.0.1/32"], "at": front, "ca": str(authority.bundle)}
    with open_production_server(folder, provider, out, **listen) as server:
        server.trusting = ssl.create_default_context(cafile=str(authority.bundle))
        proxy = TlsProxy([f"http://127.0.0.1:{server.port}"])
        options = {"port": front, "ssl_certfile": certificate, "ssl_keyfile": key}
        with serving(proxy, lifespan="on", **options):
            yield server
