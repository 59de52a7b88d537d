"""Programs from npm behind the gate, as the configuration names them, written by other authors."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.runtime.services import Services
from gatepost.upstreams.offered_names import offered_name
from tests.support.client import MODERN_REVISION
from tests.support.issuers import Idp
from tests.support.measuring import capture_logs
from tests.support.programs import FOLDER, NODE, install
from tests.support.server import Server, issuer_settings, running_server
from tests.upstreams.across_revisions.test_bridge_matrix import RevisionCaller, open_caller

SECRET = "gh-secret-0123456789"
ERAS = [MODERN_REVISION, "2025-11-25"]
SCOPES = "mcp:everything mcp:files mcp:memory mcp:clock"
APP = "ui://get-time/mcp-app.html"
RENAMED_TOOLS = {
    "get-env": "get_env",
    "get-sum": "get_sum",
    "get-tiny-image": "get_tiny_image",
    "trigger-elicitation-request": "ask",
    "trigger-long-running-operation": "take_long",
}


def program(package: str, *args: str, **more: Any) -> dict[str, Any]:
    """Return an `[[upstreams]]` table for a server of the MCP project."""
    script_path = install() / "@modelcontextprotocol" / package / "dist" / "index.js"
    return {
        "tenants": ["acme"],
        "command": str(NODE),
        "args": [str(script_path), *args],
        **more,
        "reads": [str(FOLDER), *more.get("reads", ())],
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packaged")
    for name in ("shared", "closed", "memory"):
        (folder / name).mkdir()
    (folder / "shared" / "a.txt").write_text("content", encoding="utf-8")
    (folder / "closed" / "b.txt").write_text("hidden words", encoding="utf-8")
    return folder


def with_secret(services: Services) -> None:
    """Store the tenant's secret before the program needs it."""
    put = services.secrets.put("acme", "GITHUB", SECRET, ())
    services.kept_for_test = asyncio.ensure_future(put)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def logged() -> Iterator[list[Any]]:
    """Yield all log events of the gate."""
    with capture_logs() as lines:
        yield lines


@pytest.fixture(scope="module")
def gate(idp: Idp, folder: Path, logged: list[Any]) -> Iterator[Server]:
    """Yield a gate in front of four programs."""
    shared, closed = str(folder / "shared"), str(folder / "closed")
    environment = {"GITHUB_TOKEN": "secret:GITHUB", "MODE": "quiet"}
    file = {"MEMORY_FILE_PATH": str(folder / "memory" / "memory.jsonl")}
    tables = [
        program(
            "server-everything",
            "stdio",
            name="everything",
            env=environment,
            renames=RENAMED_TOOLS,
            scopes={"get-sum": ["sums"]},
        ),
        program("server-filesystem", shared, closed, name="files", reads=[shared]),
        program("server-memory", name="memory", env=file, writes=[str(folder / "memory")]),
        program("server-basic-vanillajs", "--stdio", name="clock"),
    ]
    with running_server(
        idp,
        [issuer_settings(idp)],
        tenancy={"create_on_first_use": True},
        upstreams=tables,
        prepare=with_secret,
    ) as running:
        yield running


async def listed_tools(caller: RevisionCaller) -> dict[str, dict[str, Any]]:
    """Return the tools that a caller sees, by name."""
    return {tool["name"]: tool for tool in (await caller.ask("tools/list"))["tools"]}


@pytest.mark.parametrize("revision", ERAS)
async def test_the_everything_server_works_through_the_gate(gate: Server, revision: str) -> None:
    """A picture, progress, a question, a resource and a prompt."""
    async with open_caller(gate, revision, SCOPES) as caller:
        await caller.listed("mcp_everything__ask")
        picture = await caller.call("mcp_everything__get_tiny_image")
        slow = await caller.call("mcp_everything__take_long", duration=0.2, steps=2)
        caller.answer = {"action": "accept", "content": {"name": "Ann"}}
        asked_result = await caller.call("mcp_everything__ask")
        resources = (await caller.ask("resources/list"))["resources"]
        own = next(
            resource["uri"] for resource in resources if resource["uri"].startswith("demo://")
        )
        read = await caller.ask("resources/read", uri=own)
        prompts = {prompt["name"] for prompt in (await caller.ask("prompts/list"))["prompts"]}
        prompt = await caller.ask("prompts/get", name=offered_name("everything", "simple-prompt"))

    assert "image" in {block["type"] for block in picture.result["content"]}
    assert [notification["params"]["progress"] for notification in slow.server_notifications] == [
        1,
        2,
    ]
    assert asked_result.asked[0]["message"].startswith("everything: ")
    assert asked_result.result.get("isError", False) is False
    assert "Ann" in asked_result.text
    assert read["contents"][0]["uri"] == own
    assert offered_name("everything", "simple-prompt") in prompts
    assert prompt["messages"]


async def test_tools_need_the_configured_scopes(gate: Server) -> None:
    """A pattern's scopes replace the default one; without it, 403 with the scope that is needed."""
    async with open_caller(gate, scope=SCOPES) as caller:
        await caller.listed("mcp_everything__ask")
        refused = await caller.send("tools/call", name="mcp_everything__get_sum", arguments={})
    async with open_caller(gate, scope="sums") as caller:
        summed = await caller.call("mcp_everything__get_sum", a=2, b=3)
        other = await caller.send("tools/call", name="mcp_everything__ask", arguments={})

    assert [refused.status_code, other.status_code] == [403, 403]
    assert 'scope="' in refused.headers["www-authenticate"]
    assert "sums" in refused.headers["www-authenticate"]
    assert "5" in summed.text


async def test_a_program_gets_only_the_configured_environment(
    gate: Server, logged: list[Any]
) -> None:
    """No variable of the server is in it, and the tenant's secret is redacted."""
    async with open_caller(gate, scope=SCOPES) as caller:
        await caller.listed("mcp_everything__get_env")
        output = await caller.call("mcp_everything__get_env")

    environment = json.loads(output.text)
    assert environment["MODE"] == "quiet"
    assert SECRET not in str(output)
    assert environment["GITHUB_TOKEN"]
    ours = {name for name in os.environ if name.startswith(("PYTEST", "PYTHON", "GATEPOST"))}
    assert ours & environment.keys() == set()
    assert SECRET not in gate.log() + str(logged)


async def test_standard_error_goes_only_to_the_log(gate: Server, logged: list[Any]) -> None:
    """Each log line names its server."""
    async with open_caller(gate, scope=SCOPES) as caller:
        await caller.listed("mcp_everything__ask")
        await caller.listed("mcp_memory__read_graph")
        tools = await listed_tools(caller)
        graph = await caller.call("mcp_memory__read_graph")

    lines_by_upstream = {
        event["upstream"]: event["line"] for event in logged if event["event"] == "upstream_stderr"
    }
    assert lines_by_upstream["everything"] == "Starting default (STDIO) server..."
    assert "stdio" in lines_by_upstream["memory"]
    assert "(STDIO)" not in str(tools) + str(graph)


async def test_the_filesystem_server_stays_in_its_folder(gate: Server, folder: Path) -> None:
    """A folder that it may not read stays closed, and one that it may read is not changed."""
    shared = folder / "shared" / "a.txt"
    async with open_caller(gate, scope=SCOPES) as caller:
        await caller.listed("mcp_files__read_text_file")
        read = await caller.call("mcp_files__read_text_file", path=str(shared))
        written = await caller.call("mcp_files__write_file", path=str(shared), content="changed")
        closed = str(folder / "closed" / "b.txt")
        refused = await caller.call("mcp_files__read_text_file", path=closed)
        outside = await caller.call("mcp_files__read_text_file", path="/etc/passwd")

    assert read.text == "content"
    assert written.result["isError"] is refused.result["isError"] is True
    assert outside.result["isError"] is True
    assert "hidden words" not in str(refused)
    assert shared.read_text(encoding="utf-8") == "content"


async def test_the_memory_server_keeps_its_data_between_calls(gate: Server) -> None:
    """Different callers of a tenant share its process."""
    entity = {"name": "Ada", "entityType": "person", "observations": ["likes tests"]}
    async with open_caller(gate, scope=SCOPES) as caller:
        await caller.listed("mcp_memory__create_entities")
        await caller.call("mcp_memory__create_entities", entities=[entity])
    async with open_caller(gate, "2025-06-18", SCOPES, sub="bob") as caller:
        graph = await caller.call("mcp_memory__read_graph")

    assert "likes tests" in graph.text
    assert graph.result["structuredContent"]["entities"][0]["name"] == "Ada"


@pytest.mark.parametrize("revision", ERAS)
async def test_an_app_works_with_its_page_and_its_calls(gate: Server, revision: str) -> None:
    """The tool names its page in both spellings, and the page's call reaches its own server."""
    name = offered_name("clock", "get-time")
    async with open_caller(gate, revision, SCOPES) as caller:
        await caller.listed(name)
        tool = (await listed_tools(caller))[name]
        resources = {
            resource["uri"]: resource
            for resource in (await caller.ask("resources/list"))["resources"]
        }
        page = (await caller.ask("resources/read", uri=APP))["contents"][0]
        # The page knows its server's own name for the tool alone.
        called = await caller.call("get-time")
        under_its_name = await caller.call(name)

    assert tool["_meta"]["ui"]["resourceUri"] == tool["_meta"]["ui/resourceUri"] == APP
    assert resources[APP]["mimeType"] == page["mimeType"] == "text/html;profile=mcp-app"
    assert page["uri"] == APP
    assert 'callServerTool({name:"get-time"' in page["text"]
    assert set(called.result["structuredContent"]) == {"time"}
    assert set(under_its_name.result["structuredContent"]) == {"time"}
