"""What a second adversary found on the wire, below any token; each stays found."""

import asyncio
import contextlib
import re
import socket

import pytest
from starlette.types import Receive, Scope, Send

from gatepost.http.httptools_protocol import HttptoolsProtocol
from tests.attacks.conftest import AttackedServer
from tests.support.client import RawAnswer, exchange, read_answer, request
from tests.support.connections import WITHIN_S, serving
from tests.support.connections import connected as opened
from tests.support.measuring import each

STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def connected(server: AttackedServer) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.client.port), timeout=10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def head(server: AttackedServer, *fields: str) -> bytes:
    """The head of a POST to the endpoint, with the fields that every test has."""
    usual = (f"POST {server.client.path} HTTP/1.1", f"Host: {server.client.authority}")
    return "\r\n".join((*usual, "Content-Type: application/json", *fields, "", "")).encode()


def healthy(server: AttackedServer, *fields: str) -> bytes:
    lines = ("GET /health HTTP/1.1", f"Host: {server.client.authority}", *fields, "", "")
    return "\r\n".join(lines).encode()


def statuses(connection: socket.socket) -> list[int]:
    """The status of every answer until the server closes."""
    received = b""
    try:
        while chunk := connection.recv(65_536):
            received += chunk
    except ConnectionResetError:
        pass
    return [int(status) for status in STATUS.findall(received)]


def token_field(server: AttackedServer) -> str:
    return f"Authorization: Bearer {server.tokens().token()}"


def settled(server: AttackedServer) -> None:
    """Return when the server has read what was sent before: it answers in turn."""
    for _ in range(3):
        with connected(server) as other:
            other.sendall(healthy(server, "Connection: close"))
            assert read_answer(other).status == 200


def refused_before_its_body(
    server: AttackedServer, connection: socket.socket, size: int
) -> RawAnswer:
    connection.sendall(head(server, f"Content-Length: {size}"))
    answer = read_answer(connection)
    assert answer.status == 401
    return answer


def test_the_unread_body_of_a_refused_request_holds_no_request(server: AttackedServer) -> None:
    """It was taken for a head, and each `upgrade:` in it made it longer: the rest was a request."""
    smuggled = healthy(server, "X-Padding: 1")
    smuggled += b" " * (len(smuggled) % 2)
    body = b"\r\nupgrade:" * (len(smuggled) // 2) + b"\r\n\r\n" + smuggled

    with connected(server) as connection:
        refused_before_its_body(server, connection, len(body))
        connection.sendall(body)
        settled(server)
        connection.sendall(healthy(server, "Connection: close"))
        after = statuses(connection)

    assert after == [200]


def test_the_unread_body_of_a_refused_request_is_no_large_head(server: AttackedServer) -> None:
    """A client that uploads with an expired token got 401, then 431, then a reset."""
    size = 1_000_000

    with connected(server) as connection:
        refused_before_its_body(server, connection, size)
        connection.sendall(b"x" * size)
        connection.sendall(healthy(server, "Connection: close"))
        after = statuses(connection)

    assert after == [200]


@pytest.mark.parametrize("pieces", [("UpGrade: h2c\r\n",), ("Upgr", "ade: h2c\r\n")])
def test_a_body_is_no_request_however_an_upgrade_is_offered(
    server: AttackedServer, pieces: tuple[str, ...]
) -> None:
    """The parser skips the body of a request with an upgrade and takes it for the next request."""
    smuggled = healthy(server, "Connection: close")
    start = head(server, "Connection: upgrade").removesuffix(b"\r\n")

    with connected(server) as connection:
        for piece in (*pieces[:-1], f"{pieces[-1]}Content-Length: {len(smuggled)}\r\n\r\n"):
            connection.sendall(start + piece.encode())
            start = b""
            settled(server)
        with contextlib.suppress(OSError):
            connection.sendall(smuggled)
            connection.shutdown(socket.SHUT_WR)
        answered = statuses(connection)

    assert answered in ([400], [401])


def test_a_connection_serves_clients_that_send_head_and_body_apart(server: AttackedServer) -> None:
    """The heads added up over requests, and after some hundred the connection was cut."""
    beginning = head(server, token_field(server), "Content-Length: 2", f"X-Filler: {'x' * 8_000}")
    answered = 0

    with connected(server) as connection:
        for _ in range(40):
            connection.sendall(beginning)
            settled(server)
            connection.sendall(b"{}")
            answered += read_answer(connection).status == 400

    assert answered == 40


async def test_a_packet_of_small_requests_is_not_all_kept_waiting() -> None:
    """Fourteen thousand fit into one: they held the loop for long, and fifty megabytes."""
    began: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        began.append(scope["path"])
        while (await receive())["type"] != "http.disconnect":
            pass

    async with serving(app, HttptoolsProtocol) as port, opened(port) as wire:
        await wire.send(b"GET / HTTP/1.1\r\n\r\n" * 14_000)
        # It is cut; what was still unread may take the answer with it.
        assert (await wire.rest())[:12] in {b"", b"HTTP/1.1 400"}

    assert len(began) == 1


async def test_a_request_hears_of_its_client_going_though_another_waits_behind_it() -> None:
    """Hanging up takes a request back (T-11); of two that were pipelined, the second was told."""
    gone = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async with serving(app, HttptoolsProtocol) as port:
        async with opened(port) as wire:
            await wire.send(b"GET / HTTP/1.1\r\n\r\n" * 2)
        await asyncio.wait_for(gone.wait(), WITHIN_S)


async def test_a_client_that_reads_nothing_is_cut_off() -> None:
    """It held its request, the answer and the connection for as long as it cared to stay."""
    gone = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(4):
            await send({"type": "http.response.body", "body": b"x" * 4_000_000, "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async with serving(app, HttptoolsProtocol) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            await asyncio.wait_for(gone.wait(), WITHIN_S)


@each("path", ["/health", "/readyz"])
@each("method", ["CONNECT", "POST", "DELETE"])
def test_a_probe_is_asked_by_get_alone(server: AttackedServer, method: str, path: str) -> None:
    """A CONNECT that was answered 200 raised in one of the parsers: a traceback for the asking."""
    head = [("Host", server.client.authority), ("Connection", "close"), ("Content-Length", "0")]
    answer = exchange(server.client.port, request(method, path, head))

    assert answer.status in {401, 405}
    assert answer.field("allow") in {None, "GET, HEAD"}
    assert "Traceback" not in server.log()
