"""A process that connects to upstreams, with nothing imitated between, and servers for it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatepost.credentials.credential import NoCredential, OutboundCredential
from gatepost.outbound.http_client import OutboundClient
from gatepost.upstreams.connection import (
    ConnectionFailure,
    RequestOptions,
    UpstreamConnection,
    UpstreamMessage,
    UpstreamResult,
)
from gatepost.upstreams.transport.connections import UpstreamConnections
from gatepost.upstreams.transport.stdio_program import ProgramServices
from gatepost.upstreams.upstream_server import StdioProgram, UpstreamServer
from gatepost_authz.config import Network
from gatepost_authz.fetch import Fetcher
from tests.support.issuers import AsgiServer, Receive, Scope, Send

WITHIN_S = 60
SECRET = "gh-secret-0123456789"
PROGRAM = str(Path(__file__).with_name("stdio_program.py"))


class Posted(msgspec.Struct, frozen=True):
    """One request that arrived."""

    verb: str
    headers: Mapping[str, str]
    body: Any
    receive: Receive

    @property
    def method(self) -> str:
        """The JSON-RPC method, or the verb of a request without one."""
        return self.body.get("method", "response") if isinstance(self.body, dict) else self.verb

    @property
    def id(self) -> Any:
        return self.body.get("id")


Answer = Callable[[Posted, Send], Awaitable[None]]
JSON, EVENTS = "application/json", "text/event-stream"


async def begin(send: Send, status: int = 200, kind: str = JSON, **headers: str) -> None:
    fields = {"content-type": kind} | {n.replace("_", "-"): v for n, v in headers.items()}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def more(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def finish(send: Send, data: bytes = b"") -> None:
    await send({"type": "http.response.body", "body": data})


def raw(data: bytes, status: int = 200, kind: str = JSON, **headers: str) -> Answer:
    """An answer of exactly these bytes."""

    async def answer(posted: Posted, send: Send) -> None:
        await begin(send, status, kind, **headers)
        await finish(send, data)

    return answer


def result(value: Mapping[str, Any], **headers: str) -> Answer:
    """A JSON answer with a result."""

    async def answer(posted: Posted, send: Send) -> None:
        body = {"jsonrpc": "2.0", "id": posted.id, "result": value}
        await raw(msgspec.json.encode(body), **headers)(posted, send)

    return answer


def error(code: int, message: str, status: int = 200, data: Any = None) -> Answer:
    """A JSON answer with an error."""

    async def answer(posted: Posted, send: Send) -> None:
        body = {"code": code, "message": message, "data": data}
        whole = {"jsonrpc": "2.0", "id": posted.id, "error": body}
        await raw(msgspec.json.encode(whole), status)(posted, send)

    return answer


def event(value: Any, identity: str = "") -> bytes:
    """A message as one event of a stream."""
    line = f"id: {identity}\n".encode() if identity else b""
    return line + b"data: " + msgspec.json.encode(value) + b"\n\n"


def final(posted: Posted, value: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": posted.id, "result": value or {"content": []}}


async def until(condition: Callable[[], object], within: float = 20) -> None:
    """Return once *condition* holds, of which another thread or process takes care."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - no event crosses to this loop
            await asyncio.sleep(0.01)


async def stall(posted: Posted) -> None:
    """Answer nothing until the client goes."""
    while (await posted.receive())["type"] != "http.disconnect":
        pass


DESCRIPTION = {
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {"listChanged": True}},
    "resultType": "complete",
}
HANDSHAKE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}, "logging": {}},
    "serverInfo": {"name": "scripted", "version": "1"},
}


class ScriptedServer:
    """Answers by JSON-RPC method, or by verb; it is modern unless told otherwise."""

    def __init__(self) -> None:
        self.seen: list[Posted] = []
        self.answers: dict[str, Answer] = {
            "server/discover": result(DESCRIPTION),
            "tools/list": result({"tools": []}),
        }
        self.changed = asyncio.Event()

    def has_sessions(self, *ids: str, revision: str = "2025-11-25") -> None:
        """Speak an older revision; each handshake opens the next session of *ids*."""
        left = list(ids)

        async def initialize(posted: Posted, send: Send) -> None:
            headers = {"mcp_session_id": left.pop(0)} if left else {}
            await result(HANDSHAKE | {"protocolVersion": revision}, **headers)(posted, send)

        self.answers["server/discover"] = error(-32601, "no such method", 404)
        self.answers["initialize"] = initialize
        for method in ("notifications/initialized", "notifications/cancelled", "response"):
            self.answers[method] = raw(b"", 202)
        self.answers["DELETE"] = raw(b"", 200)
        self.answers["GET"] = raw(b"", 405)

    def of(self, method: str) -> list[Posted]:
        """What arrived for a method."""
        return [one for one in self.seen if one.method == method]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, unfinished = b"", True
        while unfinished:
            message = await receive()
            body += message.get("body", b"")
            unfinished = message.get("more_body", False)
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        posted = Posted(
            scope["method"], headers, msgspec.json.decode(body) if body else None, receive
        )
        self.seen.append(posted)
        await self.answers.get(posted.method, error(-32601, "no such method", 404))(posted, send)


class ConnectingProcess:
    """Opens connections; *hosts* are those of `allow_hosts`."""

    def __init__(self, *hosts: str, ca_bundle: str = "", kept: int = 100) -> None:
        network = Network(allow_hosts=hosts, ca_bundle=ca_bundle)
        self.client = OutboundClient(network, tls=Fetcher(development=True, network=network).tls)
        self.credential: OutboundCredential = NoCredential()
        self.secrets = {("acme", "GITHUB"): SECRET}
        self.connections = UpstreamConnections(
            self.client,
            lambda server: self.credential,
            ProgramServices(self._secret, lambda tenant, text: text.replace(SECRET, "[secret]")),
            kept=kept,
        )

    async def _secret(self, tenant: str, name: str) -> str | None:
        return self.secrets.get((tenant, name))

    def http(
        self, url: str, principal: tuple[str, ...] | None = None, **more: Any
    ) -> UpstreamConnection:
        usual: dict[str, Any] = {"id": url, "tenant": "acme", "name": "crm", "url": url}
        return self.connections.of(UpstreamServer(**(usual | more)), principal)

    def stdio(
        self, program: StdioProgram, principal: tuple[str, ...] | None = None, **more: Any
    ) -> UpstreamConnection:
        usual: dict[str, Any] = {"id": "s", "tenant": "acme", "name": "crm", "transport": "stdio"}
        return self.connections.of(UpstreamServer(program=program, **(usual | more)), principal)

    async def aclose(self) -> None:
        await self.connections.aclose()
        await self.client.aclose()


async def messages_of(
    connection: UpstreamConnection,
    method: str = "tools/call",
    params: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[UpstreamMessage]:
    """All messages of one request."""
    given = {"name": "act", "arguments": {}} if params is None else params
    async with (
        asyncio.timeout(WITHIN_S),
        connection.exchange(method, given, RequestOptions(**options)) as exchange,
    ):
        return [one async for one in exchange.messages()]


async def result_of(
    connection: UpstreamConnection,
    method: str = "tools/call",
    params: Mapping[str, Any] | None = None,
    **options: Any,
) -> Mapping[str, Any]:
    """The result of one request."""
    last = (await messages_of(connection, method, params, **options))[-1]
    assert isinstance(last, UpstreamResult), last
    return last.value


async def failure_of(connection: UpstreamConnection, **options: Any) -> ConnectionFailure:
    """Why a request fails."""
    with pytest.raises(ConnectionFailure) as failed:
        await messages_of(connection, **options)
    return failed.value


@pytest.fixture
def scripted() -> Iterator[tuple[ScriptedServer, str]]:
    """A scripted server and its URL."""
    app = ScriptedServer()
    with AsgiServer(app) as server:
        yield app, f"{server.url}/mcp"


@pytest.fixture
async def crm(scripted: tuple[ScriptedServer, str]) -> AsyncIterator[tuple[ScriptedServer, Any]]:
    """A scripted server, and a function that connects to it."""
    app, url = scripted
    process = ConnectingProcess(url.split("/")[2])

    def connect(principal: tuple[str, ...] | None = None, **more: Any) -> UpstreamConnection:
        process_credential = more.pop("credential", None)
        if process_credential is not None:
            process.credential = process_credential
        return process.http(url, principal, **more)

    yield app, connect
    await process.aclose()
