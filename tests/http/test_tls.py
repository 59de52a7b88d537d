"""TLS of Gatepost itself: deadlines hold from the first byte, and a stop waits for no client."""

import asyncio
import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import parse_headers
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send

from gatepost.http.deadlines import Deadlines
from gatepost.http.edge import respond
from gatepost.http.file_descriptors import DescriptorLimits
from gatepost.runtime import http_server as listen
from gatepost.runtime.http_server import GatepostServer, bind, listen_config, tls_context
from tests.support.client import RawAnswer, modern_request, request, result
from tests.support.commands import ServerProcess
from tests.support.connections import PAGE, WITHIN_S
from tests.support.measuring import eventually
from tests.support.proxies import CertificateAuthority

STOPS_WITHIN_S = 25
"""Less than the half minute that TLS waits for a client's word."""


NEVER_S = 600
"""Longer than any test waits."""


class ThreadedServer(threading.Thread):
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
        """Return a connection that is ready for requests, from one of the client's addresses."""
        plain = self.plain(address, **options)
        if not self._speaks_tls:
            return plain
        return self.trusting.wrap_socket(plain, server_hostname="localhost")

    def plain(self, address: str = "127.0.0.1", **options: int) -> socket.socket:
        """Return a connection on which no bytes have been sent yet."""
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
        """Return an encrypted connection; it raises if it is cut, and reads empty if it ends."""
        return self.trusting.wrap_socket(
            self.plain(**options), server_hostname="localhost", suppress_ragged_eofs=False
        )

    def stop(self) -> None:
        """Have it stop, and return once it has."""
        self.server.should_exit = True
        self.join(STOPS_WITHIN_S)
        assert not self.is_alive(), "the server did not end"


@contextmanager
def threaded_server(
    app: ASGIApp, authority: CertificateAuthority | None, **deadlines: Any
) -> Iterator[ThreadedServer]:
    """Serve for the time of a block; every deadline that is not given never comes."""
    never = {"head_s": NEVER_S, "keep_alive_s": NEVER_S, "drain_s": NEVER_S}
    server = ThreadedServer(app, authority, Deadlines(**never | deadlines))
    server.start()
    assert server.ready.wait(WITHIN_S)
    try:
        yield server
    finally:
        server.stop()


def rest_of(connection: socket.socket) -> bytes:
    """Return all bytes until the server ends the connection."""
    data = b""
    while piece := connection.recv(65_536):
        data += piece
    return data


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """Return all bytes up to *end*, which must be the last that come."""
    data = b""
    while not data.endswith(end):
        piece = connection.recv(65_536)
        assert piece, f"closed after {data!r}"
        data += piece
    return data


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
        """Return a call of `again`; its head differs only in the length."""
        arguments = {"note": note} if note else {}
        named, body = modern_request("tools/call", {"name": "again", "arguments": arguments})
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
        """Return whose call it was."""
        text: str = result(self.ask(note))["content"][0]["text"]
        return text

    def warm(self) -> None:
        """Have a few requests served."""
        for _ in range(3):
            self.said()

    def answer(self) -> RawAnswer:
        """Return the next answer, which declares its length."""
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


LARGE_BODY = b"x" * 8_000_000
GET_REQUEST = b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n"


class DelayedAnswerApp:
    """Answers at once; at /held and /broken when it may; at /large more than any buffer holds."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.answered = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in ("/held", "/broken"):
            self.begun.set()
            await asyncio.to_thread(self.may_end.wait, WITHIN_S)
        if scope["path"] == "/broken":
            return
        await respond(send, 200, LARGE_BODY if scope["path"] == "/large" else b"{}")
        self.answered.set()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def app() -> DelayedAnswerApp:
    return DelayedAnswerApp()


@pytest.fixture
def server(app: DelayedAnswerApp, authority: CertificateAuthority) -> Iterator[ThreadedServer]:
    with threaded_server(app, authority) as server:
        yield server


def hello(server: ThreadedServer) -> bytes:
    """Return the first message of a TLS client."""
    heard, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = server.trusting.wrap_bio(heard, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.requirement("W22")
@pytest.mark.parametrize("part", [0, 1, 60])
def test_a_handshake_has_the_deadline_of_a_head(
    authority: CertificateAuthority, app: DelayedAnswerApp, part: int
) -> None:
    """A client that sends nothing, or half a handshake, is disconnected."""
    with threaded_server(app, authority, head_s=0.5) as server, server.plain() as silent:
        silent.sendall(hello(server)[:part])
        with contextlib.suppress(ConnectionResetError):
            assert silent.recv(1) == b""


CBC = ["ECDHE-ECDSA-AES128-SHA256", "ECDHE-ECDSA-AES256-SHA", "ECDHE-ECDSA-AES128-CCM"]
GCM = ["ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"]


@pytest.mark.parametrize("suite", [*CBC, *GCM])
def test_tls_1_2_clients_get_only_suites_of_mozillas_intermediate_list(
    server: ThreadedServer, suite: str
) -> None:
    """Clients with other suites are refused."""
    server.trusting.maximum_version = ssl.TLSVersion.TLSv1_2
    server.trusting.set_ciphers(f"{suite}:@SECLEVEL=0")
    if suite in CBC:
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            server.connected().close()
    else:
        with server.connected() as connection:
            assert (connection.cipher() or ("",))[0] == suite


def test_unfinished_handshakes_are_closed_for_new_clients(
    authority: CertificateAuthority, app: DelayedAnswerApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that only connect held descriptors that others need."""
    clients = 60
    # Both ends of a connection are this process's: all the clients' ends fit, and half of ours.
    near = len(os.listdir("/proc/self/fd")) + clients + clients // 2
    room = DescriptorLimits(almost_full=near, full=near + 10)
    monkeypatch.setattr(listen, "DescriptorLimits", SimpleNamespace(of_process=lambda **_: room))
    with threaded_server(app, authority) as server, contextlib.ExitStack() as open_:
        for _ in range(clients):
            open_.enter_context(server.plain())
        with server.connected() as client:
            client.sendall(GET_REQUEST % b"/")
            assert read_until(client, b"{}").startswith(b"HTTP/1.1 200")


# uvloop warns about everything open when it ends; in its own process it warns no test.
@pytest.mark.filterwarnings("ignore:unclosed resource:ResourceWarning")
def test_a_stop_does_not_wait_for_handshakes(server: ThreadedServer) -> None:
    """Unfinished handshakes do not count as connections."""
    with server.plain(), server.plain() as half:
        half.sendall(hello(server)[:60])
        server.stop()


STATES = {
    "nothing was asked": b"",
    "half a head has come": GET_REQUEST[:20],
    "it was answered": GET_REQUEST % b"/",
    "it was answered, and half a head has come": GET_REQUEST % b"/" + GET_REQUEST[:20],
    "it was answered for the last time": b"GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n",
    "it was refused": b"nonsense\r\n\r\n",
}


@pytest.mark.parametrize("state", STATES)
def test_a_stop_does_not_wait_for_idle_tls_clients(server: ThreadedServer, state: str) -> None:
    """Clients that never acknowledge the TLS close must not delay a stop."""
    sent = STATES[state]
    with server.connected() as client, server.connected() as other:
        other.sendall(GET_REQUEST % b"/")
        assert read_until(other, b"{}")
        client.sendall(sent)
        if state != "half a head has come" and sent:
            assert client.recv(1) == b"H"
        server.stop()
        with contextlib.suppress(OSError):
            rest_of(client)
        assert rest_of(other) == b"", "the end was said, and is no cut"


@pytest.mark.parametrize("pipelined", [0, 3])
def test_a_connection_closes_after_the_answer_that_a_stop_waited_for(
    app: DelayedAnswerApp, server: ThreadedServer, pipelined: int
) -> None:
    """Further requests on that connection are not served."""
    with server.connected() as client:
        client.sendall(GET_REQUEST % b"/held" + GET_REQUEST % b"/" * pipelined)
        assert app.begun.wait(WITHIN_S)
        server.server.should_exit = True
        eventually(lambda: not accepts(server), within=WITHIN_S)
        app.may_end.set()
        server.stop()
        answer = rest_of(client)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"\r\n\r\n{}" in answer


def test_a_stop_does_not_wait_for_a_client_whose_request_failed(
    app: DelayedAnswerApp, server: ThreadedServer
) -> None:
    """The client gets 500 and need not acknowledge it."""
    with server.connected() as client:
        client.sendall(GET_REQUEST % b"/broken")
        assert app.begun.wait(WITHIN_S)
        server.server.should_exit = True
        eventually(lambda: not accepts(server), within=WITHIN_S)
        app.may_end.set()
        server.stop()
        assert rest_of(client).startswith(b"HTTP/1.1 500 ")


def accepts(server: ThreadedServer) -> bool:
    """Return whether the server accepts connections."""
    try:
        server.plain().close()
    except (ConnectionRefusedError, ConnectionResetError):
        return False  # reset: it was in the queue when the socket was closed
    return True


def test_a_stop_waits_for_a_slow_reader(app: DelayedAnswerApp, server: ThreadedServer) -> None:
    """A large answer arrives whole, although the client still reads when the stop begins."""
    with server.connected(SO_RCVBUF=4096) as client:
        client.sendall(GET_REQUEST % b"/large")
        assert app.answered.wait(WITHIN_S)
        server.server.should_exit = True
        eventually(lambda: not accepts(server), within=WITHIN_S)
        answer = rest_of(client)
    assert answer.partition(b"\r\n\r\n")[2] == LARGE_BODY


@pytest.mark.slow
def test_a_tls_client_that_does_not_read_is_disconnected(
    app: DelayedAnswerApp, authority: CertificateAuthority
) -> None:
    """The idle time ends the connection although the answer is unread."""
    with (
        threaded_server(app, authority, keep_alive_s=1) as server,
        server.connected(SO_RCVBUF=4096) as client,
    ):
        client.sendall(GET_REQUEST % b"/large")
        assert app.answered.wait(WITHIN_S)
        eventually(lambda: not server.server.server_state.connections, within=WITHIN_S + 30)
        with pytest.raises((ConnectionResetError, ssl.SSLEOFError)):
            rest_of(client)


def test_plain_http_on_a_tls_port_is_not_answered(server: ThreadedServer) -> None:
    """The next client over TLS is served."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=WITHIN_S) as plain:
        plain.sendall(GET_REQUEST % b"/")
        with contextlib.suppress(ConnectionResetError):
            assert not plain.recv(4096).startswith(b"HTTP/")
    with server.connected() as client:
        client.sendall(GET_REQUEST % b"/")
        assert read_until(client, b"{}")
