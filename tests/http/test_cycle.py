"""One request and its answer on the wire: what takes the short way, and all that must not."""

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from gatepost.http.httptools_protocol import HttptoolsProtocol
from gatepost.http.scope import WHOLE_BODY
from tests.support.connections import (
    WITHIN_S,
    WireConnection,
    connected,
    port,
    serving,
    wire_connection,
)

__all__ = ["port", "wire_connection"]  # fixtures

Fields = list[tuple[bytes, bytes]]

GET_REQUEST = b"GET %b HTTP/1.1\r\nhost: h\r\n\r\n"
LAST_REQUEST = b"GET %b HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n"


def start(*fields: tuple[bytes, bytes], status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": [*fields]}


def body(data: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


LENGTH_TWO = (b"content-length", b"2")
ANSWERS: dict[str, list[Message]] = {
    "/whole": [start(LENGTH_TWO), body(b"ok")],
    "/large": [start((b"content-length", b"300000")), body(b"x" * 300_000)],
    "/parts": [start(LENGTH_TWO), body(b"o", more=True), body(b"k")],
    "/stream": [start(), body(b"o", more=True), body(b"k")],
    "/events": [
        start((b"x-kind", b"events")),
        body(b"one", more=True),
        body(b"", more=True),
        body(b"x" * 300_000, more=True),
        body(b"ok"),
    ],
    "/framed": [start((b"transfer-encoding", b"chunked")), body(b"o", more=True), body(b"k")],
    "/split": [start((b"x-a", b"1\r\nset-cookie: a=b")), body(b"o", more=True), body(b"k")],
    "/undeclared": [start(), body(b"ok")],
    "/empty": [start(status=204), body(b"")],
    "/last": [start(LENGTH_TWO, (b"connection", b"close")), body(b"ok")],
    "/longer": [start(LENGTH_TWO), body(b"okay")],
    "/shorter": [start(LENGTH_TWO), body(b"o")],
    "/injected": [start(LENGTH_TWO, (b"x-a", b"1\r\nset-cookie: a=b")), body(b"ok")],
    "/headless": [body(b"ok")],
    "/doubled": [start(LENGTH_TWO), start(LENGTH_TWO)],
    "/silent": [],
    "/unfinished": [start(LENGTH_TWO)],
}


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Send what the path names: /scope answers the scope, /body the received body."""
    if scope["path"] == "/body":
        first = await receive()
        data = first["body"] + b" more" * first["more_body"]
        await send(start((b"content-length", b"%d" % len(data))))
        await send(body(data))
    elif scope["path"] == "/scope":
        whole_body = scope.get(WHOLE_BODY, b"nothing")
        first = await receive()
        data = whole_body + b" " + first["body"]
        await send(start((b"content-length", b"%d" % len(data))))
        await send(body(data))
    elif scope["path"] == "/refused":
        await send(start(LENGTH_TWO, status=401))
        await send(body(b"no"))
        await receive()
    elif scope["path"].startswith("/told"):
        text = f"{scope['path']} {scope['raw_path']!r} {scope['query_string']!r}".encode()
        await send(start((b"content-length", b"%d" % len(text))))
        await send(body(text))
    else:
        for message in ANSWERS[scope["path"]]:
            await send(message)


@pytest.mark.parametrize("path", [b"/whole", b"/parts", b"/stream", b"/undeclared"])
async def test_an_answer_in_one_or_several_parts_arrives_whole(
    wire_connection: WireConnection, path: bytes
) -> None:
    """Its length may be declared or not; the connection serves the next request."""
    await wire_connection.send(GET_REQUEST % path)
    await wire_connection.until(b"k" if path in {b"/whole", b"/parts"} else b"0\r\n\r\n")
    await wire_connection.send(LAST_REQUEST % b"/whole")
    answer = await wire_connection.rest()

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nok")


async def test_each_part_of_a_stream_is_sent_as_one_chunk(wire_connection: WireConnection) -> None:
    """RFC 9112 section 7.1: an empty chunk would end the stream, so an empty part is skipped."""
    await wire_connection.send(GET_REQUEST % b"/events" + LAST_REQUEST % b"/whole")
    head, _, answer = (await wire_connection.rest()).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert head.lower().count(b"transfer-encoding: chunked") == 1
    assert b"\r\nx-kind: events\r\n" in head
    parts = b"3\r\none\r\n493e0\r\n%b\r\n2\r\nok\r\n0\r\n\r\n" % (b"x" * 300_000)
    assert answer.startswith(parts + b"HTTP/1.1 200 OK\r\n")


async def test_a_framing_header_of_the_application_is_sent_once(
    wire_connection: WireConnection,
) -> None:
    """The application may set `Transfer-Encoding` itself."""
    await wire_connection.send(LAST_REQUEST % b"/framed")
    answer = (await wire_connection.rest()).lower()

    assert answer.count(b"transfer-encoding: chunked") == 1
    assert answer.endswith(b"1\r\no\r\n1\r\nk\r\n0\r\n\r\n")


async def test_a_large_answer_reaches_a_client_that_reads_late(
    wire_connection: WireConnection,
) -> None:
    """The server keeps what does not fit the socket, and sends it as the client reads."""
    await wire_connection.send(GET_REQUEST % b"/large" * 3 + LAST_REQUEST % b"/whole")
    answer = await wire_connection.rest()

    assert answer.count(b"x" * 300_000) == 3
    assert answer.endswith(b"\r\n\r\nok")


@pytest.mark.parametrize("path", [b"/whole", b"/large", b"/stream", b"/events", b"/framed"])
async def test_an_answer_to_head_has_no_body(wire_connection: WireConnection, path: bytes) -> None:
    """RFC 9110 section 9.3.2: a client would read a body as the next answer."""
    await wire_connection.send(b"HEAD %b HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n" % path)
    answer = await wire_connection.rest()

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\n")


async def test_an_answer_without_content_declares_no_length(
    wire_connection: WireConnection,
) -> None:
    """A 204 has neither a length nor chunks (RFC 9110 section 8.6)."""
    await wire_connection.send(LAST_REQUEST % b"/empty")
    answer = (await wire_connection.rest()).lower()

    assert answer.startswith(b"http/1.1 204 ")
    assert b"transfer-encoding" not in answer


@pytest.mark.parametrize(
    "request_", [LAST_REQUEST % b"/whole", b"GET /whole HTTP/1.0\r\n\r\n", GET_REQUEST % b"/last"]
)
async def test_a_connection_closes_if_the_request_or_the_answer_asks_for_it(
    wire_connection: WireConnection, request_: bytes
) -> None:
    """The cases are `Connection: close` of either side, and HTTP/1.0."""
    await wire_connection.send(request_)
    answer = await wire_connection.rest()

    assert answer.endswith(b"\r\n\r\nok")
    assert answer.lower().count(b"connection: close\r\n") == 1


async def test_an_idle_connection_is_closed_after_the_keep_alive_time(
    wire_connection: WireConnection,
) -> None:
    """The time counts from the last answer."""
    await wire_connection.send(GET_REQUEST % b"/whole")
    await wire_connection.until(b"ok")
    loop = asyncio.get_running_loop()
    began = loop.time()

    assert await wire_connection.rest() == b""
    assert 0.8 < loop.time() - began < WITHIN_S


@pytest.mark.parametrize(
    "path",
    [
        "/longer",
        "/shorter",
        "/injected",
        "/split",
        "/headless",
        "/doubled",
        "/silent",
        "/unfinished",
    ],
)
async def test_a_broken_answer_is_a_500_or_visibly_incomplete(
    wire_connection: WireConnection, path: str
) -> None:
    """A value cannot add a header field to the answer."""
    await wire_connection.send(GET_REQUEST % path.encode())
    answer = await wire_connection.rest()
    head, _, content = answer.partition(b"\r\n\r\n")

    assert b"set-cookie" not in head.lower()
    assert head.startswith(b"HTTP/1.1 500 ") or len(content) < 2


async def test_expect_100_continue_is_answered_when_the_body_is_read(
    wire_connection: WireConnection,
) -> None:
    """The client sends the body after that."""
    await wire_connection.send(
        b"POST /body HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    )
    assert (await wire_connection.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
    await wire_connection.send(b"hi")

    assert (await wire_connection.until(b"hi")).startswith(b"HTTP/1.1 200 ")


async def test_no_100_continue_is_sent_after_an_answer(wire_connection: WireConnection) -> None:
    """The client would read it as the answer to the next request."""
    await wire_connection.send(
        b"POST /refused HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    )
    answer = await wire_connection.rest()

    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b" 100 " not in answer


@pytest.mark.parametrize("large", [False, True])
async def test_the_application_receives_the_body_as_it_arrives(
    wire_connection: WireConnection, large: bool
) -> None:
    """It receives the whole body if that is there, else its beginning."""
    head = b"POST /body HTTP/1.1\r\nhost: h\r\ncontent-length: 4\r\n\r\n"
    await wire_connection.send(head + (b"h" if large else b"helo"))

    assert await wire_connection.until(b"h more" if large else b"helo")


async def test_a_body_that_arrived_whole_is_also_in_the_scope() -> None:
    """Applications that read it by ASGI still receive it, also in parts."""
    head = b"POST /scope HTTP/1.1\r\nhost: h\r\ncontent-length: 4\r\n\r\n"
    async with serving(app, HttptoolsProtocol) as port, connected(port) as wire:
        await wire.send(head + b"helo" + head + b"he")
        whole = await wire.until(b"helo helo")
        in_parts = await wire.until(b"nothing he")

    assert whole.startswith(b"HTTP/1.1 200 ")
    assert in_parts.startswith(b"HTTP/1.1 200 ")


async def test_each_request_of_a_connection_has_its_own_target(
    wire_connection: WireConnection,
) -> None:
    """The path of an earlier request is not reused, and paths are decoded once."""
    answers = []
    for target in (b"/told", b"/told?a=%2f", b"/told/%41%2541", b"/told/%41%2541", b"/told"):
        await wire_connection.send(GET_REQUEST % target)
        await wire_connection.until(b"\r\n\r\n")
        answers.append(await wire_connection.until(b"'"))
        answers[-1] += await wire_connection.until(b"b'") + await wire_connection.until(b"'")

    assert answers == [
        b"/told b'/told' b''",
        b"/told b'/told' b'a=%2f'",
        b"/told/A%41 b'/told/%41%2541' b''",
        b"/told/A%41 b'/told/%41%2541' b''",
        b"/told b'/told' b''",
    ]
