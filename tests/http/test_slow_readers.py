"""What Gatepost keeps for clients that read slowly or not at all is bounded."""

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from starlette.types import Receive, Scope, Send

from gatepost.http.edge import respond
from gatepost.http.flow_control import UnreadLimits
from gatepost_authz.middleware import send_response
from tests.http.test_tls import ThreadedServer, threaded_server
from tests.support.connections import WITHIN_S
from tests.support.measuring import eventually
from tests.support.proxies import CertificateAuthority

MEGABYTE = 1_000_000
LARGE_BODY = bytes(range(250)) * 4 * 4000
"""Four megabytes: what a call may answer at most."""
GET_REQUEST = b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n"
LAST_REQUEST = b"GET %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
SMALL_BUFFER = {"SO_RCVBUF": 8_192}
"""As little as a client may take at once."""


class LargeAnswerApp:
    """Answers a large body in one step, in two, or as a stream without end."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.gone = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(scope["path"])
        if scope["path"] == "/stream":
            await self._streams(receive, send)
        elif scope["path"] == "/small":
            await send_response(send, 200, (), b"small")
        elif scope["path"] == "/whole":
            await send_response(send, 200, (), LARGE_BODY)
        else:
            await respond(send, 200, LARGE_BODY)

    async def _streams(self, receive: Receive, send: Send) -> None:
        async def speaks() -> None:
            while True:
                await send({"type": "http.response.body", "body": LARGE_BODY, "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": []})
        speaking = asyncio.create_task(speaks())
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone.set()
        speaking.cancel()


@pytest.fixture
def app() -> LargeAnswerApp:
    return LargeAnswerApp()


@pytest.fixture(scope="module", params=["plain", "TLS"])
def authority(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> CertificateAuthority | None:
    """Return the authority that certifies the server over TLS, whose buffers differ; else None."""
    return (
        CertificateAuthority(tmp_path_factory.mktemp("authority"))
        if request.param == "TLS"
        else None
    )


@contextlib.contextmanager
def limited_server(
    app: LargeAnswerApp, authority: CertificateAuthority | None, **limits: float
) -> Iterator[ThreadedServer]:
    """Serve with these limits and no others."""
    none = {"process_bytes": 0, "caller_bytes": 0, "bytes_per_s": 0, "window_s": 600.0}
    unread = UnreadLimits(**none | limits)  # type: ignore[arg-type]
    with threaded_server(app, authority, unread=unread) as server:
        yield server


def slow_client(server: ThreadedServer, path: bytes, address: str = "127.0.0.1") -> socket.socket:
    """Open a connection whose client has sent a request and reads nothing."""
    connection = server.opened(address, **SMALL_BUFFER)
    connection.sendall(GET_REQUEST % path)
    return connection


def body(connection: socket.socket, size: int = len(LARGE_BODY)) -> bytes:
    """Return the body of the next answer."""
    data = bytearray()
    while b"\r\n\r\n" not in data:
        data += read_piece(connection)
    data = data.partition(b"\r\n\r\n")[2]
    while len(data) < size:
        data += read_piece(connection)
    return bytes(data)


def read_piece(connection: socket.socket) -> bytes:
    piece = connection.recv(1 << 18)
    assert piece, "the server closed"
    return piece


def is_refused(connection: socket.socket) -> bool:
    """Return whether the rest of an answer never comes."""
    try:
        return len(body(connection)) < len(LARGE_BODY)
    except (OSError, AssertionError):
        return True


PATHS = [b"/whole", b"/parts", b"/stream"]


@pytest.mark.parametrize("path", PATHS)
def test_unread_answers_of_one_caller_are_limited(
    app: LargeAnswerApp,
    authority: CertificateAuthority | None,
    path: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The oldest unread answers are dropped; they filled the memory."""
    with (
        limited_server(app, authority, caller_bytes=5 * MEGABYTE * 2) as server,
        ExitStack() as open_,
    ):
        unread = server.server.config.unread
        connections = []
        for number in range(8):
            connections.append(open_.enter_context(slow_client(server, path)))
            eventually(lambda n=number: len(app.asked) == n + 1, within=WITHIN_S)
            eventually(lambda: unread.total >= 2 * MEGABYTE, within=WITHIN_S)
        eventually(lambda: len(server.server.server_state.connections) <= 2, within=WITHIN_S)

        assert unread.total <= 10 * MEGABYTE
        assert is_refused(connections[0])
        if path != b"/stream":
            assert body(connections[-1]) == LARGE_BODY
    warnings = [record for record in caplog.records if record.msg == "unread_answer_dropped"]
    assert warnings[0].levelno == logging.WARNING
    assert len(warnings) < 6, "a stranger must not fill the log"


def test_unread_answers_are_dropped_of_the_caller_with_the_most(
    app: LargeAnswerApp, authority: CertificateAuthority | None
) -> None:
    """Answers of other callers are kept when the process reaches its limit."""
    with (
        limited_server(app, authority, process_bytes=20 * MEGABYTE) as server,
        ExitStack() as open_,
    ):
        modest = [
            open_.enter_context(slow_client(server, b"/whole", "127.0.0.2")) for _ in range(2)
        ]
        eventually(lambda: server.server.config.unread.total >= 7 * MEGABYTE, within=WITHIN_S)
        for _ in range(10):
            open_.enter_context(slow_client(server, b"/whole"))
        eventually(lambda: len(app.asked) == 12, within=WITHIN_S)
        eventually(lambda: len(server.server.server_state.connections) <= 5, within=WITHIN_S)

        assert server.server.config.unread.total <= 20 * MEGABYTE
        assert [body(connection) for connection in modest] == [LARGE_BODY, LARGE_BODY]


def test_a_client_that_reads_too_slowly_is_disconnected(
    app: LargeAnswerApp, authority: CertificateAuthority | None
) -> None:
    """It reads a byte now and then, or none."""
    with (
        limited_server(app, authority, bytes_per_s=100_000, window_s=0.5) as server,
        ExitStack() as open_,
    ):
        silent, sipping = (
            [open_.enter_context(slow_client(server, p)) for p in PATHS] for _ in "ab"
        )

        def are_lost() -> bool:
            for connection in sipping:
                with contextlib.suppress(OSError):
                    connection.recv(1)
            return not server.server.server_state.connections

        eventually(lambda: len(app.asked) == 6, within=WITHIN_S)
        eventually(are_lost, within=WITHIN_S)
        assert server.server.config.unread.total == 0
        assert all(is_refused(connection) for connection in silent)


def test_a_client_that_reads_slowly_and_steadily_gets_all(
    app: LargeAnswerApp, authority: CertificateAuthority | None
) -> None:
    """The answer may take many times the measured interval."""
    waiting = threading.Event()
    with (
        limited_server(app, authority, bytes_per_s=20_000, window_s=0.2) as server,
        slow_client(server, b"/whole") as connection,
    ):
        data = bytearray()
        while len(data) < len(LARGE_BODY):
            data += read_piece(connection)
            waiting.wait(0.002)
    assert data.endswith(LARGE_BODY[-1000:])


def test_pipelined_requests_wait_until_the_answer_before_them_is_read(
    app: LargeAnswerApp, authority: CertificateAuthority | None
) -> None:
    """Their answers are not computed and kept before that."""
    with limited_server(app, authority) as server, slow_client(server, b"/whole") as connection:
        eventually(lambda: server.server.config.unread.total > MEGABYTE, within=WITHIN_S)
        connection.sendall(GET_REQUEST % b"/whole" + GET_REQUEST % b"/small")
        connection.sendall(GET_REQUEST % b"/small")
        with slow_client(server, b"/small") as other:
            assert body(other, 5) == b"small"
        assert app.asked == ["/whole", "/small"]

        data = bytearray(body(connection))
        while data.count(b"small", 2 * len(LARGE_BODY)) < 2:
            data += read_piece(connection)
        assert data.count(LARGE_BODY) == 2
        assert app.asked == ["/whole", "/small", "/whole", "/small", "/small"]


def test_a_malformed_request_is_refused_after_the_answer_before_it(
    app: LargeAnswerApp, authority: CertificateAuthority | None
) -> None:
    """The first answer arrives whole, also if the next request is incomplete."""
    with limited_server(app, authority) as server:
        for nonsense in (b"\x00\x00\r\n\r\n", b"GET"):
            with slow_client(server, b"/whole") as connection:
                eventually(lambda: server.server.config.unread.total > MEGABYTE, within=WITHIN_S)
                connection.sendall(nonsense)
                assert body(connection)[: len(LARGE_BODY)] == LARGE_BODY
            eventually(lambda: not server.server.server_state.connections, within=WITHIN_S)


@pytest.mark.parametrize("path", [b"/whole", b"/parts"])
def test_a_closing_connection_delivers_its_last_answer_whole(
    app: LargeAnswerApp, authority: CertificateAuthority | None, path: bytes
) -> None:
    """The connection closes after the kept part is read."""
    with limited_server(app, authority) as server, server.opened(**SMALL_BUFFER) as connection:
        connection.sendall(LAST_REQUEST % path)
        eventually(lambda: server.server.config.unread.total > MEGABYTE, within=WITHIN_S)
        assert body(connection) == LARGE_BODY
        assert connection.recv(1) == b""


def test_a_stop_waits_for_an_answer_that_a_client_is_reading(
    app: LargeAnswerApp, authority: CertificateAuthority | None
) -> None:
    """The client gets the whole answer."""
    with limited_server(app, authority) as server, slow_client(server, b"/whole") as connection:
        eventually(lambda: server.server.config.unread.total > MEGABYTE, within=WITHIN_S)
        server.server.should_exit = True
        assert body(connection) == LARGE_BODY
        server.stop()
