"""A server on the loop of production, mostly with TLS, and an edge as production builds it."""

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from starlette.types import ASGIApp

from gatepost.http.deadlines import Deadlines
from gatepost.http.h11_protocol import StrictH11Protocol
from gatepost.http.httptools_protocol import HttptoolsProtocol
from gatepost.runtime.http_server import GatepostServer, bind, listen_config, tls_context
from tests.http.wire import Front, WireConnection, connected, serving
from tests.support.client import RawAnswer, modern, request, result
from tests.support.commands import ServerProcess, ended, server_process
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.processes import free_port
from tests.support.server import Settings, issuer_settings
from tests.support.tokens import CertificateAuthority

WITHIN_S = 30
STOPS_WITHIN_S = 25
"""Less than the half minute that TLS waits for a client's word."""
NEVER_S = 600
"""Longer than any test waits."""


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


TOOLS = '''
"""A tool that says whose call it is."""

from gatepost import CallContext, Pack

pack = Pack("again")


@pack.tool(read_only=True)
async def again(ctx: CallContext, note: str = "") -> str:
    """Say whose call this is."""
    return f"{ctx.caller.tenant_id}"
'''
PAGE = "https://app.example.com"
"""Where the page comes from that sends these requests."""


class PersistentConnection:
    """One connection over TLS; what comes behind an answer is kept for the next one."""

    def __init__(
        self, server: ServerProcess, tls: ssl.SSLContext, token: str, **fields: str
    ) -> None:
        plain = socket.create_connection(("127.0.0.1", server.client.port), timeout=WITHIN_S)
        self.socket = tls.wrap_socket(plain, server_hostname="localhost")
        self._site, self._token, self._fields = server, token, fields
        self._rest = b""

    def close(self) -> None:
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
        while b"\r\n\r\n" not in self._rest:
            self._read()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        fields = [(n.strip().lower(), v.strip()) for n, _, v in (x.partition(":") for x in lines)]
        length = int(dict(fields)["content-length"])
        while len(self._rest) < length:
            self._read()
        body, self._rest = self._rest[:length], self._rest[length:]
        return RawAnswer(int(first.split()[1]), fields, body)

    def _read(self) -> None:
        data = self.socket.recv(65_536)
        if not data:
            raise ConnectionError(f"the server closed after {self._rest!r}")
        self._rest += data

    def until(self, status: int, has: bytes) -> None:
        """Ask until the answer is that, which it has to become."""

        def is_so() -> bool:
            answer = self.ask()
            return answer.status == status and has in answer.body

        eventually(is_so, within=WITHIN_S)


class Secure:
    """The server, and the connections to it."""

    def __init__(
        self, server: ServerProcess, authority: CertificateAuthority, usual: Settings
    ) -> None:
        self.process, self.authority, self._usual = server, authority, usual
        self.tls = ssl.create_default_context(cafile=str(authority.bundle))

    @contextmanager
    def kept(self, token: str = "", **fields: str) -> Iterator[PersistentConnection]:
        """A connection on which every head is the same; *fields* join it, `_` written for `-`."""
        one = PersistentConnection(self.process, self.tls, token or self.process.token(), **fields)
        try:
            yield one
        finally:
            one.close()

    @contextmanager
    def changed(self, changes: Mapping[str, Any]) -> Iterator[None]:
        """These tables are in force inside the block, by a reload; the usual ones behind it."""
        try:
            self.process.reload(**changes)
            yield
        finally:
            self.process.configured = dict(self._usual)
            self.process.reload()

    def order(self, *words: str) -> str:
        """Have an operator run a command of `gatepost`; what it says."""
        code, told, complaints = ended(*words, cwd=self.process.folder)
        assert code == 0, complaints
        return told


@contextmanager
def secure(idp: Idp, folder: Path) -> Iterator[Secure]:
    """`gatepost serve` with a certificate, until the block ends."""
    authority = CertificateAuthority(folder)
    certificate, key = authority.certify("localhost")
    port = free_port()
    (folder / "again.py").write_text(TOOLS, encoding="utf-8")
    usual = {
        "resource": f"https://localhost:{port}/mcp",
        "listen": {
            "port": port,
            "drain_s": 10,
            "tls_certificate": certificate,
            "tls_key": key,
            "allowed_origins": [PAGE],
            "trusted_proxies": ["127.0.0.1/32"],
        },
        "tools": {"packs": ["demo"], "load": ["./again.py"]},
        "storage": {"database": "sqlite:///gatepost.db"},
    }
    with server_process(idp, folder, [main(idp), second(idp)], **usual) as server:
        yield Secure(server, authority, dict(server.configured))


def main(idp: Idp, **settings: Any) -> Settings:
    """The usual issuer, which gives no time to clocks."""
    return issuer_settings(idp, **{"tenants": {"acme": "acme"}, "leeway_s": 0} | settings)


def second(idp: Idp, **settings: Any) -> Settings:
    """Another one, with tenants of its own."""
    return issuer_settings(idp, "second", **{"tenants": {"two": "two"}, "leeway_s": 0} | settings)


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
