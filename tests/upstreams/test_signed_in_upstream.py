"""An upstream that only takes tokens of oidc-provider, behind a gate that signs in by itself."""

import json
import time
from collections.abc import Iterator
from typing import Any

import fastmcp
import httpx2
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.support.client import RestClient
from tests.support.issuers import AsgiServer, Idp, respond
from tests.support.processes import free_port
from tests.support.server import Server, issuer_settings, running_server
from tests.support.sign_in import (
    MACHINE,
    RESOURCE_SERVER,
    SECRET,
    RunningOidcProvider,
    authorization_server,
)

LISTED_S = 20
METADATA = "/.well-known/oauth-protected-resource/mcp"
ADD_TOOL = "mcp_crm__add"


def crm() -> fastmcp.FastMCP[Any]:
    """Return a FastMCP server with one tool, which counts its calls."""
    server: fastmcp.FastMCP[Any] = fastmcp.FastMCP("crm")
    numbers: list[int] = []

    @server.tool
    async def add(number: int) -> int:
        """Add a number, and return how many there are."""
        numbers.append(number)
        return len(numbers)

    return server


class ProtectedServer:
    """
    Lets requests with tokens of *issuer* through to *app*, and answers 401 to others.

    The issuer is asked about every token (RFC 7662); those in `revoked` count no more.
    """

    def __init__(self, app: ASGIApp, resource: str) -> None:
        self._app, self.resource = app, resource
        self.issuer: RunningOidcProvider | None = None
        self.seen: list[str] = []
        """The token of each request, in the order of their arrival."""
        self.revoked: set[str] = set()
        self.refused = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        assert self.issuer is not None
        if scope["path"] == METADATA:
            metadata = {
                "resource": self.resource,
                "authorization_servers": [self.issuer.issuer],
            }
            await respond(send, 200, json.dumps(metadata).encode())
            return
        sent = dict(scope["headers"]).get(b"authorization", b"").decode()
        token = sent.removeprefix("Bearer ")
        self.seen.append(token)
        if token in self.revoked or not await self._is_active(token):
            self.refused += 1
            await respond(send, 401, b"{}", ((b"www-authenticate", b"Bearer"),))
            return
        await self._app(scope, receive, send)

    async def _is_active(self, token: str) -> bool:
        assert self.issuer is not None
        async with httpx2.AsyncClient(trust_env=False) as client:
            answer = await client.post(
                f"{self.issuer.issuer}/token/introspection",
                data={"token": token},
                auth=(RESOURCE_SERVER, SECRET),
            )
        token_answer = answer.json()
        return bool(token_answer["active"]) and token_answer.get("aud") == self.resource


@pytest.fixture
def upstream() -> Iterator[ProtectedServer]:
    """Yield the protected server, which runs with its authorization server."""
    port = free_port()
    resource = f"http://127.0.0.1:{port}/mcp"
    protected = ProtectedServer(crm().http_app(path="/mcp"), resource)
    running = AsgiServer(protected, port=port, lifespan="on").start()
    try:
        with authorization_server({resource: "opaque"}, scopes=["crm:use"], tenants={}) as issuer:
            protected.issuer = issuer
            yield protected
    finally:
        running.stop()


@pytest.fixture
def gate(
    idp: Idp, upstream: ProtectedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Yield a gate that signs in at the upstream as a client of its own."""
    assert upstream.issuer is not None
    secret = tmp_path_factory.mktemp("secret") / "client"
    secret.write_text(SECRET, encoding="utf-8")
    secret.chmod(0o600)
    credential = {
        "type": "client",
        "tenants": ["acme"],
        "client_id": MACHINE,
        "client_secret": f"file:{secret}",
        "issuer": upstream.issuer.issuer,
        "scopes": ["crm:use"],
    }
    with running_server(
        idp,
        [issuer_settings(idp)],
        tenancy={"create_on_first_use": True},
        network={
            "allow_hosts": [url.split("/")[2] for url in (upstream.resource, credential["issuer"])]
        },
        credentials={"crm": credential},
        upstreams=[
            {"name": "crm", "tenants": ["acme"], "url": upstream.resource, "credential": "crm"}
        ],
    ) as gate:
        yield gate


def agent_of(gate: Server) -> RestClient:
    return RestClient(gate, gate.token(org_id="acme", scope="mcp:crm"))


def wait_until_listed(rest_client: RestClient) -> None:
    """Return once the upstream's tool is offered."""
    until = time.monotonic() + LISTED_S
    while ADD_TOOL not in (names := rest_client.names()):
        assert time.monotonic() < until, names


def test_the_gate_signs_in_for_the_catalogue_and_for_calls(
    gate: Server, upstream: ProtectedServer
) -> None:
    """It uses a token of its own, never the caller's."""
    rest_client = agent_of(gate)
    wait_until_listed(rest_client)
    before = len(upstream.seen)
    answer = rest_client.call(ADD_TOOL, {"number": 1})

    assert answer.status == 200, answer
    assert len(upstream.seen) > before
    assert rest_client.token not in upstream.seen
    assert set(upstream.seen[before:]) <= set(upstream.seen[:before])  # the catalogue's token
    assert not any(token and token in answer.raw.body.decode() for token in upstream.seen)


def test_a_refused_token_is_renewed_once(gate: Server, upstream: ProtectedServer) -> None:
    """The call goes through with the new token, and it ran once."""
    rest_client = agent_of(gate)
    wait_until_listed(rest_client)
    count = rest_client.call(ADD_TOOL, {"number": 1}).json["result"]
    upstream.revoked |= set(upstream.seen)
    before = len(upstream.seen)
    answer = rest_client.call(ADD_TOOL, {"number": 2})
    after = upstream.seen[before:]

    assert (answer.status, answer.json["result"]) == (200, count + 1)
    assert after[0] in upstream.revoked
    assert len(set(after)) == 2

    # The issuer's next tokens count no more either: that is no reason to ask for a third.
    upstream.revoked |= set(upstream.seen)
    before = len(upstream.seen)
    refused = rest_client.call(ADD_TOOL, {"number": 3})

    assert refused.error == (503, "upstream_unavailable")
    assert "does not accept the credential" in refused.json["message"]
    assert set(upstream.seen[before:]) <= upstream.revoked
