"""Issuers that sign people in: the development issuer, its imitations, and oidc-provider."""

import base64
import contextlib
import hashlib
import json
import re
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, parse_qsl, urlsplit
from uuid import uuid4

import httpx2
import msgspec
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from gatepost.config.settings import Config
from gatepost.dev.composition import IssuerOptions, dev_config, dev_issuer
from gatepost.dev.imitating import (
    APP_CLIENT,
    MACHINE_CLIENT,
    SECRET_FILES,
    client_id,
    scopes_of,
    sign_in_scopes,
)
from gatepost_authz.caller import TenantContext
from gatepost_authz.config import Issuer, Resource
from gatepost_authz.issuers import IssuerRegistry, TrustedIssuer
from gatepost_authz.jwk import VerificationKey, import_set
from gatepost_authz.scopes import Implications
from gatepost_authz.tenant import Policy, Tenancy
from gatepost_authz.verdict_cache import VerdictCache
from gatepost_authz.verifier import JwtVerifier, Verifiers
from gatepost_keys.imitation import IMITATIONS
from gatepost_keys.imitation.facts import api_of
from gatepost_keys.issuer import DevelopmentIssuer, IssuerSettings, app, metadata
from tests.support.measuring import ManualClock
from tests.support.processes import Process
from tests.support.programs import command, environment

ORIGIN = "http://127.0.0.1:8000"
RESOURCE = f"{ORIGIN}/mcp"
CALLBACK = "http://127.0.0.1:41717/callback"
PATHS = tuple(metadata.paths(IssuerSettings()))
CLI = ("gatepost-cli", "cli-secret")


def table(rows: list[tuple[object, ...]]) -> list[object]:
    """Rows of cases whose first column is their name."""
    return [pytest.param(*row[1:], id=str(row[0])) for row in rows]


def challenge_of(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class CodeFlow:
    """One issuer, one browser and one client that walk the code flow together."""

    def __init__(self, made: IssuerSettings | None = None, **settings: object) -> None:
        self.clock = ManualClock()
        defaults = {"cli_secret": CLI[1], "algorithm": "ES256"}
        made = made or IssuerSettings(**(defaults | settings))
        self.issuer = DevelopmentIssuer(msgspec.structs.replace(made, clock=self.clock))
        self.http = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app(self.issuer)), base_url=ORIGIN
        )
        self.client_id = ""
        self.verifier = secrets.token_urlsafe(48)

    def path(self, endpoint: str) -> str:
        """The path of the endpoint of that name."""
        path = self.issuer.settings.path(endpoint)
        assert path is not None, f"there is no {endpoint} endpoint"
        return path

    async def register(self, **metadata: object) -> dict[str, object]:
        body = {
            "redirect_uris": [CALLBACK],
            "token_endpoint_auth_method": "none",
            "client_name": "Test client",
        }
        answer = await self.http.post(self.path("registration"), json=body | metadata)
        assert answer.status_code == 201, answer.text
        self.client_id = answer.json()["client_id"]
        return answer.json()

    def request(self, **changes: str | None) -> dict[str, str]:
        """An authorization request; a change to None leaves the parameter out."""
        values = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": CALLBACK,
            "scope": "files:read files:write",
            "state": "state-1",
            "code_challenge": challenge_of(self.verifier),
            "code_challenge_method": "S256",
            "resource": RESOURCE,
        }
        return {name: value for name, value in (values | changes).items() if value is not None}

    async def authorize(self, **changes: str | None) -> httpx2.Response:
        return await self.http.get(self.path("authorization"), params=self.request(**changes))

    async def submit(self, page: httpx2.Response, **pressed: str) -> httpx2.Response:
        """Press a button of the page's form."""
        action = re.search(r'<form[^>]* action="([^"]+)"', page.text)
        assert action, page.text
        fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page.text))
        fields = {name: value.replace("&amp;", "&") for name, value in fields.items()}
        return await self.http.post(action[1], data=fields | pressed)

    async def sign_in(self, user: str = "alice", **changes: str | None) -> httpx2.Response:
        """The consent page, through the sign-in page in a signed-out browser."""
        page = await self.authorize(**changes)
        if "/consent" in page.text:
            return page
        onward = await self.submit(page, user=user)
        assert onward.status_code == 303, onward.text
        return await self.http.get(onward.headers["location"])

    async def code(self, user: str = "alice", **changes: str | None) -> str:
        consent = await self.sign_in(user, **changes)
        return query_of(await self.submit(consent, decision="allow"))["code"]

    async def token(self, **fields: object) -> httpx2.Response:
        return await self.http.post(self.path("token"), data=fields)

    async def exchange(self, code: str, /, **changes: object) -> httpx2.Response:
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": CALLBACK,
            "client_id": self.client_id,
            "code_verifier": self.verifier,
        } | changes
        return await self.token(**{k: v for k, v in fields.items() if v is not None})

    async def refresh(self, refresh_token: str, **changes: object) -> httpx2.Response:
        fields = {
            "grant_type": "refresh_token",
            "refresh_token": refresh_token,
            "client_id": self.client_id,
        }
        return await self.token(**(fields | changes))

    async def tokens(self, user: str = "alice", **changes: str | None) -> dict[str, str]:
        """Register, sign in, consent, exchange."""
        await self.register()
        answer = await self.exchange(await self.code(user, **changes))
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def introspect(self, token: str) -> dict[str, object]:
        answer = await self.http.post(self.path("introspection"), data={"token": token}, auth=CLI)
        assert answer.status_code == 200, answer.text
        return answer.json()


def query_of(response: httpx2.Response) -> dict[str, str]:
    """The query of the redirect, each parameter once."""
    assert response.status_code in {302, 303}, response.text
    query = urlsplit(response.headers["location"]).query
    assert all(len(values) == 1 for values in parse_qs(query).values()), query
    return dict(parse_qsl(query))


@pytest.fixture
def walk() -> CodeFlow:
    """An issuer with no user signed in and no client registered."""
    return CodeFlow()


TOOL_SCOPES = frozenset({"files:read", "files:write"})


APP_CALLBACK = "http://localhost:8123/callback"


class PublishedSet:
    """The issuer's published keys as the gate sees them: fetched anew for every token."""

    version = 1

    def __init__(self, walk: CodeFlow) -> None:
        self.walk = walk
        self.known: tuple[VerificationKey, ...] = ()

    def of(self, issuer: str, trusted: TrustedIssuer, *, peer: str = "") -> "PublishedSet":
        lacks = self.walk.issuer.settings.imitation.key_lacks
        published = self.walk.issuer.keys.document(lacks)
        self.known = tuple(import_set(published, allowed=trusted.algorithms))
        return self

    def find(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        return tuple(one for one in self.known if one.kid == kid and algorithm in one.algorithms)

    async def wait_for(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        return self.find(kid, algorithm)

    async def after_bad_signature(self) -> bool:
        return False


class Imitated:
    """One imitation: a client that walks through its flows, and a gate that trusts it."""

    def __init__(self, name: str, state: Path, **habits: Any) -> None:
        self.shape = IMITATIONS[name]
        made = IssuerOptions(imitation=self.shape, **habits)
        config = dev_config(8000, tools=(), state=state, issuer_options=made)
        secrets = {client: f"secret-of-{client}" for client in SECRET_FILES}
        plan = dev_issuer(config, TOOL_SCOPES, made, client_secrets=secrets)
        self.walk = CodeFlow(plan)
        self.walk.client_id = client_id(self.shape, APP_CLIENT)
        self.secrets = secrets
        self.config: Config = msgspec.structs.replace(config, scopes=scopes_of(plan))
        self.api = api_of(self.shape, RESOURCE)

    @property
    def scope(self) -> str:
        """The scopes of a client that needs all there is."""
        wanted = sign_in_scopes(self.shape, self.api)
        return " ".join(["openid", "offline_access", *self.walk.issuer.settings.offered, *wanted])

    async def sign_in(self, user: str = "alice", **changes: str | None) -> httpx2.Response:
        """The answer of the token endpoint to a person's code."""
        ask = {
            "scope": self.scope,
            "redirect_uri": APP_CALLBACK,
            "audience": RESOURCE if self.shape.audience == "audience" else None,
            "access_type": "offline" if self.shape.refresh == "access_type" else None,
            "nonce": "n-1",
        } | changes
        code = await self.walk.code(user, **ask)
        return await self.walk.exchange(code, redirect_uri=APP_CALLBACK, client_secret=self.secret)

    @property
    def secret(self) -> str | None:
        """The secret of the client on a person's computer, if it has one."""
        return None if self.shape.public_clients else self.secrets[APP_CLIENT]

    async def machine(self, **changes: str) -> httpx2.Response:
        """The answer of the token endpoint to a program."""
        resource = self.walk.issuer.settings.resources[0]
        scope = self.shape.machine_scope.format(resource=resource) or self.scope
        known = {"openid", "offline_access"} if not self.shape.machine_scope else set()
        form = {
            "grant_type": "client_credentials",
            "client_id": client_id(self.shape, MACHINE_CLIENT),
            "client_secret": self.secrets[MACHINE_CLIENT],
            "scope": " ".join(name for name in scope.split() if name not in known),
        }
        rule = self.shape.audience
        named = {"audience": {"audience": RESOURCE}, "resource": {"resource": RESOURCE}}.get(rule)
        return await self.walk.token(**(form | (named or {}) | changes))

    async def verify(
        self, token: str, *, table: Issuer | None = None, resource: str = RESOURCE
    ) -> TenantContext:
        """The caller that a gate with the printed table makes of *token*."""
        registry = IssuerRegistry([table or self.config.issuers[0]])
        policy = Policy(
            tenancy=Tenancy(known=frozenset(self.config.tenancy.tenants)),
            implications=Implications(self.config.scopes.implied),
            development=True,
        )
        keys = PublishedSet(self.walk)
        verifier = JwtVerifier(registry, keys, VerdictCache(), policy=policy, clock=self.walk.clock)
        return await Verifiers([verifier]).verify(token, Resource(resource).of_tenant(""))


TokenForm = Literal["jwt", "opaque"]


MACHINE = "machine"


RESOURCE_SERVER = "gatepost"


SECRET = "not-a-secret-outside-this-test-run"


CLIENTS = [
    {
        "client_id": MACHINE,
        "client_secret": SECRET,
        "grant_types": ["client_credentials"],
        "redirect_uris": [],
        "response_types": [],
        "token_endpoint_auth_method": "client_secret_basic",
    },
    {
        "client_id": RESOURCE_SERVER,
        "client_secret": SECRET,
        "grant_types": [],
        "redirect_uris": [],
        "response_types": [],
        "token_endpoint_auth_method": "client_secret_basic",
    },
]


class ProofKey:
    """A client's key for DPoP (RFC 9449): makes the proof that binds a token to it."""

    def __init__(self) -> None:
        self.key = ECKey.generate_key("P-256")

    def proof(self, method: str, url: str, *, access_token: str | None = None) -> str:
        """A proof for one request, with `ath` when it accompanies a token (section 4.2)."""
        header = {"typ": "dpop+jwt", "alg": "ES256", "jwk": self.key.as_dict(private=False)}
        claims: dict[str, Any] = {
            "htm": method,
            "htu": url,
            "iat": int(time.time()),
            "jti": uuid4().hex,
        }
        if access_token is not None:
            digest = hashlib.sha256(access_token.encode()).digest()
            claims["ath"] = urlsafe_b64encode(digest).rstrip(b"=").decode()
        return jwt.encode(header, claims, self.key)


class RunningOidcProvider:
    """A running oidc-provider: its issuer, and tokens without a person."""

    def __init__(self, process: Process, issuer: str) -> None:
        self.process = process
        self.issuer = issuer

    def machine_token(
        self, resource: str, scopes: Sequence[str] = (), *, proof_key: ProofKey | None = None
    ) -> str:
        """An access token by client credentials; with a proof key it is bound to that key."""
        endpoint = f"{self.issuer}/token"
        headers = {"DPoP": proof_key.proof("POST", endpoint)} if proof_key else {}
        answer = httpx2.post(
            endpoint,
            data={
                "grant_type": "client_credentials",
                "resource": resource,
                "scope": " ".join(scopes),
            },
            auth=(MACHINE, SECRET),
            headers=headers,
        )
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["token_type"] == ("DPoP" if proof_key else "Bearer")
        return str(body["access_token"])


@contextlib.contextmanager
def authorization_server(
    resources: Mapping[str, TokenForm],
    *,
    scopes: Sequence[str],
    tenants: Mapping[str, str],
    lifetime_s: int = 300,
    clients: Sequence[Mapping[str, Any]] = (),
) -> Iterator[RunningOidcProvider]:
    """
    Run one for the given resources (URL → form of its tokens) until the block ends.

    *tenants* maps account and client ids to the claim `org_id`; the account `alice` is signed in
    and consents without being asked. *clients* (RFC 7591) are known beside the usual ones.
    """
    settings = {
        "resources": dict(resources),
        "scopes": list(scopes),
        "tenants": dict(tenants),
        "clients": [*CLIENTS, *clients],
        "lifetime_s": lifetime_s,
    }
    process = Process(command("authorization_server.mjs", json.dumps(settings)), env=environment())
    try:
        yield RunningOidcProvider(process, json.loads(process.next_line())["issuer"])
    finally:
        process.kill()
