"""The official clients start `gatepost stdio` as any host does."""

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import types
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

from tests.support.connections import STDIO_CONFIG, STDIO_TOOLS
from tests.support.processes import Process, python_environment
from tests.support.programs import command, environment

pytestmark = pytest.mark.requirement("P1")

ANSWER_WITHIN_S = 60


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Return the arguments that a host passes to the program."""
    path = tmp_path / "gatepost.toml"
    tools_path = json.dumps(str(STDIO_TOOLS))
    path.write_text(STDIO_CONFIG.replace("{kit}", tools_path).replace("{drain_s}", "5"))
    return ["-m", "gatepost", "stdio", "--config", str(path)]


@pytest.mark.parametrize(("mode", "protocol"), [("legacy", "2025-11-25"), ("auto", "2026-07-28")])
async def test_the_python_client_lists_calls_and_answers(
    arguments: list[str], tmp_path: Path, mode: Any, protocol: str
) -> None:
    """In both eras it gets progress and answers an elicitation."""
    server = StdioServerParameters(
        command=sys.executable, args=arguments, env=python_environment(), cwd=tmp_path
    )
    steps: list[float] = []

    async def step(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    async def answer(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"colour": "blue"})

    with anyio.fail_after(ANSWER_WITHIN_S):
        async with Client(server, mode=mode, elicitation_callback=answer) as client:
            assert client.protocol_version == protocol
            names = {tool.name for tool in (await client.list_tools()).tools}
            result = await client.call_tool("tell", {"times": 3}, progress_callback=step)
            answered = await client.call_tool("ask_colour", {})
            chatter = await client.call_tool("chatter", {})

    assert {"echo", "tell", "ask_colour"} <= names
    assert not result.is_error
    assert steps == [1, 2, 3]
    assert [result.content[0].text for result in (answered, chatter)] == ["accept blue", "read ''"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("mode", "protocol"), [("legacy", "2025-11-25"), ("2026-07-28", "2026-07-28")]
)
def test_the_typescript_client_lists_and_calls(
    arguments: list[str], tmp_path: Path, mode: str, protocol: str
) -> None:
    """The 2.x client does so in both eras."""
    settings = {
        "mode": mode,
        "command": sys.executable,
        "args": arguments,
        "env": python_environment(),
        "cwd": str(tmp_path),
    }
    process = Process(command("client_stdio.mjs", json.dumps(settings)), env=environment())
    try:
        report = json.loads(process.next_line(timeout_s=ANSWER_WITHIN_S))
    finally:
        process.kill()

    assert report["protocol"] == protocol
    assert "echo" in report["tools"]
    assert (report["echo"], report["progress"]) == ("grüß Gott", [1, 2, 3])
