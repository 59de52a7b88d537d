"""Open streams on real connections: a client that reads nothing costs little, and not for ever."""

import asyncio
import socket
from typing import Any

import pytest

from gatepost.http.h11_protocol import StrictH11Protocol
from gatepost.http.httptools_protocol import HttptoolsProtocol
from gatepost.mcp.event_stream import begin
from gatepost_authz.middleware import CALLER
from tests.http.wire import SOON, serving
from tests.support.client import modern
from tests.support.endpoint import EndpointClient
from tests.support.measuring import eventually

pytestmark = pytest.mark.anyio

MOST_CHANGES = 200_000
"""More than any system's buffers for one connection hold."""


def request() -> bytes:
    """A listen request, byte for byte."""
    fields, body = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    lines = [f"{name}: {value}" for name, value in fields]
    lines += ["Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(["POST /mcp HTTP/1.1", *lines]).encode() + b"\r\n\r\n" + body


def gated(client: EndpointClient) -> Any:
    """The endpoint with a caller before it."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope[CALLER] = client.caller
        await client.endpoint(scope, receive, send)

    return app


async def until(condition: Any) -> None:
    """Wait for something to come true, in a thread, so that the loop goes on."""
    await asyncio.to_thread(eventually, condition, within=SOON, every=0.01)


@pytest.mark.requirement("SU-10", "SU-09")
@pytest.mark.parametrize("protocol", [HttptoolsProtocol, StrictH11Protocol])
async def test_a_client_that_reads_nothing_costs_one_message_and_is_cut_off(protocol: Any) -> None:
    """However much changes, one piece of news waits; then the connection is given up."""
    client = EndpointClient()
    async with serving(gated(client), protocol) as port:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", port))
            deaf.sendall(request())
            await until(lambda: len(client.streams) == 1)
            (stream,) = client.streams
            feed = client.feed.of("acme")
            changes = 0
            while stream._idle and changes < MOST_CHANGES:  # type: ignore[attr-defined]
                await feed.listed("tools")
                await asyncio.sleep(0)
                changes += 1
            assert changes < MOST_CHANGES
            for _ in range(1000):
                await feed.listed("tools")
            await asyncio.sleep(0)

            assert len(stream._new) == 1  # type: ignore[attr-defined]
            await until(lambda: len(client.streams) == 0)
            assert client.feed.tenants == ()


@pytest.mark.requirement("SU-09", "T-11")
@pytest.mark.parametrize("protocol", [HttptoolsProtocol, StrictH11Protocol])
async def test_a_client_that_hangs_up_frees_its_place(protocol: Any) -> None:
    """The connection's end is heard without anything being sent."""
    client = EndpointClient()
    async with serving(gated(client), protocol) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request())
        await asyncio.wait_for(reader.readuntil(b"acknowledged"), SOON)
        assert len(client.streams) == 1
        writer.close()
        await writer.wait_closed()

        await until(lambda: len(client.streams) == 0)


async def test_work_that_never_waits_is_done_at_once() -> None:
    """Nothing is left to await."""

    async def work() -> None:
        return None

    assert begin(work()) is None


@pytest.mark.parametrize("cancelled", [False, True])
async def test_work_that_was_begun_goes_on_in_a_task(cancelled: bool) -> None:
    """It is awaited from where it waits, hears of a cancellation, and its failure comes out."""
    gate = asyncio.Event()
    heard: list[str] = []

    async def work() -> None:
        try:
            await gate.wait()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise
        raise ValueError("over")

    begun = begin(work())
    assert begun is not None

    async def go_on() -> None:
        await begun

    task = asyncio.create_task(go_on())
    await asyncio.sleep(0)
    if cancelled:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert heard == ["cancelled"]
    else:
        gate.set()
        with pytest.raises(ValueError, match="over"):
            await task


async def test_begun_work_can_be_dropped() -> None:
    """As when a stream ends before its client has read."""
    dropped: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            dropped.append(True)

    begun = begin(work())
    assert begun is not None
    begun.close()

    assert dropped == [True]
