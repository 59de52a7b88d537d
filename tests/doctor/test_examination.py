"""`gatepost doctor`: whatever stops a client, the last sentence names it and the side to change."""

import json
import ssl
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner
from joserfc import jwt
from joserfc.jwk import ECKey
from starlette.types import Receive, Scope, Send

from gatepost.cli.doctor import command
from gatepost.doctor import DoctorCredentials, Report, examine, http
from tests.support.issuers import AsgiServer
from tests.support.measuring import each
from tests.support.processes import free_port

JSON = "application/json"
RESOURCE_METADATA = "/.well-known/oauth-protected-resource/mcp"
APPENDED_METADATA = "/mcp/.well-known/oauth-protected-resource"
ISSUER_METADATA = "/.well-known/oauth-authorization-server"
TLS = ssl.create_default_context()
"""Each client would read the certificates of all authorities anew."""
KEY = ECKey.generate_key("P-256")


class ExaminedServers:
    """
    An MCP server and its authorization server at one origin, healthy until a case changes it.

    ``answers`` maps method and path to status, header fields and body.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.origin = f"http://127.0.0.1:{self.port}"
        self.url = f"{self.origin}/mcp"
        self.challenge: list[str] = [
            f'Bearer resource_metadata="{self.origin}{RESOURCE_METADATA}", error="invalid_token", '
            'scope="files:read", error_description="No token"'
        ]
        self.resource: dict[str, Any] = {
            "resource": self.url,
            "authorization_servers": [self.origin],
            "bearer_methods_supported": ["header"],
        }
        self.issuer: dict[str, Any] = {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "jwks_uri": f"{self.origin}/jwks",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
        }
        self.keys: dict[str, Any] = {"keys": [KEY.as_dict(private=False)]}
        self.claims: dict[str, Any] = {
            "iss": self.origin,
            "aud": self.url,
            "exp": int(time.time()) + 300,
        }
        self.first_call: tuple[int, dict[str, Any]] = (
            200,
            {"supportedVersions": ["2026-07-28"], "resultType": "complete"},
        )
        self.instead: dict[str, tuple[int, str, bytes]] = {}
        """Path → status, content type and body, for places that answer something else."""

    def token(self) -> str:
        return jwt.encode({"alg": "ES256"}, self.claims, KEY)

    def _document(self, path: str) -> object | None:
        return {
            RESOURCE_METADATA: self.resource,
            APPENDED_METADATA: self.resource,
            ISSUER_METADATA: self.issuer,
            "/jwks": self.keys,
            "/token": {"access_token": self.token(), "token_type": "Bearer"},
        }.get(path)

    def _endpoint(self, scope: Scope) -> tuple[int, list[tuple[str, str]], bytes]:
        if not any(name == b"authorization" for name, _ in scope["headers"]):
            return 401, [("www-authenticate", value) for value in self.challenge], b"{}"
        status, result = self.first_call
        return status, [], json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()

    def answer(self, scope: Scope) -> tuple[int, list[tuple[str, str]], bytes]:
        path = scope["path"]
        if path in self.instead:
            status, kind, body = self.instead[path]
            return status, [("content-type", kind)], body
        if path == "/mcp":
            status, headers, body = self._endpoint(scope)
            return status, [("content-type", JSON), *headers], body
        document = self._document(path)
        if document is None:
            return 404, [("content-type", "text/html")], b"<h1>Not here</h1>"
        return 200, [("content-type", JSON)], json.dumps(document).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        status, fields, body = self.answer(scope)
        headers = [(name.encode(), value.encode()) for name, value in fields]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


Change = Callable[[ExaminedServers], object]


def put(path: str, status: int, kind: str = JSON, body: bytes = b"{}") -> Change:
    return lambda servers: servers.instead.update({path: (status, kind, body)})


def challenge(text: str) -> Change:
    """Return a change that replaces the challenge; ORIGIN in it stands for the server's origin."""
    return lambda servers: setattr(
        servers, "challenge", [part.replace("ORIGIN", servers.origin) for part in text.split("\n")]
    )


def resource(**members: Any) -> Change:
    return lambda servers: servers.resource.update(members)


def issuer(**members: Any) -> Change:
    return lambda servers: servers.issuer.update(members)


def omit(document: str, member: str) -> Change:
    return lambda servers: getattr(servers, document).pop(member)


METADATA = f'resource_metadata="ORIGIN{RESOURCE_METADATA}"'

BROKEN_SERVERS: dict[str, tuple[Change, str, str]] = {
    # name: (what is broken, what the sentence says of it, which side it tells to change)
    "an open server": (put("/mcp", 200), "without a token", "MCP server"),
    "a wrong path": (put("/mcp", 404, "text/html"), "404 with an HTML page", "MCP server"),
    "a redirect": (put("/mcp", 307), "redirects", "MCP server"),
    "a host not allowed": (put("/mcp", 403), "not allowed", "MCP server"),
    "an outage": (put("/mcp", 500), "500 with JSON", "MCP server"),
    "no challenge": (lambda its: its.challenge.clear(), "no WWW-Authenticate", "MCP server"),
    "another spelling": (challenge(f"bearer {METADATA}"), "VS Code", "MCP server"),
    "only Basic": (challenge('Basic realm="x"'), "offers only `Basic`", "MCP server"),
    "DPoP first": (
        challenge(f'DPoP algs="ES256"\nBearer {METADATA}'),
        "before `Bearer`",
        "MCP server",
    ),
    "an open quote": (challenge(f'Bearer {METADATA}, error="x'), "never closed", "MCP server"),
    "a scope in the description": (
        challenge(f'Bearer {METADATA}, error_description="needs scope=a"'),
        "read as a parameter",
        "MCP server",
    ),
    "a relative address": (
        challenge(f'Bearer resource_metadata="{RESOURCE_METADATA}"'),
        "not an absolute",
        "MCP server",
    ),
    "metadata not there": (put(RESOURCE_METADATA, 404, "text/html"), "gives no doc", "MCP server"),
    "metadata that is a page": (
        put(RESOURCE_METADATA, 200, "text/html", b"<html>"),
        "200 with an HTML page",
        "MCP server",
    ),
    "metadata behind the gate": (put(RESOURCE_METADATA, 401), "401 with JSON", "MCP server"),
    "metadata that differs": (put(APPENDED_METADATA, 200), "differ", "MCP server"),
    "another resource": (resource(resource="https://other.example"), "not http", "MCP server"),
    "no resource": (omit("resource", "resource"), "None", "MCP server"),
    "tokens in the body only": (
        resource(bearer_methods_supported=["body"]),
        "bearer_methods_supported",
        "MCP server",
    ),
    "no issuer": (resource(authorization_servers=[]), "no authorization server", "MCP server"),
    "an issuer over plain http": (
        resource(authorization_servers=["http://id.example.com"]),
        "plain http",
        "MCP server",
    ),
    "an issuer that is down": (
        resource(authorization_servers=["http://127.0.0.1:9"]),
        "cannot be reached",
        "authorization server",
    ),
    "an issuer without metadata": (
        put(ISSUER_METADATA, 404),
        "publishes no metadata",
        "authorization server",
    ),
    "an issuer of another name": (issuer(issuer="https://x.example"), "x.example", "MCP server"),
    "no token endpoint": (
        omit("issuer", "token_endpoint"),
        "token_endpoint in the metadata",
        "authorization server",
    ),
    "no PKCE": (
        omit("issuer", "code_challenge_methods_supported"),
        "PKCE with S256",
        "authorization server",
    ),
    "plain PKCE": (
        issuer(code_challenge_methods_supported=["plain"]),
        "PKCE with S256",
        "authorization server",
    ),
    "keys not there": (put("/jwks", 404), "no key set", "authorization server"),
    "keys out of reach": (
        issuer(jwks_uri="http://127.0.0.1:9/jwks"),
        "cannot be reached",
        "authorization server",
    ),
    "an empty key set": (
        lambda servers: servers.keys.update(keys=[]),
        "unusable key set",
        "authorization server",
    ),
    "a symmetric key": (
        lambda servers: servers.keys.update(keys=[{"kty": "oct", "k": "c2VjcmV0"}]),
        "no usable key",
        "authorization server",
    ),
    "neither keys nor introspection": (
        omit("issuer", "jwks_uri"),
        "neither `jwks_uri`",
        "authorization server",
    ),
    "a client that is refused": (
        put("/token", 401, JSON, b'{"error": "invalid_client"}'),
        "invalid_client",
        "the client",
    ),
    "a resource unknown to the issuer": (
        put("/token", 400, JSON, b'{"error": "invalid_target"}'),
        "invalid_target",
        "authorization server",
    ),
    "a token that ran out": (lambda servers: servers.claims.update(exp=1), "expired", "the client"),
    "a token that is refused": (
        lambda servers: setattr(servers, "first_call", (401, {})),
        "refused with 401",
        "MCP server",
    ),
    "a token without scopes": (
        lambda servers: setattr(servers, "first_call", (403, {})),
        "refused with 403",
        "the client",
    ),
    "keys that the server cannot have": (
        lambda servers: setattr(servers, "first_call", (503, {})),
        "cannot be checked",
        "MCP server",
    ),
}

WARNINGS: dict[str, tuple[Change, str, str]] = {
    "no address in the challenge": (
        challenge('Bearer error="invalid_token"'),
        "no resource_metadata",
        "MCP server",
    ),
    "bare values": (
        challenge(f"Bearer {METADATA}, error=invalid_token"),
        "without quotes",
        "MCP server",
    ),
    "no registration": (
        omit("issuer", "registration_endpoint"),
        "pre-registered client id",
        "the client",
    ),
    "a token for another audience that is accepted": (
        lambda servers: servers.claims.update(aud="client-7"),
        "audience is 'client-7'",
        "authorization server",
    ),
    "several issuers": (
        lambda servers: servers.resource["authorization_servers"].append("https://other.example"),
        "only the first",
        "MCP server",
    ),
    "no public clients": (
        issuer(token_endpoint_auth_methods_supported=["client_secret_basic"]),
        "public clients",
        "authorization server",
    ),
}


async def examined(change: Change) -> Report:
    servers = ExaminedServers()
    change(servers)
    machine = DoctorCredentials(client_id="machine", client_secret="secret")
    async with httpx2.AsyncClient(verify=TLS) as client:
        with AsgiServer(servers, port=servers.port):
            return await examine(servers.url, credentials=machine, client=client)


async def test_a_healthy_server_has_no_problem() -> None:
    """Every step is good or a note, and the last sentence says so."""
    report = await examined(lambda _: None)

    assert {step.level for step in report.steps} <= {"ok", "note"}
    assert report.healthy
    assert report.sentence == f"No problems found at {report.url}."


@each(("change", "sentence", "side"), BROKEN_SERVERS.values(), ids=BROKEN_SERVERS)
async def test_the_last_sentence_names_the_problem_and_the_side_to_change(
    change: Change, sentence: str, side: str
) -> None:
    """A problem that stops every client is a failure."""
    report = await examined(change)

    assert not report.healthy
    assert sentence in report.sentence
    assert f": at {side}" in report.sentence or f": at the {side}" in report.sentence


@pytest.mark.parametrize(("change", "sentence", "side"), WARNINGS.values(), ids=WARNINGS)
async def test_a_problem_for_some_clients_is_reported_without_a_failure(
    change: Change, sentence: str, side: str
) -> None:
    """The server counts as healthy, and the sentence names the affected clients."""
    report = await examined(change)

    assert report.healthy
    assert report.sentence.startswith("Clients can connect, but ")
    assert sentence in report.sentence
    assert side in report.sentence


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://mcp.example.com/mcp", "plain http"),
        ("mcp.example.com", "not an absolute"),
        ("https://u:p@mcp.example.com/mcp", "user information"),
        ("http://[::1", "not a URL"),
        ("http://127.0.0.1:9/mcp", "cannot be reached"),
    ],
)
async def test_an_unusable_url_is_reported_in_a_sentence(url: str, sentence: str) -> None:
    """A mistyped URL or a closed port causes no traceback."""
    report = await examine(url)

    assert not report.healthy
    assert sentence in report.sentence


async def test_text_of_the_server_is_escaped_and_truncated_for_the_terminal() -> None:
    """A hostile document cannot send escape sequences or fill the screen."""
    report = await examined(resource(resource="\x1b[2J" + "x" * 10_000))

    assert all(step.detail.isprintable() and len(step.detail) < 700 for step in report.steps)


async def test_a_silent_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout is ten seconds, and less in this test."""
    monkeypatch.setattr(http, "TIMEOUT_S", 0.2)

    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    with AsgiServer(silent) as server:
        report = await examine(f"{server.url}/mcp")

    assert "no answer within 0.2 seconds" in report.sentence


async def test_without_credentials_the_examination_ends_before_the_sign_in() -> None:
    """No token is requested, and the report says that the sign-in was not tried."""
    servers = ExaminedServers()
    with AsgiServer(servers, port=servers.port):
        report = await examine(servers.url)

    assert report.healthy
    assert report.steps[-1].detail.startswith("not tried")


def test_the_command_prints_the_steps_and_ends_with_the_sentence() -> None:
    """The exit code is 1 if a problem stops every client, else 0."""
    servers = ExaminedServers()
    with AsgiServer(servers, port=servers.port):
        fine = CliRunner().invoke(command, [servers.url, "--token", servers.token()])
        servers.challenge.clear()
        broken = CliRunner().invoke(command, [servers.url])

    assert fine.exit_code == 0
    assert fine.output.splitlines()[-1].startswith("No problems found")
    assert broken.exit_code == 1
    assert "ok   connect" in broken.output
    assert "WWW-Authenticate" in broken.output.splitlines()[-1]
