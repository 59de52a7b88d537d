"""What an adversary found between the requests of one connection; each stays found."""

import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar

import msgspec
import pytest
from starlette.types import Receive, Scope, Send

from gatepost.http.edge import respond
from gatepost.http.httptools_protocol import HttptoolsProtocol
from tests.http.test_framing import LAST_MEMBER, app, application_fields, post, send_usual_requests
from tests.support.connections import RULES, RecordedEdge, connected, serving

REQUEST_NAME: ContextVar[str] = ContextVar("named", default="unset_")


@pytest.fixture(scope="module")
async def port() -> AsyncIterator[int]:
    async with serving(app, HttptoolsProtocol) as port:
        yield port


@pytest.mark.requirement("P3")
async def test_a_request_line_inside_a_header_value_is_not_a_request(port: int) -> None:
    """The packet before it ended in the middle of a header value."""
    async with connected(port) as wire:
        await send_usual_requests(wire)
        await wire.send(post(b"first") + b"GET /other HTTP/1.1\r\nX-Part: ")
        assert (await application_fields(wire))["path"] == "/mcp"
        await wire.send(post(b"first"))
        request = await application_fields(wire)

    assert (request["path"], request["body"]) == ("/other", "first")
    assert request["headers"][0] == ["x-part", "POST /mcp?q=1 HTTP/1.1"]


@pytest.mark.requirement("P3")
async def test_a_packet_with_the_end_of_a_head_and_a_request_is_read_as_two_requests(
    port: int,
) -> None:
    """The first part ends the request before; the second part is a request of its own."""
    parts = b"GET /other HTTP/1.1\r\nHost: h\r\nX-Part: ", b"1\r\n\r\n" + post(b"second")
    async with connected(port) as wire:
        await send_usual_requests(wire)
        for _ in range(3):
            await wire.send(post(b"first") + parts[0])
            assert (await application_fields(wire))["body"] == "first"
            await wire.send(parts[1])
            assert [(await application_fields(wire))["path"] for _ in range(2)] == [
                "/other",
                "/mcp",
            ]


@pytest.mark.requirement("P3")
async def test_a_body_with_an_empty_line_does_not_lengthen_the_head(port: int) -> None:
    """Line ends after such a body made the server misplace the end of the next head."""
    body, behind = b"ab\r\n\r\n{}", b"\r\n\r\n\r\n"
    split = b"GET /o", b"ther HTTP/1.1\r\nHost: h\r\n\r\n"
    assert len(split[0]) == len(behind) == body.index(b"{")

    async with connected(port) as wire:
        await send_usual_requests(wire)
        await wire.send(post(body) + behind)
        assert (await application_fields(wire))["body"] == body.decode()
        await wire.send(post(body))
        assert (await application_fields(wire))["body"] == body.decode()
        await wire.send(post(body) + split[0])
        assert (await application_fields(wire))["body"] == body.decode()
        await wire.send(split[1])
        assert (await application_fields(wire))["path"] == "/other"


class ScopeTrace:
    """Lies in a request's scope, and is gone when that is."""


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Leave reference cycles uncollected."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.requirement("P3")
@pytest.mark.usefixtures("uncollected")
async def test_a_closed_connection_leaves_no_request_in_memory() -> None:
    """A cycle from the cached head to its request kept a quarter of a megabyte each."""
    traces: weakref.WeakSet[ScopeTrace] = weakref.WeakSet()
    recorded = RecordedEdge(msgspec.structs.replace(RULES, origin="http://h", development=True))

    async def leaves_one(scope: Scope, receive: Receive, send: Send) -> None:
        scope["trace"] = trace = ScopeTrace()
        traces.add(trace)
        await respond(send, 200, LAST_MEMBER)

    recorded.edge.app = leaves_one
    async with serving(recorded.edge, HttptoolsProtocol) as port, connected(port) as wire:
        for field in (b"X-A: 1", b"X-A: 1", b"X-A: 1", b"X-A: 2", b"X-A: 1"):
            await wire.send(post(b"first", field))
            await wire.until(LAST_MEMBER)
        assert len(traces) == 1, "the connection has its last request, and no other"
    await recorded.log.aclose()

    assert len(traces) == 0


@pytest.mark.requirement("P3")
async def test_a_pipelined_request_runs_in_its_own_context() -> None:
    """The context variables of the request before do not leak into the next one."""

    async def names(scope: Scope, receive: Receive, send: Send) -> None:
        value = REQUEST_NAME.get()
        REQUEST_NAME.set(scope["path"])
        await respond(send, 200, f"{value} {LAST_MEMBER.decode()}".encode())

    async with serving(names, HttptoolsProtocol) as port, connected(port) as wire:
        await wire.send(post(b"first") * 3)
        for _ in range(3):
            assert (await wire.until(LAST_MEMBER)).endswith(b"unset_ " + LAST_MEMBER)
