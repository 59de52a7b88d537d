"""Open streams on real connections: a client that reads nothing costs little, and not for ever."""

import asyncio
import re
import socket
from collections.abc import Mapping
from typing import Any

import pytest

from gatepost import CallContext, Pack
from gatepost.http.h11_protocol import StrictH11Protocol
from gatepost.http.httptools_protocol import HttptoolsProtocol
from gatepost.mcp.event_stream import begin
from gatepost_authz.middleware import CALLER
from tests.support.client import modern_request
from tests.support.connections import WITHIN_S, serving
from tests.support.endpoint import JSON, META, EndpointClient
from tests.support.measuring import eventually

pytestmark = pytest.mark.anyio

MAX_CHANGES = 200_000
"""More than any system's buffers for one connection hold."""


pack = Pack("chatter")
MESSAGES = 180
"""No more than may come at once."""


@pack.tool()
async def chatter(ctx: CallContext) -> str:
    """Speak from two tasks, more than any system's buffers for one connection hold."""
    numbers = iter(range(MESSAGES))

    async def speak() -> None:
        for number in numbers:
            await ctx.log("info", [number, "x" * 16_000])

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(speak())
        tasks.create_task(speak())
    return "spoken"


def request(method: str, params: Mapping[str, Any]) -> bytes:
    """Return the bytes of a request."""
    fields, body = modern_request(method, params)
    lines = [f"{name}: {value}" for name, value in fields]
    lines += ["Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(["POST /mcp HTTP/1.1", *lines]).encode() + b"\r\n\r\n" + body


def listen() -> bytes:
    """Return the bytes of a listen request."""
    return request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})


def app_with_caller(client: EndpointClient) -> Any:
    """Return the endpoint as an application that knows the caller."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope[CALLER] = client.caller
        await client.endpoint(scope, receive, send)

    return app


class LostConnection(asyncio.Event):
    """In place of a client that hangs up: the system reports that its connection timed out."""

    async def wait(self) -> Any:
        await asyncio.sleep(0)
        raise TimeoutError("the connection timed out")


async def wait_until(condition: Any) -> None:
    """Wait for something to come true, in a thread, so that the loop goes on."""
    await asyncio.to_thread(eventually, condition, within=WITHIN_S, every=0.01)


@pytest.mark.requirement("SU-10", "SU-09")
@pytest.mark.parametrize("protocol", [HttptoolsProtocol, StrictH11Protocol])
async def test_a_client_that_does_not_read_holds_one_message_and_is_disconnected(
    protocol: Any,
) -> None:
    """Any number of changes are one waiting message; later the connection is closed."""
    client = EndpointClient()
    async with serving(app_with_caller(client), protocol) as port:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", port))
            deaf.sendall(listen())
            await wait_until(lambda: len(client.streams) == 1)
            (stream,) = client.streams
            pubsub = client.pubsub.notifier_for("acme")
            changes = 0
            while stream._idle and changes < MAX_CHANGES:  # type: ignore[attr-defined]
                await pubsub.listed("tools")
                await asyncio.sleep(0)
                changes += 1
            assert changes < MAX_CHANGES
            for _ in range(1000):
                await pubsub.listed("tools")
            await asyncio.sleep(0)

            assert len(stream._unsent) == 1  # type: ignore[attr-defined]
            await wait_until(lambda: len(client.streams) == 0)
            assert client.pubsub.tenants == ()


@pytest.mark.requirement("SU-09", "T-11")
@pytest.mark.parametrize("protocol", [HttptoolsProtocol, StrictH11Protocol])
async def test_a_client_that_disconnects_frees_its_concurrency(protocol: Any) -> None:
    """The connection's end is heard without anything being sent."""
    client = EndpointClient()
    async with serving(app_with_caller(client), protocol) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(listen())
        await asyncio.wait_for(reader.readuntil(b"acknowledged"), WITHIN_S)
        assert len(client.streams) == 1
        writer.close()
        await writer.wait_closed()

        await wait_until(lambda: len(client.streams) == 0)


@pytest.mark.requirement("LG-03")
async def test_messages_come_in_order_to_a_client_that_reads_late() -> None:
    """If one message waits for the client, later messages of the tool wait, too."""
    meta = {META + "logLevel": "info"}
    call = request("tools/call", {"name": "chatter", "arguments": {}, "_meta": meta})
    async with serving(app_with_caller(EndpointClient(pack.offers)), HttptoolsProtocol) as port:
        with socket.socket() as late:
            late.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            late.connect(("127.0.0.1", port))
            late.sendall(call)
            late.settimeout(WITHIN_S)
            heard = b""
            while not heard.endswith(b"\r\n0\r\n\r\n"):
                piece = await asyncio.to_thread(late.recv, 65_536)
                assert piece, "the connection ended within the stream"
                heard += piece

    numbers = [int(number) for number in re.findall(rb'"data":\[(\d+),', heard)]
    assert numbers == [*range(MESSAGES)]


async def test_a_connection_that_times_out_ends_the_stream() -> None:
    """A stream also ends its own waits with a timeout, and would wait again."""
    client = EndpointClient()
    fields, body = modern_request(
        "subscriptions/listen", {"notifications": {"toolsListChanged": True}}
    )

    with pytest.raises(TimeoutError, match="the connection timed out"):
        async with asyncio.timeout(WITHIN_S):
            await client.send(body, [JSON, *fields], hang_up=LostConnection())

    assert len(client.streams) == 0


async def test_a_coroutine_that_never_waits_is_finished_at_once() -> None:
    """There is no task left to await."""

    async def work() -> None:
        return None

    assert begin(work()) is None


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_coroutine_that_has_started_continues_in_a_task(cancelled: bool) -> None:
    """The task can be cancelled, and its error is raised."""
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


async def test_a_started_coroutine_can_be_closed() -> None:
    """A stream may end before its client has read it."""
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
