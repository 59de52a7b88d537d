"""Proxies (of HTTP that balance or add a token, of TCP, for CONNECT), and who certifies servers."""

import contextlib
import itertools
import socket
import socketserver
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx2
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.support.issuers import AsgiServer
from tests.support.processes import free_port

HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer"}


class Balancer:
    """
    Sends each request to the next of several servers, and every chunk back at once.

    Round robin, no affinity: what one server began, the other has to go on with. A server that
    does not accept connections is passed over. When the client hangs up, the request upstream ends
    too.
    """

    def __init__(self, upstreams: Sequence[str]) -> None:
        self.upstreams = upstreams
        self.turn = itertools.count()
        self.client: httpx2.AsyncClient | None = None

    def headers(self, scope: Scope, upstream: str) -> list[tuple[bytes, bytes]]:
        """Return the headers to send on, the body's length aside."""
        return list(scope["headers"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        body = await _body_of(receive)
        async with anyio.create_task_group() as group:
            group.start_soon(_until_hung_up, receive, group.cancel_scope)
            await self._exchange(scope, body, send)
            group.cancel_scope.cancel()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        # A connection kept open to a server that died meanwhile would lose the next request.
        limits = httpx2.Limits(max_keepalive_connections=0)
        async with httpx2.AsyncClient(timeout=None, trust_env=False, limits=limits) as self.client:
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    def _request(self, scope: Scope, body: bytes, upstream: str) -> httpx2.Request:
        query = f"?{scope['query_string'].decode()}" if scope["query_string"] else ""
        headers = [
            (name, value)
            for name, value in self.headers(scope, upstream)
            if name not in HOP_BY_HOP and name != b"content-length"
        ]
        if body or scope["method"] == "POST":
            headers.append((b"content-length", str(len(body)).encode()))
        url = f"{upstream}{scope['raw_path'].decode()}{query}"
        return httpx2.Request(scope["method"], url, headers=headers, content=body or None)

    async def _answer(self, scope: Scope, body: bytes) -> httpx2.Response | None:
        assert self.client is not None
        for _ in self.upstreams:
            upstream = self.upstreams[next(self.turn) % len(self.upstreams)]
            request = self._request(scope, body, upstream)
            try:
                return await self.client.send(request, stream=True, follow_redirects=False)
            except httpx2.ConnectError:
                continue
            except httpx2.TransportError:
                return None  # it may have been taken up, so no other client gets it
        return None

    async def _exchange(self, scope: Scope, body: bytes, send: Send) -> None:
        answer = await self._answer(scope, body)
        if answer is None:
            await send({"type": "http.response.start", "status": 502, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        try:
            headers = [(n, v) for n, v in answer.headers.raw if n.lower() not in HOP_BY_HOP]
            await send(
                {
                    "type": "http.response.start",
                    "status": answer.status_code,
                    "headers": [(name.lower(), value) for name, value in headers],
                }
            )
            async for chunk in answer.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except httpx2.TransportError:
            return  # the server died: the client's connection ends just as abruptly
        finally:
            with anyio.CancelScope(shield=True):
                await answer.aclose()


class TokenProxy(Balancer):
    """
    Stands before one server and replaces `Authorization`, for programs that cannot send a token.

    A `Host` or `Origin` that names the proxy becomes the server's own; any other value stays, so
    that the server is what refuses it.
    """

    def __init__(self, *, own: str, upstream: str, token: str) -> None:
        super().__init__([upstream])
        self.own = own.encode()
        self.token = f"Bearer {token}".encode()

    def headers(self, scope: Scope, upstream: str) -> list[tuple[bytes, bytes]]:
        """Return the headers to send on, with this proxy's token and the mapped addresses."""
        kept = [(n, v) for n, v in scope["headers"] if n != b"authorization"]
        mapped = [(name, self._mapped(name, value, upstream.encode())) for name, value in kept]
        return [*mapped, (b"authorization", self.token)]

    def _mapped(self, name: bytes, value: bytes, upstream: bytes) -> bytes:
        value = value.strip()  # no HTTP client would send the space around a value on
        if name == b"host" and value == self.own.partition(b"://")[2]:
            return upstream.partition(b"://")[2]
        return upstream if name == b"origin" and value == self.own else value


async def _body_of(receive: Receive) -> bytes:
    body = b""
    while True:
        message: Message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def _until_hung_up(receive: Receive, cancel: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    cancel.cancel()


@contextlib.contextmanager
def with_token(endpoint: str, token: str) -> Iterator[str]:
    """Run a proxy in front of *endpoint*; yields the address to use instead, on `localhost`."""
    port = free_port()
    own = f"http://localhost:{port}"
    parts = urlsplit(endpoint)
    upstream = f"{parts.scheme}://{parts.netloc}"
    app: ASGIApp = TokenProxy(own=own, upstream=upstream, token=token)
    with AsgiServer(app, port=port, lifespan="on"):
        yield f"{own}{parts.path}"


@contextlib.contextmanager
def balanced(upstreams: Sequence[str], port: int) -> Iterator[str]:
    """Run a balancer in front of these origins, on a port of one's choice; yields its origin."""
    with AsgiServer(Balancer(upstreams), port=port, lifespan="on") as server:
        yield server.url


COMMITTED_MESSAGES = (b"COMMIT\x00", b"INSERT 0 1\x00")
"""PostgreSQL's answers to a COMMIT, and to a statement that adds a row and commits by itself."""


class TcpProxy(socketserver.ThreadingTCPServer):
    """Passes bytes between its clients and a port of this machine."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, target: int) -> None:
        super().__init__(("127.0.0.1", 0), TcpConnection)
        self.target = target
        self.port: int = self.server_address[1]
        self.passing = threading.Event()
        """Cleared: as a network that swallows every packet, in both directions."""
        self.passing.set()
        self.ending = threading.Event()
        """Cleared: connections that the server ends stay open, though its last words arrive."""
        self.ending.set()
        self.ended: list[socket.socket] = []
        """The connections that the server has ended."""
        self.commits_to_lose = 0
        """Answers to a COMMIT that do not arrive, with the connection they belong to."""
        self.requests: list[bytes] = []
        """What a client has sent until each answer began: one for each round trip."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of connections that end in the middle."""


class TcpConnection(socketserver.BaseRequestHandler):
    """One connection and its other half."""

    server: TcpProxy
    asked = b""

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server.target), timeout=60) as there:
            there.settimeout(None)
            for end in (there, self.request):
                # What is sent arrives at once, and not when the other side has acknowledged more.
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=self.pump, args=(there, self.request), daemon=True)
            back.start()
            self.pump(self.request, there)
            back.join(60)

    def pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self.server.passing.wait()
                if source is self.request:
                    self.asked += data
                elif self.asked:
                    self.server.requests.append(self.asked)
                    self.asked = b""
                is_commit = source is not self.request and any(
                    one in data for one in COMMITTED_MESSAGES
                )
                if is_commit and self.server.commits_to_lose:
                    self.server.commits_to_lose -= 1
                    break
                sink.sendall(data)
        if source is not self.request:
            self.server.ended.append(source)
            self.server.ending.wait()
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def tcp_proxy(target: int) -> Iterator[TcpProxy]:
    """Run the proxy for the time of a block."""
    with TcpProxy(target) as server, in_a_thread(server):
        try:
            yield server
        finally:
            server.passing.set()
            server.ending.set()


@contextlib.contextmanager
def in_a_thread(server: socketserver.BaseServer) -> Iterator[None]:
    """Serve in a thread for the time of a block."""
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join(60)


class ConnectProxy(socketserver.ThreadingTCPServer):
    """
    Answers CONNECT and passes bytes: to *secure* for ports that end in 443, else to *plain*.

    Both are ports of this machine; without *plain*, every tunnel leads to *secure*. It remembers
    what it was asked for. *user* (`name:password@`) stands in its URL.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, secure: int, plain: int = 0, *, user: str = "") -> None:
        super().__init__(("127.0.0.1", 0), ConnectHandler)
        self.secure, self.plain = secure, plain or secure
        self.asked: list[str] = []
        self.head = b""
        """The newest request, whole."""
        self.url = f"http://{user}127.0.0.1:{self.server_address[1]}"


class ConnectHandler(socketserver.BaseRequestHandler):
    """One tunnel."""

    server: ConnectProxy

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            chunk = self.request.recv(4096)
            if not chunk:
                return
            head += chunk
        self.server.head = head
        asked = head.decode("latin-1").partition(" HTTP/")[0]
        self.server.asked.append(asked)
        port = self.server.secure if asked.endswith("443") else self.server.plain
        with socket.create_connection(("127.0.0.1", port), timeout=60) as there:
            self.request.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=pump, args=(there, self.request), daemon=True)
            back.start()
            pump(self.request, there)
            back.join(60)


def pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def connect_proxy(secure: int, plain: int = 0, *, user: str = "") -> Iterator[ConnectProxy]:
    """Run the proxy for the time of a block."""
    with ConnectProxy(secure, plain, user=user) as server, in_a_thread(server):
        yield server


class CertificateAuthority:
    """Signs certificates; ``bundle`` is its own, ``certify`` makes a server's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test company")])
        certificate = (
            self._builder(self.name, self.key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage(key_cert_sign=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False
            )
            .sign(self.key, hashes.SHA256())
        )
        self.bundle = folder / "company.pem"
        self.bundle.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def certify(self, host: str, *, hours: float = 1) -> tuple[str, str]:
        """Create a certificate for *host*, valid for *hours*; return its path and its key's."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        certificate = (
            self._builder(subject, key, hours=hours)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(usage(digital_signature=True), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )
        paths = self.folder / f"{host}.pem", self.folder / f"{host}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return str(paths[0]), str(paths[1])

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, hours: float = 1
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=2))
            .not_valid_after(now + timedelta(hours=hours))
        )


def usage(*, key_cert_sign: bool = False, digital_signature: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
