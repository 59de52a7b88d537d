"""The socket, with both parsers: deadlines for heads, unread bodies, odd requests."""

import asyncio
import contextlib

import pytest
from starlette.types import Receive, Scope, Send

from gatepost.http.deadlines import HEAD_LINES_BYTES
from gatepost.http.edge import respond
from tests.support.connections import WITHIN_S, WireConnection, port, wire_connection
from tests.support.measuring import capture_logs

__all__ = ["port", "wire_connection"]  # fixtures

REQUEST_HEAD = b"POST /read HTTP/1.1\r\nhost: h\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body at /read and answer its size; answer all other paths at once."""
    size = 0
    if scope["path"] == "/read":
        more = True
        while more:
            message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
    await respond(send, 200 if scope["path"] == "/read" else 401, b"%d" % size)


async def send_repeatedly(wire_connection: WireConnection, data: bytes, count: int) -> bytes:
    """Send *data* again and again until the server answers or closes."""
    # Read all the time: the system drops an unread answer when it sends to a closed connection.
    answer = asyncio.ensure_future(wire_connection.reader.read(65_536))
    for _ in range(count):
        with contextlib.suppress(ConnectionError):
            await wire_connection.send(data)
        await asyncio.wait({answer}, timeout=0.05)
        if answer.done():
            return b"" if answer.exception() else answer.result()
    raise AssertionError("the server waited for ever")


@pytest.mark.requirement("W22")
async def test_a_request_head_that_arrives_too_slowly_is_cut_off(
    wire_connection: WireConnection,
) -> None:
    """A client cannot hold a connection with a byte now and then."""
    await wire_connection.send(REQUEST_HEAD)

    assert (await send_repeatedly(wire_connection, b"a", 100)).startswith(b"HTTP/1.1 408 ")


async def test_a_silent_connection_is_closed(wire_connection: WireConnection) -> None:
    """A connection without a request gets no answer."""
    assert await wire_connection.rest() == b""


async def test_empty_lines_do_not_keep_an_idle_connection_open(
    wire_connection: WireConnection,
) -> None:
    """They begin no request, but would stop the timer of an idle connection."""
    await wire_connection.send(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
    await asyncio.wait_for(wire_connection.reader.readuntil(b"\r\n\r\n0"), WITHIN_S)

    assert b"HTTP/1.1 200" not in await send_repeatedly(wire_connection, b"\r\n", 100)


@pytest.mark.requirement("W22")
async def test_an_unread_body_ends_the_connection(wire_connection: WireConnection) -> None:
    """The client cannot send the body without end."""
    await wire_connection.send(
        b"POST /refused HTTP/1.1\r\nhost: h\r\ncontent-length: 100000\r\n\r\n"
    )
    await asyncio.wait_for(wire_connection.reader.readuntil(b"\r\n\r\n0"), WITHIN_S)

    assert await send_repeatedly(wire_connection, b"x", 100) == b""


async def test_the_deadline_of_the_head_does_not_apply_to_the_body(
    wire_connection: WireConnection,
) -> None:
    """A slow body has its own deadline."""
    await wire_connection.send(REQUEST_HEAD + b"content-length: 10\r\n\r\n")
    for _ in range(10):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wire_connection.reader.read(1), 0.05)
        await wire_connection.send(b"x")

    assert await asyncio.wait_for(wire_connection.reader.readuntil(b"\r\n\r\n10"), WITHIN_S)


async def test_an_endless_request_head_is_cut_off(
    wire_connection: WireConnection, request: pytest.FixtureRequest
) -> None:
    """The server answers 431, or 400 by the other parser, logs it and reads no more."""
    await wire_connection.send(REQUEST_HEAD)
    answer = b""
    with capture_logs() as lines:
        for _ in range(HEAD_LINES_BYTES // 1000):
            try:
                await wire_connection.send(b"x-a: " + b"a" * 4000 + b"\r\n")
            except ConnectionError:
                break
        answer = await wire_connection.rest()

    assert answer[:12] in {b"HTTP/1.1 431", b"HTTP/1.1 400", b""}
    if "httptools" in request.node.name:  # the other parser has a smaller limit of its own
        assert [line["event"] for line in lines] == ["request_head_too_large"]


async def test_requests_in_one_packet_are_answered_in_order(
    wire_connection: WireConnection,
) -> None:
    """Pipelining (RFC 9112 section 9.3.2) works with the deadlines."""
    request = REQUEST_HEAD + b"content-length: 1\r\n\r\nx"
    last = REQUEST_HEAD + b"connection: close\r\ncontent-length: 3\r\n\r\nxyz"
    await wire_connection.send(request + request + last)
    answers = await wire_connection.rest()

    assert answers.count(b"HTTP/1.1 200") == 3
    assert answers.endswith(b"\r\n\r\n3")


@pytest.mark.requirement("W20")
async def test_a_connect_request_is_refused(wire_connection: WireConnection) -> None:
    """CONNECT never reaches a route."""
    await wire_connection.send(
        b"CONNECT example.com:443 HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n"
    )
    answer = await wire_connection.rest()

    assert answer[:12] in {b"HTTP/1.1 405", b"HTTP/1.1 401"}
    assert b" 200 " not in answer


async def test_answers_have_no_server_header(wire_connection: WireConnection) -> None:
    """Scanners look for versions."""
    await wire_connection.send(b"GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
    answer = (await wire_connection.rest()).lower()

    assert b"date:" in answer
    assert b"server:" not in answer
    assert b"uvicorn" not in answer
