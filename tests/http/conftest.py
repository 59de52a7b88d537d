"""HTTP applications under test: an edge as production builds it, and connections to it."""

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from http.client import parse_headers
from typing import Any

import pytest
import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send

from gatepost.http.checks import HeadChecks, HeadRules
from gatepost.http.deadlines import Deadlines
from gatepost.http.edge import Edge, respond
from gatepost.http.flow_control import UnreadLimits
from gatepost.http.h11_protocol import StrictH11Protocol
from gatepost.http.httptools_protocol import HttptoolsProtocol
from gatepost.runtime.http_server import GatepostServer, bind, listen_config, tls_context
from gatepost.telemetry.access import AccessLog
from tests.support.client import RawAnswer, modern, request, result
from tests.support.commands import ServerProcess
from tests.support.endpoint import Response, exchange
from tests.support.measuring import eventually
from tests.support.proxies import CertificateAuthority

WITHIN_S = 30
STOPS_WITHIN_S = 25
"""Less than the half minute that TLS waits for a client's word."""
NEVER_S = 600
"""Longer than any test waits."""


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


SOON = 20.0
"""Seconds after which a test gives up; the deadlines under test are far shorter."""


HASTY = Deadlines(
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
    deadlines: Deadlines = HASTY,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """The port of a running server."""
    sock = bind("127.0.0.1", 0)
    ready = asyncio.Event()
    config = listen_config(app, deadlines, tls=tls, protocol=protocol)
    server = GatepostServer(config, on_ready=ready.set)
    running = asyncio.create_task(server.serve(sockets=[sock]))
    await asyncio.wait_for(ready.wait(), SOON)
    yield sock.getsockname()[1]
    server.should_exit = True
    await asyncio.wait_for(running, SOON)


class WireConnection:
    """A connection on which a test writes bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until(self, end: bytes) -> bytes:
        """All up to *end*."""
        return await asyncio.wait_for(self.reader.readuntil(end), SOON)

    async def rest(self) -> bytes:
        """All until the server closes."""
        try:
            return await asyncio.wait_for(self.reader.read(), SOON)
        except ConnectionResetError:
            return b""


@asynccontextmanager
async def connected(
    port: int, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[WireConnection]:
    """A connection to the server; with *tls* an encrypted one."""
    name = None if tls is None else "localhost"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
    yield WireConnection(reader, writer)
    writer.close()
    if tls is not None:
        with suppress(OSError, ssl.SSLError):
            await asyncio.wait_for(writer.wait_closed(), SOON)


PAGE = b"https://app.example.com"


RULES = HeadRules(
    origin="https://mcp.example.com",
    development=False,
    max_header_bytes=2000,
    max_body_bytes=1000,
    allowed_origins=(PAGE.decode(),),
    trusted_proxies=("10.0.0.0/8",),
)


async def healthy() -> tuple[int, bytes]:
    """A probe's answer."""
    return 200, b'{"status":"ok"}'


class Inner:
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


class Front:
    """An edge as production builds it, and what it wrote and let through."""

    def __init__(self, rules: HeadRules = RULES) -> None:
        self.inner = Inner()
        self.written: list[bytes] = []
        self.log = AccessLog("json", self.written.append)
        self.checks = HeadChecks(rules)
        self.edge = Edge(
            self.inner,
            checks=self.checks,
            log=self.log,
            probes={"/health": healthy},
            is_endpoint=lambda path: path == "/mcp",
        )

    @property
    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for batch in self.written for line in batch.splitlines()]


class Encrypted(threading.Thread):
    """The server; `stop` may wait until it has ended."""

    def __init__(
        self, app: ASGIApp, authority: CertificateAuthority | None, deadlines: Deadlines
    ) -> None:
        super().__init__(daemon=True)
        tls = None if authority is None else tls_context(*authority.certify("localhost"))
        self._speaks_tls = authority is not None
        if authority is not None:
            self.trusting = ssl.create_default_context(cafile=str(authority.bundle))
        self.sock = bind("127.0.0.1", 0)
        self.port: int = self.sock.getsockname()[1]
        self.ready = threading.Event()
        config = listen_config(app, deadlines, tls=tls)
        self.server = GatepostServer(config, on_ready=self.ready.set)

    def run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self.server.serve(sockets=[self.sock]))

    def opened(self, address: str = "127.0.0.1", **options: int) -> socket.socket:
        """A connection on which a client can ask, from one of its addresses."""
        plain = self.plain(address, **options)
        if not self._speaks_tls:
            return plain
        return self.trusting.wrap_socket(plain, server_hostname="localhost")

    def plain(self, address: str = "127.0.0.1", **options: int) -> socket.socket:
        """A connection on which nothing has been said yet."""
        made = socket.socket()
        made.bind((address, 0))
        for name, value in options.items():
            made.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        made.settimeout(WITHIN_S)
        try:
            made.connect(("127.0.0.1", self.port))
        except OSError:
            made.close()
            raise
        return made

    def connected(self, **options: int) -> ssl.SSLSocket:
        """An encrypted one; a connection that is cut raises, and one that is ended reads empty."""
        return self.trusting.wrap_socket(
            self.plain(**options), server_hostname="localhost", suppress_ragged_eofs=False
        )

    def stop(self) -> None:
        """Have it stop, and return once it has."""
        self.server.should_exit = True
        self.join(STOPS_WITHIN_S)
        assert not self.is_alive(), "the server did not end"


@contextmanager
def encrypted(
    app: ASGIApp, authority: CertificateAuthority | None, **deadlines: Any
) -> Iterator[Encrypted]:
    """Serve for the time of a block; every deadline that is not given never comes."""
    never = {"head_s": NEVER_S, "keep_alive_s": NEVER_S, "drain_s": NEVER_S}
    server = Encrypted(app, authority, Deadlines(**never | deadlines))
    server.start()
    assert server.ready.wait(WITHIN_S)
    try:
        yield server
    finally:
        server.stop()


def rest_of(connection: socket.socket) -> bytes:
    """All until the server ends the connection."""
    data = b""
    while piece := connection.recv(65_536):
        data += piece
    return data


def until(connection: socket.socket, end: bytes) -> bytes:
    """All up to *end*, which is the last that comes."""
    data = b""
    while not data.endswith(end):
        piece = connection.recv(65_536)
        assert piece, f"closed after {data!r}"
        data += piece
    return data


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    front = Front()
    yield front
    await front.log.aclose()


@pytest.fixture(
    scope="module", params=[HttptoolsProtocol, StrictH11Protocol], ids=["httptools", "h11"]
)
async def port(request: pytest.FixtureRequest) -> AsyncIterator[int]:
    """Where the `app` of the test's own module is served, with each parser."""
    async with serving(request.module.app, request.param) as port:
        yield port


@pytest.fixture
async def wire(port: int) -> AsyncIterator[WireConnection]:
    """A connection to it."""
    async with connected(port) as wire:
        yield wire


class PersistentConnection:
    """One connection over TLS; what comes behind an answer is kept for the next one."""

    def __init__(
        self, server: ServerProcess, tls: ssl.SSLContext, token: str, **fields: str
    ) -> None:
        plain = socket.create_connection(("127.0.0.1", server.client.port), timeout=WITHIN_S)
        self.socket = tls.wrap_socket(plain, server_hostname="localhost")
        self._site, self._token, self._fields = server, token, fields
        self._received = self.socket.makefile("rb")

    def close(self) -> None:
        self._received.close()
        self.socket.close()

    def message(self, note: str = "") -> bytes:
        """A call of `again`; its head is the same each time, but for the length."""
        arguments = {"note": note} if note else {}
        named, body = modern("tools/call", {"name": "again", "arguments": arguments})
        own = [("Host", self._site.client.authority), ("Origin", PAGE)]
        own += [(name.replace("_", "-"), value) for name, value in self._fields.items()]
        own += [("Authorization", f"Bearer {self._token}"), ("Content-Type", "application/json")]
        own += [("Content-Length", str(len(body)))]
        return request("POST", self._site.client.path, [*own, *named], body)

    def ask(self, note: str = "") -> RawAnswer:
        """Send it, and read the answer."""
        self.socket.sendall(self.message(note))
        return self.answer()

    def said(self, note: str = "") -> str:
        """Whose call it was."""
        text: str = result(self.ask(note))["content"][0]["text"]
        return text

    def warm(self) -> None:
        """Have a few requests served."""
        for _ in range(3):
            self.said()

    def answer(self) -> RawAnswer:
        """The next answer, which declares its length."""
        first = self._received.readline()
        if not first:
            raise ConnectionError("the server closed")
        fields = [(name.lower(), value) for name, value in parse_headers(self._received).items()]
        body = self._received.read(int(dict(fields)["content-length"]))
        return RawAnswer(int(first.split()[1]), fields, body)

    def until(self, status: int, has: bytes) -> None:
        """Ask until the answer is that, which it has to become."""

        def is_so() -> bool:
            answer = self.ask()
            return answer.status == status and has in answer.body

        eventually(is_so, within=WITHIN_S)
