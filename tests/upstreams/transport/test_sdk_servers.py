"""The servers that people already have: the MCP SDK's and FastMCP's, in both eras."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import fastmcp
import pytest
from mcp.server.elicitation import AcceptedElicitation
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.utilities.types import Image
from pydantic import BaseModel

from gatepost.upstreams.connection import (
    RequestOptions,
    UpstreamConnection,
    UpstreamError,
    UpstreamNotification,
    UpstreamRequest,
    UpstreamResult,
)
from gatepost.upstreams.transport.connections import UpstreamConnections
from tests.support.connections import ConnectingProcess
from tests.support.issuers import AsgiServer
from tests.upstreams.transport.test_http_requests import messages_of, result_of

Era = Literal["modern", "session"]
ERAS: list[Era] = ["modern", "session"]
PIXEL = b"\x89PNG\r\n\x1a\n"


class Choice(BaseModel):
    yes: bool


def sdk_server() -> MCPServer:
    server = MCPServer("books", instructions="Ask for books.")

    @server.tool()
    async def count(ctx: Context[Any, Any], upto: int) -> int:
        """Count with progress."""
        for number in range(upto):
            await ctx.report_progress(number + 1, upto)
        return upto

    @server.tool()
    async def cover() -> Image:
        """Return a picture."""
        return Image(data=PIXEL, format="png")

    @server.tool()
    async def fail() -> str:
        """Fail."""
        raise ValueError("out of paper")

    @server.tool()
    async def remove(ctx: Context[Any, Any]) -> str:
        """Ask first."""
        answer = await ctx.elicit("Remove it?", Choice)
        return f"removed: {isinstance(answer, AcceptedElicitation) and answer.data.yes}"

    @server.resource("books://{name}")
    def book(name: str) -> str:
        return f"text of {name}"

    return server


def fastmcp_server() -> fastmcp.FastMCP[Any]:
    server: fastmcp.FastMCP[Any] = fastmcp.FastMCP("shelf", instructions="Ask for shelves.")

    @server.tool
    async def count(ctx: fastmcp.Context, upto: int) -> int:
        """Count with progress."""
        for number in range(upto):
            await ctx.report_progress(number + 1, upto)
        return upto

    return server


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    """Yield the URLs; `plain` answers JSON instead of events, `alone` has no sessions."""
    apps = {
        "sdk": sdk_server().streamable_http_app(),
        "plain": sdk_server().streamable_http_app(json_response=True),
        "alone": sdk_server().streamable_http_app(stateless_http=True),
        "fastmcp": fastmcp_server().http_app(path="/mcp"),
    }
    running = {name: AsgiServer(app, lifespan="on").start() for name, app in apps.items()}
    try:
        yield {name: f"{server_process.url}/mcp" for name, server_process in running.items()}
    finally:
        for server_process in running.values():
            server_process.stop()


@pytest.fixture
async def process(servers: dict[str, str]) -> AsyncIterator[ConnectingProcess]:
    connecting = ConnectingProcess(*(url.split("/")[2] for url in servers.values()))
    yield connecting
    await connecting.aclose()


def connected(
    process: ConnectingProcess, url: str, era: Era, principal: tuple[str, ...] | None = None
) -> UpstreamConnection:
    """Return a connection that knows the era already, as it does after its first request."""
    connection = process.http(url, principal)
    set_known_era(process.connections, url, era)
    return connection


def set_known_era(connections: UpstreamConnections, url: str, era: Era) -> None:
    connections._servers[url].known_era.era = era


@pytest.mark.parametrize("name", ["sdk", "plain", "alone", "fastmcp"])
@pytest.mark.requirement("E4")
async def test_a_server_is_found_to_be_modern(
    process: ConnectingProcess, servers: dict[str, str], name: str
) -> None:
    """Servers of both libraries use the newest revision."""
    description = await process.http(servers[name]).describe()

    assert (description.era, description.revision) == ("modern", "2026-07-28")
    assert "tools" in description.capabilities
    assert description.instructions.startswith("Ask for")


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", ["sdk", "fastmcp"])
@pytest.mark.requirement("E4")
async def test_a_call_has_progress_and_a_result(
    process: ConnectingProcess, servers: dict[str, str], name: str, era: Era
) -> None:
    """The reports have the caller's own token."""
    connection = connected(process, servers[name], era)
    messages = await messages_of(
        connection, params={"name": "count", "arguments": {"upto": 3}}, progress_token="mine"
    )

    assert {
        message.params["progressToken"] for message in messages[:-1] if is_notification(message)
    } == {"mine"}
    assert len(messages) == 4
    assert isinstance(messages[-1], UpstreamResult)
    assert messages[-1].value["structuredContent"] == {"result": 3}


def is_notification(message: Any) -> bool:
    return isinstance(message, UpstreamNotification)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", ["sdk", "plain", "alone"])
async def test_pictures_errors_and_resources_arrive(
    process: ConnectingProcess, servers: dict[str, str], name: str, era: Era
) -> None:
    """The server may send events or JSON, and may have sessions or not."""
    connection = connected(process, servers[name], era)
    cover = await result_of(connection, params={"name": "cover"})
    failed = await result_of(connection, params={"name": "fail"})
    read = await result_of(connection, "resources/read", {"uri": "books://moby"})
    unknown = await messages_of(connection, "no/such", {})

    assert cover["content"][0]["mimeType"] == "image/png"
    assert failed["isError"] is True
    assert read["contents"][0]["text"] == "text of moby"
    assert isinstance(unknown[0], UpstreamError)
    assert unknown[0].code == -32601


async def test_a_session_asks_on_the_stream_of_the_call(
    process: ConnectingProcess, servers: dict[str, str]
) -> None:
    """The call continues with the answer; without the capability there is no question."""
    connection = connected(process, servers["sdk"], "session")
    options = RequestOptions(capabilities={"elicitation": {"form": {}}})
    last: Any = None
    async with (
        asyncio.timeout(30),
        connection.exchange("tools/call", {"name": "remove", "arguments": {}}, options) as exchange,
    ):
        async for last in exchange.messages():
            if isinstance(last, UpstreamRequest):
                assert last.params["message"] == "Remove it?"
                answer = {"action": "accept", "content": {"yes": True}}
                await exchange.respond(last.id, {"result": answer})

    assert last.value["content"][0]["text"] == "removed: True"


async def test_a_session_that_the_server_ended_is_opened_again(
    process: ConnectingProcess, servers: dict[str, str]
) -> None:
    """The request that met its end is not sent again."""
    connection: Any = connected(process, servers["sdk"], "session", ("alice",))
    call = {"name": "count", "arguments": {"upto": 1}}
    await result_of(connection, params=call)
    (peer,) = connection._sessions.values()
    peer.session_id = "0" * 32
    with pytest.raises(Exception, match="ended its session"):
        await messages_of(connection, params=call)

    assert (await result_of(connection, params=call))["structuredContent"] == {"result": 1}


@pytest.mark.parametrize("era", ERAS)
async def test_changes_are_followed_by_a_stream(
    process: ConnectingProcess, servers: dict[str, str], era: Era
) -> None:
    """The server opens it, and it ends with the block."""
    async with asyncio.timeout(30), connected(process, servers["sdk"], era).notifications():
        pass
