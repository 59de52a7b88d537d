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
    """Return the head of a POST to the endpoint, with the fields that every test has."""
    usual = (f"POST {server.client.path} HTTP/1.1", f"Host: {server.client.authority}")
    return "\r\n".join((*usual, "Content-Type: application/json", *fields, "", "")).encode()


def health_request(server: AttackedServer, *fields: str) -> bytes:
    lines = ("GET /health HTTP/1.1", f"Host: {server.client.authority}", *fields, "", "")
    return "\r\n".join(lines).encode()


def statuses(connection: socket.socket) -> list[int]:
    """Return the status of every answer until the server closes."""
    received = b""
    try:
        while chunk := connection.recv(65_536):
            received += chunk
    except ConnectionResetError:
        pass
    return [int(status) for status in STATUS.findall(received)]


def token_field(server: AttackedServer) -> str:
    return f"Authorization: Bearer {server.tokens().token()}"


def wait_until_read(server: AttackedServer) -> None:
    """Return when the server has read what was sent before: it answers in turn."""
    for _ in range(3):
        with connected(server) as other:
            other.sendall(health_request(server, "Connection: close"))
            assert read_answer(other).status == 200


def refused_before_its_body(
    server: AttackedServer, connection: socket.socket, size: int
) -> RawAnswer:
    connection.sendall(head(server, f"Content-Length: {size}"))
    answer = read_answer(connection)
    assert answer.status == 401
    return answer


def test_the_unread_body_of_a_refused_request_is_not_parsed_as_a_request(
    server: AttackedServer,
) -> None:
    """An `upgrade:` line in the body does not make the parser read a request in it."""
    smuggled = health_request(server, "X-Padding: 1")
    smuggled += b" " * (len(smuggled) % 2)
    body = b"\r\nupgrade:" * (len(smuggled) // 2) + b"\r\n\r\n" + smuggled

    with connected(server) as connection:
        refused_before_its_body(server, connection, len(body))
        connection.sendall(body)
        wait_until_read(server)
        connection.sendall(health_request(server, "Connection: close"))
        after = statuses(connection)

    assert after == [200]


def test_the_unread_body_of_a_refused_request_is_not_counted_as_a_head(
    server: AttackedServer,
) -> None:
    """A client that uploads with an expired token gets 401 and can send the next request."""
    size = 1_000_000

    with connected(server) as connection:
        refused_before_its_body(server, connection, size)
        connection.sendall(b"x" * size)
        connection.sendall(health_request(server, "Connection: close"))
        after = statuses(connection)

    assert after == [200]


@pytest.mark.parametrize("pieces", [("UpGrade: h2c\r\n",), ("Upgr", "ade: h2c\r\n")])
def test_the_body_of_an_upgrade_request_is_not_parsed_as_a_request(
    server: AttackedServer, pieces: tuple[str, ...]
) -> None:
    """The parser skips the body of an upgrade request, also if the field comes in pieces."""
    smuggled = health_request(server, "Connection: close")
    start = head(server, "Connection: upgrade").removesuffix(b"\r\n")

    with connected(server) as connection:
        for piece in (*pieces[:-1], f"{pieces[-1]}Content-Length: {len(smuggled)}\r\n\r\n"):
            connection.sendall(start + piece.encode())
            start = b""
            wait_until_read(server)
        with contextlib.suppress(OSError):
            connection.sendall(smuggled)
            connection.shutdown(socket.SHUT_WR)
        answered = statuses(connection)

    assert answered in ([400], [401])


def test_a_connection_serves_many_requests_whose_head_and_body_arrive_apart(
    server: AttackedServer,
) -> None:
    """The sizes of heads do not add up over the requests of a connection."""
    beginning = head(server, token_field(server), "Content-Length: 2", f"X-Filler: {'x' * 8_000}")
    answered = 0

    with connected(server) as connection:
        for _ in range(40):
            connection.sendall(beginning)
            wait_until_read(server)
            connection.sendall(b"{}")
            answered += read_answer(connection).status == 400

    assert answered == 40


async def test_a_connection_with_too_many_pipelined_requests_is_closed() -> None:
    """One packet holds fourteen thousand requests, which took time and fifty megabytes."""
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


async def test_a_disconnect_reaches_the_first_of_two_pipelined_requests() -> None:
    """A client that disconnects cancels its request (T-11), also before a pipelined one."""
    gone = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async with serving(app, HttptoolsProtocol) as port:
        async with opened(port) as wire:
            await wire.send(b"GET / HTTP/1.1\r\n\r\n" * 2)
        await asyncio.wait_for(gone.wait(), WITHIN_S)


async def test_a_client_that_does_not_read_its_answer_is_disconnected() -> None:
    """Such a client kept its request, the answer and the connection without a time limit."""
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
def test_probes_accept_get_requests_only(server: AttackedServer, method: str, path: str) -> None:
    """A CONNECT that is answered with 200 raises in one of the parsers."""
    head = [("Host", server.client.authority), ("Connection", "close"), ("Content-Length", "0")]
    before = len(server.log())  # other tests of this process write there, too
    answer = exchange(server.client.port, request(method, path, head))

    assert answer.status in {401, 405}
    assert answer.field("allow") in {None, "GET, HEAD"}
    assert "Traceback" not in server.log()[before:]
