"""Fixtures for the tests of the development issuer."""

import base64
import hashlib
import re
import secrets
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx2
import msgspec
import pytest

from gatepost_keys.issuer import DevelopmentIssuer, IssuerSettings, app, metadata

ORIGIN = "http://127.0.0.1:8000"
RESOURCE = f"{ORIGIN}/mcp"
CALLBACK = "http://127.0.0.1:41717/callback"
PATHS = tuple(metadata.paths(IssuerSettings()))
CLI = ("gatepost-cli", "cli-secret")


class IssuerClock:
    """Seconds since the epoch, as the test says."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def table(rows: list[tuple[object, ...]]) -> list[object]:
    """Rows of cases whose first column is their name."""
    return [pytest.param(*row[1:], id=str(row[0])) for row in rows]


def challenge_of(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class CodeFlow:
    """One issuer, one browser and one client that walk the code flow together."""

    def __init__(self, made: IssuerSettings | None = None, **settings: object) -> None:
        self.clock = IssuerClock()
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
