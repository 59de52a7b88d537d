"""The stdio servers that people already have, from npm and from the SDK."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.upstreams.connection import (
    RequestOptions,
    UpstreamNotification,
    UpstreamRequest,
    UpstreamResult,
)
from gatepost.upstreams.upstream_server import StdioProgram
from tests.support.connections import ConnectingProcess
from tests.support.programs import FOLDER, NODE, install
from tests.upstreams.transport.test_http_requests import messages_of, result_of


def packaged(name: str, *args: str, **more: Any) -> StdioProgram:
    """Return a server of the MCP project from npm."""
    script = install() / "@modelcontextprotocol" / name / "dist" / "index.js"
    return StdioProgram(
        command=str(NODE), args=(str(script), *args), reads=(str(FOLDER), *more.pop("reads", ())),
        **more,
    )  # fmt: skip


@pytest.fixture
async def process() -> AsyncIterator[ConnectingProcess]:
    connecting = ConnectingProcess()
    yield connecting
    await connecting.aclose()


async def test_the_everything_server_works_over_pipes(process: ConnectingProcess) -> None:
    """Progress, a question, a picture, a resource and a completion."""
    connection = process.stdio(packaged("server-everything", "stdio"))
    description = await connection.describe()
    assert (description.era, description.revision) == ("session", "2025-11-25")

    slow = {"name": "trigger-long-running-operation", "arguments": {"duration": 0.2, "steps": 2}}
    *progress, done = await messages_of(connection, params=slow, progress_token="mine")
    tokens = [
        progress_message.params["progressToken"]
        for progress_message in progress
        if is_notification(progress_message)
    ]
    assert tokens == ["mine", "mine"]
    assert isinstance(done, UpstreamResult)
    picture = await result_of(connection, params={"name": "get-tiny-image", "arguments": {}})
    assert "image" in {block["type"] for block in picture["content"]}
    read = await result_of(connection, "resources/list", {})
    assert read["resources"]


def is_notification(message: Any) -> bool:
    return isinstance(message, UpstreamNotification)


async def test_the_everything_server_asks_and_gets_its_answer(process: ConnectingProcess) -> None:
    """The only running request is the one that it asks for."""
    connection = process.stdio(packaged("server-everything", "stdio"))
    call = {"name": "trigger-elicitation-request", "arguments": {}}
    last: Any = None
    async with connection.exchange("tools/call", call, RequestOptions()) as exchange:
        async for last in exchange.messages():
            if isinstance(last, UpstreamRequest):
                await exchange.respond(last.id, {"result": {"action": "decline"}})

    assert "declined" in last.value["content"][0]["text"]


async def test_the_filesystem_server_reads_its_folder_and_the_sandbox_no_other(
    process: ConnectingProcess, tmp_path: Path
) -> None:
    """A folder given to the server but not in `reads` stays closed."""
    shared, closed = tmp_path / "shared", tmp_path / "closed"
    for folder in (shared, closed):
        folder.mkdir()
        (folder / "a.txt").write_text("content", encoding="utf-8")
    program = packaged("server-filesystem", str(shared), reads=(str(shared),))
    path = {"path": str(shared / "a.txt")}
    call = {"name": "read_text_file", "arguments": path}
    connection = process.stdio(program)
    assert (await result_of(connection, params=call))["content"][0]["text"] == "content"

    write = {"name": "write_file", "arguments": path | {"content": "changed"}}
    assert (await result_of(connection, params=write))["isError"] is True
    assert (shared / "a.txt").read_text(encoding="utf-8") == "content"

    other = process.stdio(packaged("server-filesystem", str(shared), str(closed)), id="other")
    call = {"name": "read_text_file", "arguments": {"path": str(closed / "a.txt")}}
    refused = await messages_of(other, params=call)
    assert "content" not in str(refused[-1]).replace("'content':", "")


async def test_the_memory_server_keeps_its_file(process: ConnectingProcess, tmp_path: Path) -> None:
    """Two of its processes find the file in a folder that it may write."""
    file = tmp_path / "memory.jsonl"
    program = packaged(
        "server-memory", writes=(str(tmp_path),), env={"MEMORY_FILE_PATH": str(file)}
    )
    entity = {"name": "Ada", "entityType": "person", "observations": ["likes tests"]}
    create = {"name": "create_entities", "arguments": {"entities": [entity]}}
    connection = process.stdio(program)
    await result_of(connection, params=create)
    await process.connections.forget("s")
    read = {"name": "read_graph", "arguments": {}}
    again = await result_of(process.stdio(program), params=read)

    assert "likes tests" in again["content"][0]["text"]
