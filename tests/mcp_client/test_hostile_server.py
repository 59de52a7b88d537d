"""`gatepost call` and `gatepost list` at servers that answer as badly as they can."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest

from gatepost.mcp_client.sign_in import BrowserSignIn, SignInFailed
from tests.support import commands
from tests.support.commands import run
from tests.support.issuers import AsgiServer

PAGE = r"Sign in with your browser: (?P<page>http\S+)"


class HostileServer:
    """An MCP server, or its authorization server, that answers as badly as it can."""

    url = ""
    listed: Any = None
    issued = "good"
    is_signed_in = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        more, body = True, b""
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        status, fields = 200, [(b"content-type", b"application/json")]
        tokens: Any = {"access_token": self.issued, "token_type": "Bearer"}
        if "resource" in scope["path"]:
            tokens = {"resource": f"{self.url}/mcp", "authorization_servers": [self.url]}
        elif "authorization" in scope["path"]:
            endpoint = f"{self.url}/endpoint"
            tokens = {
                "issuer": self.url,
                "authorization_endpoint": endpoint,
                "token_endpoint": endpoint,
                "code_challenge_methods_supported": ["S256"],
            }
        elif scope["path"] == "/mcp" and not self.is_signed_in:
            status, tokens = 401, {}
            fields.append((b"www-authenticate", b"Bearer"))
        elif scope["path"] == "/mcp":
            tokens = self.answer(json.loads(body or b"{}"))
        raw = tokens if isinstance(tokens, bytes) else json.dumps(tokens).encode()
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": raw})

    def answer(self, message: dict[str, Any]) -> Any:
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "x"}}
        results = {"initialize": about, "tools/list": self.listed}
        if isinstance(self.listed, bytes) and message.get("method") == "tools/list":
            return self.listed
        answer = {"jsonrpc": "2.0", "id": message.get("id")}
        if (result := results.get(message.get("method", ""))) is not None:
            return answer | {"result": result}
        return answer | {"error": {"code": -32601, "message": "no such method"}}


@pytest.fixture
def hostile() -> Iterator[HostileServer]:
    app = HostileServer()
    server = AsgiServer(app).start()
    app.url = server.url
    yield app
    server.stop()


@pytest.mark.parametrize(
    ("issuer", "token", "expected_text"),
    [
        ("https://other.example", "good", "from another issuer"),
        ("", "sec\r\nret", "no header can carry"),
        ("", "secr\u00e9t", "no header can carry"),
    ],
    ids=["another issuer", "a line break", "no ASCII"],
)
def test_an_invalid_redirect_ends_the_sign_in(
    hostile: HostileServer, tmp_path: Path, issuer: str, token: str, expected_text: str
) -> None:
    """The issuer's metadata need not promise to name it (RFC 9207 section 2.4)."""
    hostile.issued = token
    process = run(
        "list", "--url", f"{hostile.url}/mcp", "--no-browser", "--client-id", "me", cwd=tmp_path
    )
    query = parse_qs(urlsplit(process.wait_for(PAGE)["page"]).query)
    back = {"code": "c", "state": query["state"][0]} | ({"iss": issuer} if issuer else {})
    with urllib.request.urlopen(  # noqa: S310
        f"{query['redirect_uri'][0]}?{urlencode(back)}", timeout=20
    ) as answer:
        answer.read()
    process.process.wait(40)

    assert process.stop() == 1
    assert expected_text in process.output
    assert "sec" not in process.output.split("Error:")[1]
    assert "Traceback" not in process.output


@pytest.mark.parametrize(
    "listed",
    [
        {"tools": 5},
        {"tools": {"a": 1}},
        {"tools": [5, {"name": 1, "inputSchema": {"properties": [1], "required": 3}}]},
        b"[" * 900_000,
        b'{"a":' * 200_000,
    ],
    ids=["a number", "an object", "odd schemas", "deep lists", "deep objects"],
)
def test_a_malformed_list_shows_no_traceback(
    hostile: HostileServer, tmp_path: Path, listed: Any
) -> None:
    hostile.is_signed_in, hostile.listed = True, listed
    code, _, complaints = commands.completed("list", "--url", f"{hostile.url}/mcp", cwd=tmp_path)

    assert code in {0, 1}
    assert "Traceback" not in complaints


def test_printed_json_escapes_terminal_control_characters(
    hostile: HostileServer, tmp_path: Path
) -> None:
    """The control characters above 128 and the reordering ones, which JSON need not escape."""
    tools = [{"name": "a\x9b2J\u202e\x7f\U000e0041"}]
    hostile.is_signed_in, hostile.listed = True, {"tools": tools}
    code, out, _ = commands.completed("list", "--json", "--url", f"{hostile.url}/mcp", cwd=tmp_path)

    assert code == 0
    assert json.loads(out) == tools
    assert out.replace("\n", "").isprintable()


@pytest.mark.parametrize("member", ["authorization_servers", "registration_endpoint"])
async def test_a_remote_server_cannot_send_the_command_to_local_addresses(member: str) -> None:
    """Its metadata could otherwise direct requests to programs that listen only here."""
    sent: list[str] = []
    documents: dict[str, Any] = {
        "https://mcp.example/.well-known/oauth-protected-resource/mcp": {
            "resource": "https://mcp.example/mcp",
            "authorization_servers": ["https://id.example"],
        },
        "https://id.example/.well-known/oauth-authorization-server": {
            "issuer": "https://id.example",
            "authorization_endpoint": "https://id.example/a",
            "token_endpoint": "https://id.example/t",
            "code_challenge_methods_supported": ["S256"],
            "registration_endpoint": "https://id.example/r",
        },
    }
    here = "http://127.0.0.1:9200/_all"
    for document in documents.values():
        if member in document:
            document[member] = [here] if member == "authorization_servers" else here

    def serve(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.url.host)
        document = documents.get(str(request.url))
        return httpx2.Response(404 if document is None else 200, json=document or {})

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(serve)) as client:
        url = "https://mcp.example/mcp"
        with pytest.raises(SignInFailed):
            await BrowserSignIn(client, url, show=sent.append)({})

    assert "127.0.0.1" not in sent
