"""Clients of other authors, in front of the tools of upstreams of both eras."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
import httpx2
import msgspec
import pytest
from fastmcp import Client as FastClient
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError as FastToolError
from mcp import types
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import NotificationOptions
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.server.mcpserver.utilities.types import Image
from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from gatepost.upstreams import plan
from tests.support.client import MODERN_REVISION
from tests.support.issuers import AsgiServer, Idp, respond
from tests.support.measuring import eventually
from tests.support.programs import BrowserUser, inspector, run_typescript_client
from tests.support.server import Server, issuer_settings, running_server

PIXEL = b"\x89PNG\r\n\x1a\n"
WITHIN_S = 30
Era = Literal["modern", "session"]


class BridgeChoice(BaseModel):
    yes: bool


def may_remove() -> Elicit[BridgeChoice]:
    return Elicit("Remove it?", BridgeChoice)


class Books(MCPServer):
    """A server of the SDK with one tool for each kind of cell, which counts what it did."""

    def __init__(self) -> None:
        super().__init__("books")
        self.did: Counter[str] = Counter()
        self.sessions: dict[int, Any] = {}
        for tool in (self.count, self.wait, self.remove, self.cover, self.fail, self.publish):
            self.add_tool(tool)
        # By default, this SDK declares no changes to sessions.
        self._lowlevel_server.create_initialization_options = partial(  # type: ignore[method-assign]
            self._lowlevel_server.create_initialization_options,
            NotificationOptions(tools_changed=True),
        )

    async def _handle_list_tools(self, ctx: Any, params: Any) -> Any:
        self.sessions[id(ctx.session)] = ctx.session
        return await super()._handle_list_tools(ctx, params)

    async def count(self, ctx: Context[Any, Any], upto: int) -> int:
        """Count with progress."""
        self.did["count"] += 1
        for number in range(upto):
            await ctx.report_progress(number + 1, upto)
        return upto

    async def wait(self) -> str:
        """Run until it is cancelled."""
        self.did["begun"] += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.did["cancelled"] += 1
            raise
        return "never"

    async def remove(self, choice: Annotated[BridgeChoice, Resolve(may_remove)]) -> str:
        """Ask first."""
        self.did["removed"] += choice.yes
        return f"removed: {choice.yes}"

    async def cover(self) -> Image:
        """Return a picture."""
        return Image(data=PIXEL, format="png")

    async def fail(self) -> str:
        """Fail."""
        raise ToolError("out of paper")

    async def publish(self, ctx: Context[Any, Any], name: str) -> str:
        """Offer another tool, and announce it in the manner of the era."""

        async def added() -> str:
            return name

        self.add_tool(added, name=name)
        if ctx.protocol_version == MODERN_REVISION:
            await ctx.notify_tools_changed()
        else:
            for session in self.sessions.values():
                await session.send_tool_list_changed()
        return name


class BeforeDiscovery:
    """Knows nothing of 2026-07-28, like every server of the years before."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse requests of the modern era, and pass the others on."""
        if (
            scope["type"] == "http"
            and dict(scope["headers"]).get(b"mcp-protocol-version") == MODERN_REVISION.encode()
        ):
            error = {"code": -32601, "message": "Method not found"}
            body = {"jsonrpc": "2.0", "id": None, "error": error}
            await respond(send, 400, json.dumps(body).encode())
            return
        await self._app(scope, receive, send)


class Bridge(msgspec.Struct):
    """The gate and the servers behind it, by their eras."""

    gate: Server
    servers: dict[Era, Books]


@pytest.fixture(scope="module")
def bridge(idp: Idp) -> Iterator[Bridge]:
    """Yield a gate in front of upstreams of both eras."""
    servers: dict[Era, Books] = {"modern": Books(), "session": Books()}
    apps = {
        "modern": servers["modern"].streamable_http_app(),
        "session": BeforeDiscovery(servers["session"].streamable_http_app()),
    }
    running = {name: AsgiServer(app, lifespan="on").start() for name, app in apps.items()}
    tables = [
        {"name": name, "tenants": ["acme"], "url": f"{server.url}/mcp"}
        for name, server in running.items()
    ]
    hosts = [server.url.split("/")[2] for server in running.values()]
    try:
        with (
            pytest.MonkeyPatch.context() as patch,
            running_server(
                idp,
                [issuer_settings(idp)],
                tenancy={"create_on_first_use": True},
                network={"allow_hosts": hosts},
                upstreams=tables,
            ) as gate,
        ):
            # So often is a list fetched because it changed; the test changes it again and again.
            patch.setattr(plan, "ANNOUNCED_S", 0.1)
            yield Bridge(gate, servers)
    finally:
        for one in running.values():
            one.stop()


UPSTREAMS = ["modern", "session"]
MODES = ["legacy", "2026-07-28"]
SLOW_MARK = pytest.mark.slow
"""Every run starts Node; the others ask the same of older revisions."""
TYPESCRIPT = [
    ("1.x", "legacy"),
    pytest.param("2.x", "legacy", marks=SLOW_MARK),
    ("2.x", "2026-07-28"),
]


@pytest.fixture
def token(bridge: Bridge) -> str:
    """Return the token of a caller after all tools are listed."""
    token = bridge.gate.token(org_id="acme", scope="mcp:modern mcp:session")
    names = {f"mcp_{era}__count" for era in UPSTREAMS}
    eventually(lambda: names <= {*bridge.gate.client.listed(token)}, within=WITHIN_S)
    return token


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("era", UPSTREAMS)
async def test_the_python_client_uses_an_upstream(
    bridge: Bridge, token: str, era: Era, mode: str
) -> None:
    """It lists, calls with progress, answers a question, and gets a picture and a failure."""
    questions_asked: list[str] = []
    steps: list[float] = []

    async def filled_in(_: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        questions_asked.append(params.message)
        return types.ElicitResult(action="accept", content={"yes": True})

    async def step(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    headers = {"Authorization": f"Bearer {token}"}
    url = bridge.gate.client.resource
    with anyio.fail_after(WITHIN_S):
        async with (
            httpx2.AsyncClient(headers=headers, timeout=WITHIN_S, trust_env=False) as http,
            Client(
                streamable_http_client(url, http_client=http),
                mode=mode,
                elicitation_callback=filled_in,
            ) as client,
        ):
            listed = {tool.name for tool in (await client.list_tools()).tools}
            counted = await client.call_tool(
                f"mcp_{era}__count", {"upto": 3}, progress_callback=step
            )
            removed = await client.call_tool(f"mcp_{era}__remove", {})
            cover = await client.call_tool(f"mcp_{era}__cover", {})
            failed = await client.call_tool(f"mcp_{era}__fail", {})

    assert f"mcp_{era}__count" in listed
    assert (counted.structured_content, steps) == ({"result": 3}, [1, 2, 3])
    assert questions_asked == [f"{era}: Remove it?"]
    assert "removed: True" in str(removed.content)
    assert cover.content[0].type == "image"
    assert failed.is_error


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("era", UPSTREAMS)
async def test_the_fastmcp_client_uses_an_upstream(
    bridge: Bridge, token: str, era: Era, mode: str
) -> None:
    """It does the same as the Python client, and raises a failure."""
    questions_asked: list[str] = []
    steps: list[float] = []

    async def filled_in(message: str, response_type: Any, params: Any, context: Any) -> Any:
        questions_asked.append(message)
        return response_type(yes=True)

    async def step(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    transport = StreamableHttpTransport(bridge.gate.client.resource, auth=token)
    with anyio.fail_after(WITHIN_S):
        async with FastClient(transport, mode=mode, elicitation_handler=filled_in) as client:
            listed = {tool.name for tool in await client.list_tools()}
            counted = await client.call_tool(
                f"mcp_{era}__count", {"upto": 3}, progress_handler=step
            )
            removed = await client.call_tool(f"mcp_{era}__remove", {})
            cover = await client.call_tool(f"mcp_{era}__cover", {})
            with pytest.raises(FastToolError, match="out of paper"):
                await client.call_tool(f"mcp_{era}__fail", {})

    assert f"mcp_{era}__count" in listed
    assert (counted.structured_content, steps) == ({"result": 3}, [1, 2, 3])
    assert questions_asked == [f"{era}: Remove it?"]
    assert "removed: True" in str(removed.content)
    assert cover.content[0].type == "image"


@pytest.mark.parametrize(("sdk", "mode"), TYPESCRIPT)
@pytest.mark.parametrize("era", UPSTREAMS)
async def test_the_typescript_clients_use_an_upstream(
    bridge: Bridge, token: str, era: Era, sdk: str, mode: str
) -> None:
    """Both versions of the TypeScript SDK do the same."""
    url = bridge.gate.client.resource

    def walk() -> dict[str, Any]:
        parameters = {"url": url, "token": token, "era": era, "sdk": sdk, "mode": mode}
        return run_typescript_client("upstream_tools.mjs", BrowserUser(), **parameters)

    report = await anyio.to_thread.run_sync(walk)

    assert f"mcp_{era}__count" in report["tools"]
    assert (report["counted"], report["steps"]) == ({"result": 3}, [1, 2, 3])
    assert report["asked"] == [f"{era}: Remove it?"]
    assert report["removed"] == "removed: True"
    assert report["cover"] == "image/png"
    assert report["failed"] is True


@pytest.mark.parametrize("mode", [pytest.param("legacy", marks=SLOW_MARK), "modern"])
async def test_the_inspector_uses_an_upstream(
    bridge: Bridge, token: str, tmp_path: Path, mode: str
) -> None:
    """Its command line cannot be asked, so the asking tool names the missing capability."""
    url, bearer = bridge.gate.client.resource, {"Authorization": f"Bearer {token}"}

    def walk() -> tuple[list[Any], list[Any]]:
        counts = [
            ("tools/call", "--tool-name", f"mcp_{era}__count", "--tool-arg", "upto=2")
            for era in UPSTREAMS
        ]
        removals = [("tools/call", "--tool-name", f"mcp_{era}__remove") for era in UPSTREAMS]
        with inspector(url, bearer, tmp_path) as program:
            served = program.results(mode, ("tools/list", "--strict"), *counts)
            return served, program.each(mode, *removals)

    (listed, *counted), refused = await anyio.to_thread.run_sync(walk)

    assert {"mcp_modern__count", "mcp_session__count"} <= {tool["name"] for tool in listed["tools"]}
    assert [called["structuredContent"] for called in counted] == [{"result": 2}] * 2
    for ended in refused:
        assert ended.code != 0
        assert "a client that can do: elicitation" in ended.stdout + ended.stderr
