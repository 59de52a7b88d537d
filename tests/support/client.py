"""Clients of a running Gatepost: HTTP as bytes, MCP, REST, and tools by either protocol."""

import json
import os
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
import pytest

from tests.support.endpoint import MIRRORED_PARAMETERS, in_header

if TYPE_CHECKING:
    from tests.support.server import Server


class RawAnswer(NamedTuple):
    """One answer as it came: status, header fields in order (names in lower case), body."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def field(self, name: str) -> str | None:
        """Return the only field of that name; None when there is none."""
        values = [value for field, value in self.headers if field == name.lower()]
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None


def exchange(port: int, data: bytes | Iterable[bytes], *, timeout: float = 30) -> RawAnswer:
    """Send bytes (in pieces, if given in pieces) to loopback and read one answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        for piece in [data] if isinstance(data, bytes) else data:
            connection.sendall(piece)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> RawAnswer:
    """Read one answer with a Content-Length, or up to the end of the connection."""
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = connection.recv(65_536)
        if not chunk:
            raise ConnectionError(f"the server closed after {received!r}")
        received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    first, *fields = head.decode("latin-1").split("\r\n")
    headers = [(n.strip().lower(), v.strip()) for n, _, v in (f.partition(":") for f in fields)]
    length = next((int(v) for n, v in headers if n == "content-length"), None)
    while length is None or len(body) < length:
        chunk = connection.recv(65_536)
        if not chunk:
            break
        body += chunk
    return RawAnswer(int(first.split()[1]), headers, body)


def request(
    method: str,
    target: str,
    fields: Sequence[tuple[str, str | bytes]] = (),
    body: bytes = b"",
) -> bytes:
    """Return a request head with exactly these fields, in this order, and a body."""
    lines = [f"{method} {target} HTTP/1.1".encode()]
    for name, value in fields:
        raw = value if isinstance(value, bytes) else value.encode("latin-1")
        lines.append(name.encode("latin-1") + b": " + raw)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


MODERN_REVISION = "2026-07-28"
WELL_KNOWN = "/.well-known/oauth-protected-resource"
Fields = Sequence[tuple[str, str]]
VARYING_FIELDS = frozenset({"date", "x-request-id"})
"""Header fields that differ from answer to answer, even for the same client."""


class ResourceClient:
    """
    Where one resource is served.

    Every request has a connection of its own, to this machine whatever the resource's host is;
    with *tls* an encrypted one. A path other than the resource's may be given.
    """

    def __init__(self, resource: str, *, tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(resource)
        self.host, self.tls = parts.hostname, tls
        self.resource = resource
        self.authority, self.path = parts.netloc, parts.path
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self.port = parts.port or 80

    @property
    def metadata_url(self) -> str:
        return f"{self.resource}{WELL_KNOWN}"

    def send(
        self,
        method: str,
        path: str | None = None,
        fields: Fields = (),
        body: bytes = b"",
        *,
        token: str | None = None,
    ) -> RawAnswer:
        """Send one request with these extra fields, and the token if there is one."""
        head = [("Host", self.authority), ("Connection", "close"), *fields]
        if token is not None:
            head.append(("Authorization", f"Bearer {token}"))
        if body:
            head += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        data = request(method, path or self.path, head, body)
        if self.tls is None:
            return exchange(self.port, data)
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=30) as plain,
            self.tls.wrap_socket(plain, server_hostname=self.host) as connection,
        ):
            connection.sendall(data)
            return read_answer(connection)

    def ask(
        self,
        token: str | None,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        path: str | None = None,
        fields: Fields = (),
    ) -> RawAnswer:
        """Send one request of 2026-07-28."""
        named, body = modern_request(method, params)
        return self.send("POST", path, [*named, *fields], body, token=token)

    def call(
        self,
        token: str | None,
        tool: str = "record_call",
        arguments: Mapping[str, Any] | None = None,
        *,
        path: str | None = None,
        fields: Fields = (),
    ) -> RawAnswer:
        """Send one `tools/call` of 2026-07-28."""
        params = {"name": tool, "arguments": arguments or {}}
        return self.ask(token, "tools/call", params, path=path, fields=fields)

    def listed(self, token: str) -> list[str]:
        """Return the names of the tools that the token's caller is shown."""
        return [tool["name"] for tool in result(self.ask(token, "tools/list"))["tools"]]

    def whoami(self, token: str, *, path: str | None = None) -> dict[str, Any]:
        """Return what the gate knows of the token's caller (the demo pack's tool)."""
        known: dict[str, Any] = result(self.call(token, "whoami", path=path))["structuredContent"]
        return known

    def open(self, token: str, version: str = "2025-06-18") -> str:
        """Open a session of an older era and return its id."""
        asked = {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT}
        answer = self.send("POST", body=message("initialize", asked), token=token)
        assert answer.status == 200, answer
        session = answer.field("mcp-session-id")
        assert session is not None
        return session

    def within(
        self, token: str, session: str, body: bytes | None = None, *, path: str | None = None
    ) -> RawAnswer:
        """Send one POST of a session; a call of `record_call` unless *body* says otherwise."""
        sent = session_call("record_call") if body is None else body
        return self.send("POST", path, [("Mcp-Session-Id", session)], sent, token=token)


CLIENT = {"name": "test", "version": "1"}


def message(method: str, params: Mapping[str, Any] | None = None, identity: int = 1) -> bytes:
    """Return a JSON-RPC request."""
    body = {"jsonrpc": "2.0", "id": identity, "method": method}
    return json.dumps(body if params is None else {**body, "params": params}).encode()


def session_call(tool: str, arguments: Mapping[str, Any] | None = None) -> bytes:
    """Return the body of a `tools/call` within a session."""
    return message("tools/call", {"name": tool, "arguments": arguments or {}})


def modern_request(
    method: str, params: Mapping[str, Any] | None = None, *, progress: int | None = None
) -> tuple[list[tuple[str, str]], bytes]:
    """Return header fields and body of a request of 2026-07-28; *progress* asks for reports."""
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": MODERN_REVISION,
        "io.modelcontextprotocol/clientCapabilities": {},
    } | ({} if progress is None else {"progressToken": progress})
    fields = [
        ("Accept", "application/json, text/event-stream"),
        ("MCP-Protocol-Version", MODERN_REVISION),
        ("Mcp-Method", method),
    ]
    named = (params or {}).get(MIRRORED_PARAMETERS.get(method, ""))
    if isinstance(named, str):
        fields.append(("Mcp-Name", in_header(named)))
    own = (params or {}).get("_meta", {})
    return fields, message(method, {**(params or {}), "_meta": {**meta, **own}})


def result(answer: RawAnswer) -> dict[str, Any]:
    """Return the result of a request that was served."""
    assert answer.status == 200, answer
    document = json.loads(answer.body)
    assert "result" in document, answer
    served: dict[str, Any] = document["result"]
    return served


def failure(answer: RawAnswer) -> dict[str, Any]:
    """Return the JSON-RPC error of a request that was not served."""
    error: dict[str, Any] = json.loads(answer.body)["error"]
    return error


def challenge_of(answer: RawAnswer) -> str:
    """Return the one challenge; empty when there is none."""
    return answer.field("www-authenticate") or ""


def comparable_answer(
    answer: RawAnswer, **renamed: str
) -> tuple[int, list[tuple[str, str]], bytes]:
    """
    Return the whole answer in the form in which an attacker would compare it with others.

    A keyword replaces each *renamed* name, which the client wrote itself.
    """

    def same(text: str) -> str:
        for neutral, name in renamed.items():
            text = text.replace(name, f"<{neutral}>")
        return text

    fields = [(name, same(value)) for name, value in answer.headers if name not in VARYING_FIELDS]
    return answer.status, fields, same(answer.body.decode()).encode()


class RestAnswer(msgspec.Struct):
    """One answer, which is JSON and has its content type, whatever its status."""

    status: int
    json: Any
    raw: RawAnswer

    @property
    def error(self) -> tuple[int, str]:
        """Return status and error code; assert that there is a message for the model."""
        assert isinstance(self.json["message"], str)
        assert self.json["message"]
        return self.status, self.json["error"]


class RestClient:
    """An agent of one tenant; *base* is where the routes are."""

    def __init__(self, server: "Server", token: str | None = None, *, base: str = "") -> None:
        self.server = server
        self.token = server.token() if token is None else token
        self.base = base

    def health(self) -> RestAnswer:
        return self.send("GET", "/health", token="")

    def tools(self, *fields: tuple[str, str]) -> RestAnswer:
        return self.send("GET", f"{self.base}/tools", fields)

    def names(self) -> list[str]:
        return [tool["name"] for tool in self.tools().json]

    def call(
        self, tool: str, arguments: Mapping[str, Any] | None = None, *fields: tuple[str, str]
    ) -> RestAnswer:
        body = json.dumps(arguments or {}).encode()
        return self.post(tool, body, *fields)

    def post(self, tool: str, body: bytes, *fields: tuple[str, str]) -> RestAnswer:
        return self.send("POST", f"{self.base}/tool/{tool}/call", fields, body)

    def send(
        self,
        method: str,
        path: str,
        fields: Fields = (),
        body: bytes = b"",
        *,
        token: str | None = None,
    ) -> RestAnswer:
        """Send any request; assert that the answer is JSON, as each of this protocol is (O6)."""
        token = self.token if token is None else token
        raw = self.server.client.send(method, path, fields, body, token=token or None)
        assert raw.field("content-type") == "application/json", raw
        return RestAnswer(raw.status, json.loads(raw.body) if raw.body else None, raw)

    def ask(self, method: str, path: str, body: Any = None) -> RestAnswer:
        """Send an administrator's request, with *body* as JSON; the answer may be empty."""
        sent = b"" if body is None else json.dumps(body).encode()
        raw = self.server.client.send(method, f"{self.base}{path}", (), sent, token=self.token)
        return RestAnswer(raw.status, json.loads(raw.body) if raw.body else None, raw)


Protocol = Literal["mcp", "rest"]


KINDS = {
    422: "validation",
    404: "not_found",
    403: "denied",
    409: "conflict",
    429: "rate_limit",
    500: "internal",
    503: "upstream_unavailable",
    504: "timeout",
}


class ToolResult(msgspec.Struct, frozen=True):
    """The outcome of a call: its value (structured, else text), or the failure's message."""

    value: Any = None
    text: str = ""
    failure: str | None = None
    kind: str | None = None
    """As REST says it; MCP only has the text."""
    result: Mapping[str, Any] = {}
    """The whole result, over MCP."""


class ToolCaller:
    """An agent of one tenant, who calls tools by either protocol."""

    def __init__(
        self, gatepost: "Server", tenant: str, protocol: Protocol, scopes: str = ""
    ) -> None:
        self.gatepost, self.tenant, self.protocol = gatepost, tenant, protocol
        self.token = gatepost.token(org_id=tenant, scope=scopes)

    def call(self, tool: str, **arguments: Any) -> ToolResult:
        if self.protocol == "mcp":
            reply = self.gatepost.client.call(self.token, tool, arguments)
            if "error" in (document := json.loads(reply.body)):
                return ToolResult(failure=document["error"]["message"])  # a rate limit
            answer = result(reply)
            text = "\n\n".join(block["text"] for block in answer["content"])
            if answer["isError"]:
                return ToolResult(failure=text, result=answer)
            value = answer.get("structuredContent", text)
            # As on REST, what is no object stands in one.
            return ToolResult(
                value["result"] if [*value] == ["result"] else value, text, result=answer
            )
        told = RestClient(self.gatepost, self.token).call(tool, arguments)
        if told.status != 200:
            return ToolResult(failure=told.json["message"], kind=KINDS[told.status])
        value = told.json.get("result", told.json)
        return ToolResult(value, value if isinstance(value, str) else json.dumps(value))

    def listed(self) -> list[str]:
        """Return the names of the tools that the caller is shown."""
        if self.protocol == "mcp":
            return self.gatepost.client.listed(self.token)
        return RestClient(self.gatepost, self.token).names()


@pytest.fixture(scope="session", autouse=True)
def no_public_authorities() -> Iterator[None]:
    """
    Let HTTP clients of this process trust only the authorities that a test names.

    No certificate of the tests is of another one, and each client would read the system's hundred,
    also where the environment of the run names them.
    """
    outside = os.environ.get("SSL_CERT_FILE")

    def context(*, _trust_env: bool = True) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        bundle = os.environ.get("SSL_CERT_FILE")
        if _trust_env and bundle and bundle != outside:
            made.load_verify_locations(bundle)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpcore2.default_ssl_context", context)
        yield
