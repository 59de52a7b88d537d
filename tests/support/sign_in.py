"""Signing in: the development issuer and oidc-provider, a code flow, and that of the Python SDK."""

import base64
import contextlib
import hashlib
import json
import re
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal
from urllib.parse import parse_qs, parse_qsl, urlsplit
from uuid import uuid4

import anyio
import httpx2
import msgspec
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey
from mcp.client import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from gatepost_keys.issuer import DevelopmentIssuer, IssuerSettings, app, metadata
from tests.support.measuring import ManualClock
from tests.support.processes import Process
from tests.support.programs import BrowserUser, command, environment

ORIGIN = "http://127.0.0.1:8000"
RESOURCE = f"{ORIGIN}/mcp"
CALLBACK = "http://127.0.0.1:41717/callback"
PATHS = tuple(metadata.paths(IssuerSettings()))
CLI = ("gatepost-cli", "cli-secret")


def named_cases(rows: list[tuple[object, ...]]) -> list[object]:
    """Turn rows of cases into parameters whose first column is their name."""
    return [pytest.param(*row[1:], id=str(row[0])) for row in rows]


def code_challenge(verifier: str) -> str:
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
        """Return the path of the endpoint of that name."""
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
        """Return an authorization request; a change to None leaves the parameter out."""
        values = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": CALLBACK,
            "scope": "files:read files:write",
            "state": "state-1",
            "code_challenge": code_challenge(self.verifier),
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
        """Return the consent page, through the sign-in page in a signed-out browser."""
        page = await self.authorize(**changes)
        if "/consent" in page.text:
            return page
        onward = await self.submit(page, user=user)
        assert onward.status_code == 303, onward.text
        return await self.http.get(onward.headers["location"])

    async def code(self, user: str = "alice", **changes: str | None) -> str:
        consent = await self.sign_in(user, **changes)
        return redirect_query(await self.submit(consent, decision="allow"))["code"]

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


def redirect_query(response: httpx2.Response) -> dict[str, str]:
    """Return the query of the redirect, each parameter once."""
    assert response.status_code in {302, 303}, response.text
    query = urlsplit(response.headers["location"]).query
    assert all(len(values) == 1 for values in parse_qs(query).values()), query
    return dict(parse_qsl(query))


@pytest.fixture
def code_flow() -> CodeFlow:
    """Return an issuer with no user signed in and no client registered."""
    return CodeFlow()


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
        """Return a proof for one request, with `ath` when it accompanies a token (section 4.2)."""
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
        """Return an access token by client credentials, bound to the proof key if given."""
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


REDIRECT = "http://127.0.0.1:33419/callback"


class Wallet:
    """What a client must remember between connections; the SDK calls it a TokenStorage."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class RecordedExchanges:
    """Every request as it went over the wire, secrets left out."""

    def __init__(self) -> None:
        self.exchanges: list[dict[str, Any]] = []

    async def record(self, response: httpx2.Response) -> None:
        request = response.request
        form: dict[str, str] = {}
        if request.headers.get("content-type", "").startswith("application/x-www-form"):
            form = dict(parse_qsl(request.content.decode()))
        self.exchanges.append(
            {
                "method": request.method,
                "url": str(request.url),
                "status": response.status_code,
                "grant_type": form.get("grant_type"),
                "resource": form.get("resource"),
                "challenge": response.headers.get("www-authenticate"),
            }
        )


def provider_for(url: str, wallet: Wallet, person: BrowserUser) -> OAuthClientProvider:
    """Return the SDK's OAuth flow, with *person* at its browser."""
    back: list[str] = []

    async def open_browser(authorize: str) -> None:
        back.append(await anyio.to_thread.run_sync(person.follow, authorize))

    async def callback() -> AuthorizationCodeResult:
        query = {name: values[0] for name, values in parse_qs(urlsplit(back.pop()).query).items()}
        return AuthorizationCodeResult(
            code=query["code"], state=query.get("state"), iss=query.get("iss")
        )

    return OAuthClientProvider(
        url,
        OAuthClientMetadata(
            client_name="Gatepost's Python test client",
            redirect_uris=[AnyUrl(REDIRECT)],
            grant_types=["authorization_code", "refresh_token"],
            token_endpoint_auth_method="none",
        ),
        wallet,
        redirect_handler=open_browser,
        callback_handler=callback,
    )


@asynccontextmanager
async def sdk_client(
    url: str, auth: httpx2.Auth | None, mode: str, wire: RecordedExchanges
) -> AsyncIterator[Client]:
    """Yield a client that has settled its era with the server at *url*."""
    hooks = {"response": [wire.record]}
    async with (
        httpx2.AsyncClient(auth=auth, event_hooks=hooks, timeout=30) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client
