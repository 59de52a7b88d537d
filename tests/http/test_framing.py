"""Requests on one connection: each means exactly what it means on a connection of its own."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from gatepost.http.httptools_protocol import HttptoolsProtocol
from gatepost.http.scope import WHOLE_BODY
from tests.support.connections import WITHIN_S, WireConnection, connected, serving
from tests.support.measuring import each

LAST_MEMBER = b'"end":1}'


def post(body: bytes, *fields: bytes, length: bytes | None = None) -> bytes:
    """Return a request whose head differs only in its length and in *fields*."""
    declared = b"%d" % len(body) if length is None else length
    lines = (b"POST /mcp?q=1 HTTP/1.1", b"Host: h", b"Content-Length: " + declared, *fields)
    return b"\r\n".join((*lines, b"Authorization: Bearer token", b"", b"")) + body


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with what the application received."""
    body = scope.get(WHOLE_BODY)
    if body is None:
        message = await receive()
        body = message.get("body", b"")
        while message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")
    fields = {name: scope[name] for name in ("method", "path", "http_version")}
    fields |= {name: scope[name].decode() for name in ("raw_path", "query_string")}
    fields["headers"] = [[n.decode(), v.decode("latin-1")] for n, v in scope["headers"]]
    fields |= {"body": body.decode(), "end": 1}
    data = json.dumps(fields, separators=(",", ":")).encode()
    start = {"type": "http.response.start", "status": 200}
    await send({**start, "headers": [(b"content-length", b"%d" % len(data))]})
    await send({"type": "http.response.body", "body": data})


@pytest.fixture(scope="module")
async def port() -> AsyncIterator[int]:
    async with serving(app, HttptoolsProtocol) as port:
        yield port


async def application_fields(wire: WireConnection) -> dict[str, Any]:
    """Return what the application says about the next request."""
    answer = await wire.until(LAST_MEMBER)
    fields: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return fields


async def send_usual_requests(wire: WireConnection) -> None:
    """Send the usual request three times and read each answer."""
    for _ in range(3):
        await wire.send(post(b"first"))
        await application_fields(wire)


PACKETS: dict[str, list[bytes]] = {
    "the same": [post(b"first")],
    "another body": [post(b"other")],
    "another length": [post(b"longer than the first")],
    "nothing to read": [post(b"")],
    "thousand": [post(b"x" * 1000)],
    "zeros before the length": [post(b"first", length=b"0005")],
    "another token": [post(b"first").replace(b"Bearer token", b"Bearer other")],
    "a longer token": [post(b"first").replace(b"Bearer token", b"Bearer token2")],
    "another path": [post(b"first").replace(b"/mcp?q=1", b"/mcp?q=2")],
    "another method": [post(b"first").replace(b"POST", b"PUT")],
    "other letters": [post(b"first").replace(b"Host: h", b"HOST: h")],
    "one more field": [post(b"first", b"X-Tenant: other")],
    "head and body apart": [post(b"first")[:-5], b"first"],
    "the head in two": [post(b"first")[:30], post(b"first")[30:]],
    "the body in two": [post(b"first")[:-2], b"st"],
    "byte by byte": [bytes([byte]) for byte in post(b"first")],
    "in chunks": [
        b"POST /mcp?q=1 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"5\r\nfirst\r\n0\r\n\r\n",
    ],
    "line ends before it": [b"\r\n\r\n" + post(b"first")],
}


async def means_the_same(packets: list[bytes], fresh: WireConnection, wire: WireConnection) -> None:
    """Assert that the used *wire* answers like *fresh*, and still serves the usual request."""
    for packet in packets:
        await fresh.send(packet)
    expected = await application_fields(fresh)
    for _ in range(2):
        for packet in packets:
            await wire.send(packet)
        assert await application_fields(wire) == expected
    await wire.send(post(b"first"))
    assert (await application_fields(wire))["body"] == "first"


@pytest.mark.requirement("P3")
@each("packets", PACKETS.values(), ids=PACKETS.keys())
async def test_a_request_is_read_the_same_after_others_on_a_connection(
    port: int, packets: list[bytes]
) -> None:
    """The result is compared with a fresh connection, twice."""
    async with connected(port) as fresh, connected(port) as wire:
        await send_usual_requests(wire)
        await means_the_same(packets, fresh, wire)


@pytest.mark.requirement("P3")
async def test_each_request_has_its_own_length(port: int) -> None:
    """The `Content-Length` of an earlier request is not reused."""
    async with connected(port) as wire:
        await send_usual_requests(wire)
        for body in (b"a", b"first", b"a longer one", b"a"):
            await wire.send(post(body))
            request = await application_fields(wire)
            assert request["body"] == body.decode()
            assert ["content-length", str(len(body))] in request["headers"]


ACCEPTED_FRAMINGS: dict[str, tuple[list[bytes], list[str]]] = {
    "two at once": ([post(b"one") + post(b"three")], ["one", "three"]),
    "one and a half": ([post(b"one") + post(b"three")[:40], post(b"three")[40:]], ["one", "three"]),
    "the body ends with a request": (
        [post(post(b"inner")), post(b"last")],
        [post(b"inner").decode(), "last"],
    ),
    "a shorter length than what follows": (
        [post(b"one", length=b"3") + post(b"three")],
        ["one", "three"],
    ),
    "a body that comes later": ([post(b"", length=b"5"), b"later"], ["later"]),
    "a body that comes with more": (
        [post(b"", length=b"5"), b"later" + post(b"next")],
        ["later", "next"],
    ),
}


@pytest.mark.requirement("P3")
@pytest.mark.parametrize(
    ("packets", "bodies"), ACCEPTED_FRAMINGS.values(), ids=ACCEPTED_FRAMINGS.keys()
)
async def test_a_request_ends_after_its_declared_length(
    port: int, packets: list[bytes], bodies: list[str]
) -> None:
    """Bytes never become part of another request, however packets split (RFC 9112, 11.2)."""
    async with connected(port) as wire:
        await send_usual_requests(wire)
        for packet in packets:
            await wire.send(packet)
        assert [(await application_fields(wire))["body"] for _ in bodies] == bodies


REFUSED_FRAMINGS = {
    "no number": post(b"first", length=b"5x"),
    "a sign": post(b"first", length=b"+5"),
    "a list": post(b"first", length=b"5, 5"),
    "too large a number": post(b"first", length=b"5" * 40),
    "twice": post(b"first", b"Content-Length: 5"),
    "twice, differing": post(b"first", b"Content-Length: 6"),
    "with chunks": post(b"first", b"Transfer-Encoding: chunked"),
    "a fold": post(b"first", b" folded"),
    "line ends alone": post(b"first").replace(b"\r\nHost", b"\rHost"),
}


@pytest.mark.requirement("P3")
@pytest.mark.parametrize("packet", REFUSED_FRAMINGS.values(), ids=REFUSED_FRAMINGS.keys())
async def test_a_malformed_request_is_refused_after_others_on_a_connection(
    port: int, packet: bytes
) -> None:
    """The connection ends as on a fresh connection."""
    async with connected(port) as fresh:
        await fresh.send(packet)
        expected = await fresh.rest()

    async with connected(port) as wire:
        await send_usual_requests(wire)
        await wire.send(packet)
        answer = await wire.rest()

    assert answer.split(b"\r\n")[0] == expected.split(b"\r\n")[0]
    assert b'"end"' not in answer


async def test_a_connection_is_idle_only_between_requests(port: int) -> None:
    """An idle connection is closed, and its time begins again with each answer."""
    async with connected(port) as wire:
        await send_usual_requests(wire)
        assert await wire.rest() == b""
    assert WITHIN_S > 1
