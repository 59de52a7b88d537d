"""Clients of other authors, in front of the tools of upstreams of both eras."""

from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from fastmcp import Client as FastClient
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError
from mcp import types
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.support.programs import BrowserUser, inspector, walk_typescript
from tests.upstreams.across_revisions.conftest import WITHIN_S, Bridge, Era, calling

UPSTREAMS = ["modern", "session"]
MODES = ["legacy", "2026-07-28"]
SLOW = pytest.mark.slow
"""Every run starts Node; the others ask the same of older revisions."""
TYPESCRIPT = [
    ("1.x", "legacy"),
    pytest.param("2.x", "legacy", marks=SLOW),
    ("2.x", "2026-07-28"),
]


@pytest.fixture
async def token(bridge: Bridge) -> str:
    """The key of a caller, once all tools are listed."""
    async with calling(bridge.gate) as caller:
        for era in UPSTREAMS:
            await caller.listed(f"mcp_{era}__count")
    return bridge.gate.token(org_id="acme", scope="mcp:modern mcp:session")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("era", UPSTREAMS)
async def test_the_python_client(bridge: Bridge, token: str, era: Era, mode: str) -> None:
    """It lists, calls with progress, answers a question, and gets a picture and a failure."""
    asked: list[str] = []
    steps: list[float] = []

    async def filled_in(_: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
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
    assert asked == [f"{era}: Remove it?"]
    assert "removed: True" in str(removed.content)
    assert cover.content[0].type == "image"
    assert failed.is_error


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("era", UPSTREAMS)
async def test_the_fastmcp_client(bridge: Bridge, token: str, era: Era, mode: str) -> None:
    """The same by FastMCP's client, which raises a failure."""
    asked: list[str] = []
    steps: list[float] = []

    async def filled_in(message: str, response_type: Any, params: Any, context: Any) -> Any:
        asked.append(message)
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
            with pytest.raises(ToolError, match="out of paper"):
                await client.call_tool(f"mcp_{era}__fail", {})

    assert f"mcp_{era}__count" in listed
    assert (counted.structured_content, steps) == ({"result": 3}, [1, 2, 3])
    assert asked == [f"{era}: Remove it?"]
    assert "removed: True" in str(removed.content)
    assert cover.content[0].type == "image"


@pytest.mark.parametrize(("sdk", "mode"), TYPESCRIPT)
@pytest.mark.parametrize("era", UPSTREAMS)
async def test_the_typescript_clients(
    bridge: Bridge, token: str, era: Era, sdk: str, mode: str
) -> None:
    """The same by both versions of the TypeScript SDK."""
    url = bridge.gate.client.resource

    def walk() -> dict[str, Any]:
        told = {"url": url, "token": token, "era": era, "sdk": sdk, "mode": mode}
        return walk_typescript("upstream_tools.mjs", BrowserUser(), **told)

    report = await anyio.to_thread.run_sync(walk)

    assert f"mcp_{era}__count" in report["tools"]
    assert (report["counted"], report["steps"]) == ({"result": 3}, [1, 2, 3])
    assert report["asked"] == [f"{era}: Remove it?"]
    assert report["removed"] == "removed: True"
    assert report["cover"] == "image/png"
    assert report["failed"] is True


@pytest.mark.parametrize("mode", [pytest.param("legacy", marks=SLOW), "modern"])
async def test_the_inspector(bridge: Bridge, token: str, tmp_path: Path, mode: str) -> None:
    """Its command line cannot be asked: the tool that asks says what it needs."""
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

    assert {"mcp_modern__count", "mcp_session__count"} <= {one["name"] for one in listed["tools"]}
    assert [one["structuredContent"] for one in counted] == [{"result": 2}] * 2
    for one in refused:
        assert one.code != 0
        assert "a client that can do: elicitation" in one.stdout + one.stderr
