"""TLS of Gatepost itself: deadlines hold from the first byte, and a stop waits for no client."""

import asyncio
import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from starlette.types import Receive, Scope, Send

from gatepost.http.edge import respond
from gatepost.http.file_descriptors import DescriptorLimits
from gatepost.runtime import http_server as listen
from tests.http.conftest import WITHIN_S, Encrypted, encrypted, rest_of, until
from tests.support.measuring import eventually
from tests.support.proxies import CertificateAuthority

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
def server(app: DelayedAnswerApp, authority: CertificateAuthority) -> Iterator[Encrypted]:
    with encrypted(app, authority) as server:
        yield server


def hello(server: Encrypted) -> bytes:
    """What a client says first."""
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
    """A client that sends nothing, or half a handshake, holds no connection for a minute."""
    with encrypted(app, authority, head_s=0.5) as server, server.plain() as silent:
        silent.sendall(hello(server)[:part])
        with contextlib.suppress(ConnectionResetError):
            assert silent.recv(1) == b""


CBC = ["ECDHE-ECDSA-AES128-SHA256", "ECDHE-ECDSA-AES256-SHA", "ECDHE-ECDSA-AES128-CCM"]
GCM = ["ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"]


@pytest.mark.parametrize("suite", [*CBC, *GCM])
def test_an_older_client_gets_a_modern_suite_or_none(server: Encrypted, suite: str) -> None:
    """With TLS 1.2 only what Mozilla's intermediate configuration names is spoken."""
    server.trusting.maximum_version = ssl.TLSVersion.TLSv1_2
    server.trusting.set_ciphers(f"{suite}:@SECLEVEL=0")
    if suite in CBC:
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            server.connected().close()
    else:
        with server.connected() as connection:
            assert (connection.cipher() or ("",))[0] == suite


def test_handshakes_that_do_not_end_make_room(
    authority: CertificateAuthority, app: DelayedAnswerApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that only connect held the descriptors that others need."""
    clients = 60
    # Both ends of a connection are this process's: all the clients' ends fit, and half of ours.
    near = len(os.listdir("/proc/self/fd")) + clients + clients // 2
    room = DescriptorLimits(near=near, full=near + 10)
    monkeypatch.setattr(listen, "DescriptorLimits", SimpleNamespace(here=lambda **_: room))
    with encrypted(app, authority) as server, contextlib.ExitStack() as open_:
        for _ in range(clients):
            open_.enter_context(server.plain())
        with server.connected() as client:
            client.sendall(GET_REQUEST % b"/")
            assert until(client, b"{}").startswith(b"HTTP/1.1 200")


# uvloop warns about everything open when it ends; in its own process it warns no test.
@pytest.mark.filterwarnings("ignore:unclosed resource:ResourceWarning")
def test_a_stop_does_not_wait_for_handshakes(server: Encrypted) -> None:
    """They are no connections yet."""
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
def test_a_stop_does_not_wait_for_a_client_that_says_nothing(server: Encrypted, state: str) -> None:
    """
    A transport over TLS says that it closes, and waited until the client said so too: every idle
    connection of a pool, which is not read, delayed a stop until the end of the drain.
    """
    sent = STATES[state]
    with server.connected() as client, server.connected() as other:
        other.sendall(GET_REQUEST % b"/")
        assert until(other, b"{}")
        client.sendall(sent)
        if state != "half a head has come" and sent:
            assert client.recv(1) == b"H"
        server.stop()
        with contextlib.suppress(OSError):
            rest_of(client)
        assert rest_of(other) == b"", "the end was said, and is no cut"


@pytest.mark.parametrize("pipelined", [0, 3])
def test_an_answer_that_a_stop_waits_for_is_the_last(
    app: DelayedAnswerApp, server: Encrypted, pipelined: int
) -> None:
    """It is finished and sent; its connection ends with it, whatever else was asked there."""
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


def test_a_stop_does_not_wait_behind_an_answer_that_never_came(
    app: DelayedAnswerApp, server: Encrypted
) -> None:
    """The application failed meanwhile: its client is told, and need not acknowledge it."""
    with server.connected() as client:
        client.sendall(GET_REQUEST % b"/broken")
        assert app.begun.wait(WITHIN_S)
        server.server.should_exit = True
        eventually(lambda: not accepts(server), within=WITHIN_S)
        app.may_end.set()
        server.stop()
        assert rest_of(client).startswith(b"HTTP/1.1 500 ")


def accepts(server: Encrypted) -> bool:
    """Whether it takes connections."""
    try:
        server.plain().close()
    except (ConnectionRefusedError, ConnectionResetError):
        return False  # reset: it was in the queue when the socket was closed
    return True


def test_a_stop_waits_for_a_slow_reader(app: DelayedAnswerApp, server: Encrypted) -> None:
    """All of a large answer arrives, although it is still on its way when the stop begins."""
    with server.connected(SO_RCVBUF=4096) as client:
        client.sendall(GET_REQUEST % b"/large")
        assert app.answered.wait(WITHIN_S)
        server.server.should_exit = True
        eventually(lambda: not accepts(server), within=WITHIN_S)
        answer = rest_of(client)
    assert answer.partition(b"\r\n\r\n")[2] == LARGE_BODY


@pytest.mark.slow
def test_a_client_that_reads_nothing_is_given_up(
    app: DelayedAnswerApp, authority: CertificateAuthority
) -> None:
    """The idle time of a connection is over also where its answer lies unread."""
    with (
        encrypted(app, authority, keep_alive_s=1) as server,
        server.connected(SO_RCVBUF=4096) as client,
    ):
        client.sendall(GET_REQUEST % b"/large")
        assert app.answered.wait(WITHIN_S)
        eventually(lambda: not server.server.server_state.connections, within=WITHIN_S + 30)
        with pytest.raises((ConnectionResetError, ssl.SSLEOFError)):
            rest_of(client)


def test_a_connection_in_the_clear_is_none(server: Encrypted) -> None:
    """Plain HTTP is no greeting: it is not answered, and the next client is."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=WITHIN_S) as plain:
        plain.sendall(GET_REQUEST % b"/")
        with contextlib.suppress(ConnectionResetError):
            assert not plain.recv(4096).startswith(b"HTTP/")
    with server.connected() as client:
        client.sendall(GET_REQUEST % b"/")
        assert until(client, b"{}")
