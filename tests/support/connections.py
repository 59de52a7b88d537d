"""Applications over HTTP, connections as bytes, `gatepost stdio`, and connections to upstreams."""

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from gatepost.credentials.credential import NoCredential, OutboundCredential
from gatepost.http.checks import HeadChecks, HeadRules
from gatepost.http.deadlines import Deadlines
from gatepost.http.edge import Edge, respond
from gatepost.http.flow_control import UnreadLimits
from gatepost.http.h11_protocol import StrictH11Protocol
from gatepost.http.httptools_protocol import HttptoolsProtocol
from gatepost.outbound.http_client import OutboundClient
from gatepost.runtime.http_server import GatepostServer, bind, listen_config
from gatepost.telemetry.access import AccessLog
from gatepost.upstreams.connection import UpstreamConnection
from gatepost.upstreams.transport.connections import UpstreamConnections
from gatepost.upstreams.transport.stdio_program import ProgramServices
from gatepost.upstreams.upstream_server import StdioProgram, UpstreamServer
from gatepost_authz.config import Network
from gatepost_authz.fetch import Fetcher
from tests.support.endpoint import META, Response, exchange
from tests.support.measuring import eventually
from tests.support.processes import Process, python_environment

WITHIN_S = 30
"""Seconds after which a test gives up; the deadlines under test are far shorter."""

HOST = (b"host", b"mcp.example.com")


Pairs = tuple[tuple[bytes, bytes], ...]


async def ask(
    app: ASGIApp,
    path: str = "/mcp",
    *,
    method: str = "POST",
    headers: Pairs = (HOST,),
    scheme: str = "https",
    peer: str = "198.51.100.7",
) -> Response:
    """Send one request without a body."""
    sides = {"client": (peer, 4711), "server": ("127.0.0.1", 8000)}
    more = {"scheme": scheme, "http_version": "1.1", **sides}
    return await exchange(app, more, headers, verb=method, path=path)


SHORT_DEADLINES = Deadlines(
    head_s=0.3,
    keep_alive_s=1,
    drain_s=1,
    max_head_bytes=2000,
    unread=UnreadLimits(bytes_per_s=1000, window_s=0.5),
)


@asynccontextmanager
async def serving(
    app: ASGIApp,
    protocol: type[asyncio.Protocol],
    *,
    deadlines: Deadlines = SHORT_DEADLINES,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Serve an app and yield the port."""
    sock = bind("127.0.0.1", 0)
    ready = asyncio.Event()
    config = listen_config(app, deadlines, tls=tls, protocol=protocol)
    server = GatepostServer(config, on_ready=ready.set)
    running = asyncio.create_task(server.serve(sockets=[sock]))
    await asyncio.wait_for(ready.wait(), WITHIN_S)
    yield sock.getsockname()[1]
    server.should_exit = True
    await asyncio.wait_for(running, WITHIN_S)


class WireConnection:
    """A connection on which a test writes bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until(self, end: bytes) -> bytes:
        """Return everything up to *end*."""
        return await asyncio.wait_for(self.reader.readuntil(end), WITHIN_S)

    async def rest(self) -> bytes:
        """Return everything until the server closes."""
        try:
            return await asyncio.wait_for(self.reader.read(), WITHIN_S)
        except ConnectionResetError:
            return b""


@asynccontextmanager
async def connected(
    port: int, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[WireConnection]:
    """Yield a connection to the server; with *tls* an encrypted one."""
    name = None if tls is None else "localhost"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
    yield WireConnection(reader, writer)
    writer.close()
    if tls is not None:
        with suppress(OSError, ssl.SSLError):
            await asyncio.wait_for(writer.wait_closed(), WITHIN_S)


PAGE = b"https://app.example.com"


RULES = HeadRules(
    origin="https://mcp.example.com",
    development=False,
    max_header_bytes=2000,
    max_body_bytes=1000,
    allowed_origins=(PAGE.decode(),),
    trusted_proxies=("10.0.0.0/8",),
)


async def health_response() -> tuple[int, bytes]:
    """Return a probe's answer."""
    return 200, b'{"status":"ok"}'


class InnerApp:
    """Stands where the application stands: counts, remembers the scope, answers 200."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.raises: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        if self.raises is not None:
            raise self.raises
        if scope["path"] == "/breaks":
            raise KeyError("Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.c2ln")
        await respond(send, 200, b"{}")


class RecordedEdge:
    """An edge as production builds it, and what it wrote and let through."""

    def __init__(self, rules: HeadRules = RULES) -> None:
        self.inner = InnerApp()
        self.written: list[bytes] = []
        self.log = AccessLog("json", self.written.append)
        self.checks = HeadChecks(rules)
        self.edge = Edge(
            self.inner,
            checks=self.checks,
            log=self.log,
            probes={"/health": health_response},
            is_endpoint=lambda path: path == "/mcp",
        )

    @property
    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for batch in self.written for line in batch.splitlines()]


@pytest.fixture
async def recorded_edge() -> AsyncIterator[RecordedEdge]:
    recorded = RecordedEdge()
    yield recorded
    await recorded.log.aclose()


@pytest.fixture(
    scope="module", params=[HttptoolsProtocol, StrictH11Protocol], ids=["httptools", "h11"]
)
async def port(request: pytest.FixtureRequest) -> AsyncIterator[int]:
    """Serve the `app` of the test's own module with each parser, and yield the port."""
    async with serving(request.module.app, request.param) as port:
        yield port


@pytest.fixture
async def wire_connection(port: int) -> AsyncIterator[WireConnection]:
    """Yield a connection to the server at *port*."""
    async with connected(port) as wire:
        yield wire


STDIO_TOOLS = Path(__file__).with_name("tools.py")


PRINTING_PACK = """
from gatepost import Pack

print("the file of tools says hello")
pack = Pack("hello")
"""


STDIO_CONFIG = """
resource = "https://mcp.example.com/mcp"
[listen]
drain_s = {drain_s}
[limits]
max_body_bytes = 20000
requests_per_second = 0
[tools]
packs = ["demo"]
load = [{kit}]
[storage]
database = "memory:"
[stdio]
tenant = "acme"
subject = "alice"
scopes = ["files:write"]
"""


class StdioClient(Process):
    """`gatepost stdio` as a process, and the messages it has written."""

    def messages(self) -> list[Any]:
        """Return everything on its standard output, which is JSON or nothing."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    def of(self, identity: Any) -> Any:
        """Return the response to a request."""
        found: list[Any] = []

        def is_answered() -> bool:
            found[:] = [
                one
                for one in self.messages()
                if "id" in one and one["id"] == identity and "method" not in one
            ]
            return bool(found)

        eventually(is_answered, within=WITHIN_S)
        assert len(found) == 1
        assert type(found[0]["id"]) is type(identity)
        return found[0]

    def params_of(self, method: str) -> list[Any]:
        """Return the parameters of every message with that method, so far."""
        return [one.get("params") for one in self.messages() if one.get("method") == method]

    def wait_for_params(self, method: str, times: int = 1) -> list[Any]:
        """Wait for so many messages with that method; return their parameters."""
        eventually(lambda: len(self.params_of(method)) >= times, within=WITHIN_S)
        return self.params_of(method)

    def say(
        self, method: str, params: Any = None, *, identity: Any = None, meta: Any = None
    ) -> Any:
        """Send a request or, without an id, a notification."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if identity is not None:
            message["id"] = identity
        if params is not None or meta is not None:
            message["params"] = {**(params or {}), **({} if meta is None else {"_meta": meta})}
        self.write_line(json.dumps(message))
        return identity

    def modern(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        identity: Any,
        can: Mapping[str, Any] | None = None,
        **meta: Any,
    ) -> Any:
        """Send a request of 2026-07-28."""
        known = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": can or {}}
        return self.say(method, params or {}, identity=identity, meta={**known, **meta})

    def call(self, tool: str, *, identity: Any, **arguments: Any) -> Any:
        """Send a `tools/call` of 2026-07-28."""
        params = {"name": tool, "arguments": arguments}
        return self.modern("tools/call", params, identity=identity)

    def open(self, version: str = "2025-11-25", **capabilities: Any) -> Any:
        """Make the handshake; return its result."""
        client = {"name": "test", "version": "1"}
        asked = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": client}
        result = self.of(self.say("initialize", asked, identity=f"open {version}"))["result"]
        self.say("notifications/initialized")
        return result

    def hang_up(self) -> int:
        """Close the pipe and answer the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(WITHIN_S)


def answered_text(response: Any) -> str:
    """Return the text of an answer."""
    answered: str = response["result"]["content"][0]["text"]
    return answered


@contextmanager
def stdio_process(
    folder: Path, config: str = STDIO_CONFIG, *, drain_s: int = 10
) -> Iterator[StdioClient]:
    """Run a process during the block."""
    path = folder / "gatepost.toml"
    printing = folder / "printing.py"
    printing.write_text(PRINTING_PACK, encoding="utf-8")
    shown = ", ".join(json.dumps(str(file)) for file in (STDIO_TOOLS, printing))
    path.write_text(config.replace("{kit}", shown).replace("{drain_s}", str(drain_s)))
    command = [sys.executable, "-m", "gatepost", "stdio", "--config", str(path)]
    process = StdioClient(command, env=python_environment(), cwd=folder)
    try:
        yield process
    finally:
        process.kill()


UPSTREAM_SECRET = "gh-secret-0123456789"
"""The secret GITHUB of the tenant acme in a `ConnectingProcess`."""


class ConnectingProcess:
    """Opens connections; *hosts* are those of `allow_hosts`."""

    def __init__(self, *hosts: str, ca_bundle: str = "", kept_connections: int = 100) -> None:
        network = Network(allow_hosts=hosts, ca_bundle=ca_bundle)
        self.client = OutboundClient(network, tls=Fetcher(development=True, network=network).tls)
        self.credential: OutboundCredential = NoCredential()
        self.secrets = {("acme", "GITHUB"): UPSTREAM_SECRET}
        self.connections = UpstreamConnections(
            self.client,
            lambda server: self.credential,
            ProgramServices(
                self._secret, lambda tenant, text: text.replace(UPSTREAM_SECRET, "[secret]")
            ),
            max_idle=kept_connections,
        )

    async def _secret(self, tenant: str, name: str) -> str | None:
        return self.secrets.get((tenant, name))

    def http(
        self, url: str, principal: tuple[str, ...] | None = None, **more: Any
    ) -> UpstreamConnection:
        usual: dict[str, Any] = {"id": url, "tenant": "acme", "name": "crm", "url": url}
        return self.connections.connection_to(UpstreamServer(**(usual | more)), principal)

    def stdio(
        self, program: StdioProgram, principal: tuple[str, ...] | None = None, **more: Any
    ) -> UpstreamConnection:
        usual: dict[str, Any] = {"id": "s", "tenant": "acme", "name": "crm", "transport": "stdio"}
        return self.connections.connection_to(
            UpstreamServer(program=program, **(usual | more)), principal
        )

    async def aclose(self) -> None:
        await self.connections.aclose()
        await self.client.aclose()
