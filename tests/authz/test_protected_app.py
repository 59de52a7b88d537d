"""The whole gate in front of an application, against a real issuer on this machine."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from gatepost_authz import Introspection, Issuer, ProtectedApp, TenantRule, caller_of
from tests.support.issuers import Idp, TokenFactory, jwk, rsa_key

ORIGIN = "http://127.0.0.1:9000"
RESOURCE = f"{ORIGIN}/mcp"


async def tenant(request: Request) -> JSONResponse:
    other = request.url_for("other").path
    return JSONResponse({"tenant": caller_of(request.scope).tenant_id, "other": other})


def issuer(url: str, **settings: object) -> Issuer:
    rule = TenantRule(claim="org_id")
    return Issuer(issuer=url, tenant=rule, tenants={"acme": "acme"}, **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def forge() -> Iterator[TokenFactory]:
    with Idp() as idp:
        yield TokenFactory(idp.issuer("main", [jwk(rsa_key())]), RESOURCE)


@pytest.fixture
def protected(forge: TokenFactory) -> ProtectedApp:
    routes = [Route("/mcp", tenant), Route("/other", tenant, name="other")]
    routes.append(WebSocketRoute("/socket", tenant))
    return ProtectedApp(
        Starlette(routes=routes),
        resource=RESOURCE,
        issuers=[issuer(forge.issuer)],
        scopes=["files:read"],
        development=True,
    )


@pytest.fixture
async def client(protected: ProtectedApp) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=protected)
    async with httpx2.AsyncClient(transport=transport, base_url=ORIGIN) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("path", ["/mcp", "/other", "/nowhere", "/mcp/"])
async def test_every_path_needs_a_token(
    client: httpx2.AsyncClient, forge: TokenFactory, path: str
) -> None:
    """Missing tokens, tokens for other servers or tenants, and missing scopes are refused."""
    tokens = [
        forge.token(scope="files:read", aud="https://other.example"),
        forge.token(scope="files:read", org_id="globex"),
        forge.token(scope="other"),
    ]
    refused = [(await client.get(path)).status_code]
    refused += [(await client.get(path, headers=bearer(token))).status_code for token in tokens]

    assert refused == [401, 401, 401, 403]


async def test_a_token_reaches_the_application(
    client: httpx2.AsyncClient, forge: TokenFactory
) -> None:
    """The application reads the tenant of the token and finds its own routes by name."""
    answer = await client.get("/mcp", headers=bearer(forge.token(scope="files:read")))

    assert answer.json() == {"tenant": "acme", "other": "/other"}


async def test_clients_find_the_issuer_at_every_location(
    client: httpx2.AsyncClient, forge: TokenFactory
) -> None:
    """The locations are below the resource, at the inserted path and at the root."""
    well_known = "/.well-known/oauth-protected-resource"
    paths = (f"/mcp{well_known}", f"{well_known}/mcp", well_known)
    documents = [(await client.get(path)).json() for path in paths]

    assert {document["resource"] for document in documents} == {RESOURCE}
    assert documents[0]["authorization_servers"] == [forge.issuer]
    assert documents[0]["scopes_supported"] == ["files:read"]


def test_a_websocket_is_refused(protected: ProtectedApp) -> None:
    """Browsers open websockets without a token."""
    with (
        pytest.raises(WebSocketDisconnect) as refused,
        TestClient(protected).websocket_connect("/socket"),
    ):
        raise AssertionError("it was accepted")

    assert refused.value.code == 1008


async def test_the_application_gets_its_lifespan_events(forge: TokenFactory) -> None:
    """FastMCP and the SDK start their session managers at startup."""
    events = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        events.append("started")
        yield
        events.append("ended")

    app = ProtectedApp(
        Starlette(lifespan=lifespan),
        resource=RESOURCE,
        issuers=[issuer(forge.issuer)],
        development=True,
    )
    with TestClient(app):
        assert events == ["started"]

    assert events == ["started", "ended"]


async def app_not_called(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("it was called")


@pytest.mark.parametrize(
    ("resource", "settings", "message"),
    [
        ("http://api.example.com", {}, "authz.E002"),
        ("https://api.example.com", {"algorithms": ("HS256",)}, "authz.E013"),
        (
            "https://api.example.com",
            {"introspection": Introspection(client_id="api", client_secret="env:SECRET")},
            "issuers[0].introspection",
        ),
    ],
)
def test_settings_with_errors_are_refused(
    resource: str, settings: dict[str, object], message: str
) -> None:
    """The application does not start; the message has every problem and what to do."""
    with pytest.raises(ValueError, match="the settings of the gate have errors") as refused:
        ProtectedApp(
            app_not_called,
            resource=resource,
            issuers=[issuer("https://id.example.com", **settings)],
        )

    assert message in str(refused.value)
