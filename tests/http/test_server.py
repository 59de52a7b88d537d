"""The socket, with both parsers: deadlines for heads, unread bodies, odd requests."""

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from gatepost.http.deadlines import HEAD_LINES_BYTES
from gatepost.http.edge import respond
from tests.support.connections import WITHIN_S, WireConnection, port, wire
from tests.support.measuring import capture_logs

__all__ = ["port", "wire"]  # fixtures

HEAD = b"POST /read HTTP/1.1\r\nhost: h\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the body at /read and answers its size; elsewhere answers at once."""
    size = 0
    if scope["path"] == "/read":
        more = True
        while more:
            message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
    await respond(send, 200 if scope["path"] == "/read" else 401, b"%d" % size)


async def drip(wire: WireConnection, data: bytes, count: int) -> bytes:
    """Send *data* again and again until the server answers or closes."""
    for _ in range(count):
        try:
            await wire.send(data)
            return await asyncio.wait_for(wire.reader.read(), 0.05)
        except TimeoutError:
            continue
        except ConnectionError:
            return b""
    raise AssertionError("the server waited for ever")


@pytest.mark.requirement("W22")
async def test_a_head_that_trickles_is_cut_off(wire: WireConnection) -> None:
    """A client that sends a header byte now and then cannot hold a connection."""
    await wire.send(HEAD)

    assert (await drip(wire, b"a", 100)).startswith(b"HTTP/1.1 408 ")


async def test_a_silent_connection_is_closed(wire: WireConnection) -> None:
    """Without a request there is no answer."""
    assert await wire.rest() == b""


async def test_empty_lines_after_an_answer_keep_nothing_open(wire: WireConnection) -> None:
    """They begin no request, but end the timer of an idle connection."""
    await wire.send(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
    await asyncio.wait_for(wire.reader.readuntil(b"\r\n\r\n0"), WITHIN_S)

    assert b"HTTP/1.1 200" not in await drip(wire, b"\r\n", 100)


@pytest.mark.requirement("W22")
async def test_an_unread_body_ends_the_connection(wire: WireConnection) -> None:
    """After the refusal its sender cannot go on for ever."""
    await wire.send(b"POST /refused HTTP/1.1\r\nhost: h\r\ncontent-length: 100000\r\n\r\n")
    await asyncio.wait_for(wire.reader.readuntil(b"\r\n\r\n0"), WITHIN_S)

    assert await drip(wire, b"x", 100) == b""


async def test_a_slow_body_that_is_read_is_not_the_sockets_business(wire: WireConnection) -> None:
    """The body has a deadline of its own; the head's deadline is over."""
    await wire.send(HEAD + b"content-length: 10\r\n\r\n")
    for _ in range(10):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wire.reader.read(1), 0.05)
        await wire.send(b"x")

    assert await asyncio.wait_for(wire.reader.readuntil(b"\r\n\r\n10"), WITHIN_S)


async def test_a_head_without_end_is_cut_off_before_it_fills_the_memory(
    wire: WireConnection, request: pytest.FixtureRequest
) -> None:
    """The server says 431, or 400 where its parser notices first, logs it, and reads no more."""
    await wire.send(HEAD)
    answer = b""
    with capture_logs() as lines:
        for _ in range(HEAD_LINES_BYTES // 1000):
            try:
                await wire.send(b"x-a: " + b"a" * 4000 + b"\r\n")
            except ConnectionError:
                break
        answer = await wire.rest()

    assert answer[:12] in {b"HTTP/1.1 431", b"HTTP/1.1 400", b""}
    if "httptools" in request.node.name:  # the other parser has a smaller limit of its own
        assert [line["event"] for line in lines] == ["request_head_too_large"]


async def test_requests_in_one_packet_are_answered_in_order(wire: WireConnection) -> None:
    """Pipelining (RFC 9112 section 9.3.2) passes the deadline's bookkeeping unharmed."""
    request = HEAD + b"content-length: 1\r\n\r\nx"
    last = HEAD + b"connection: close\r\ncontent-length: 3\r\n\r\nxyz"
    await wire.send(request + request + last)
    answers = await wire.rest()

    assert answers.count(b"HTTP/1.1 200") == 3
    assert answers.endswith(b"\r\n\r\n3")


@pytest.mark.requirement("W20")
async def test_a_connect_request_gets_no_tunnel(wire: WireConnection) -> None:
    """CONNECT to an authority never reaches a route that would answer it."""
    await wire.send(b"CONNECT example.com:443 HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
    answer = await wire.rest()

    assert answer[:12] in {b"HTTP/1.1 405", b"HTTP/1.1 401"}
    assert b" 200 " not in answer


async def test_nothing_names_the_software(wire: WireConnection) -> None:
    """No server header: scanners look for versions."""
    await wire.send(b"GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
    answer = (await wire.rest()).lower()

    assert b"date:" in answer
    assert b"server:" not in answer
    assert b"uvicorn" not in answer
