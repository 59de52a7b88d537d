"""A stop ends, whatever tools do, and answers every client that still waits."""

import asyncio
import contextlib
import http.client
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gatepost.audit.record import read
from gatepost.storage.backends import open_records
from tests.runtime.test_serve import tool_call
from tests.support.commands import READY_LINE, Gatepost, token
from tests.support.measuring import eventually
from tests.support.processes import free_port, python_environment

TOOLS = '''
import asyncio, time
from pathlib import Path
from gatepost import CallContext, Pack

pack = Pack("stuck")


def began():
    Path("began").touch()


@pack.tool()
def sleeps(ctx: CallContext) -> str:
    """Sleep in a thread."""
    began()
    time.sleep(600)
    return "slept"


@pack.tool()
async def blocks(ctx: CallContext) -> str:
    """Block the loop, as `requests` does."""
    began()
    time.sleep(600)
    return "slept"


@pack.tool()
async def refuses(ctx: CallContext) -> str:
    """Take every cancellation for an error to be tried again."""
    began()
    while True:
        try:
            await asyncio.sleep(600)
        except BaseException:
            pass


@pack.tool()
async def refuses_apart(ctx: CallContext) -> str:
    """The same in a task of its own."""
    return await asyncio.create_task(refuses(ctx))
'''

SHORT_DEADLINES = """
from gatepost import serve
from gatepost.cli.main import main
from gatepost.dev import composition
from gatepost.runtime import http_server as server
from gatepost.tools.calls.tool_deadline import ToolDeadline

server.HARD_END_S = 3
serve.END_S = 1.0
ToolDeadline.abandon_s = 0.3
made = composition.Listen
composition.Listen = lambda **settings: made(**{**settings, "drain_s": 0.3})
main(prog_name="gatepost")
"""
"""`gatepost` whose `dev` drains for 0.3 seconds and ends three seconds later."""


@contextlib.contextmanager
def short_deadlines(folder: Path) -> Iterator[Gatepost]:
    """Run `gatepost dev` with these tools, a drain of 0.3 seconds and one second to close."""
    (folder / "stuck.py").write_text(TOOLS)
    (folder / "short_deadlines.py").write_text(SHORT_DEADLINES)
    options = ["--port", str(free_port()), "--state", str(folder / "state")]
    command = [
        sys.executable,
        "-m",
        "short_deadlines",
        "dev",
        *options,
        "--tools",
        "stuck.py",
    ]
    process = Gatepost(command, env=python_environment(), cwd=folder)
    try:
        process.url = process.wait_for(READY_LINE)["url"]
        yield process
    finally:
        process.kill()


async def recorded_outcomes(folder: Path, tool: str) -> list[str]:
    """Return the recorded outcomes of this tool's calls."""
    records = await open_records(f"sqlite:///{folder}/state/gatepost.db")
    rows = await records.open_audit(None).tenant_log("acme").chain(1).rows(0, 1000)
    stopped_records = [read(row) for row in rows]
    await records.aclose()
    return [record.outcome for record in stopped_records if record.tool == tool]


@pytest.mark.parametrize(
    ("tool", "code"), [("sleeps", 0), ("blocks", 1), ("refuses", 0), ("refuses_apart", 1)]
)
def test_a_stop_ends_the_process_despite_a_hanging_tool(
    tmp_path: Path, tool: str, code: int
) -> None:
    """A tool that ignores its cancellation, or blocks the event loop, is abandoned and named."""
    heard: list[tuple[int, bytes]] = []

    def call() -> None:
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            tool_call(gatepost.url, bearer, tool, {}) as answer,
        ):
            heard.append((answer.status, answer.read()))

    with short_deadlines(tmp_path) as gatepost:
        bearer = token(tmp_path, "--tenant", "acme")
        caller = threading.Thread(target=call)
        caller.start()
        eventually((tmp_path / "began").exists, within=10)
        assert gatepost.stop(timeout_s=12) == code
        caller.join(60)

    named = tool.removesuffix("_apart")
    # The access line of a call names its tool as well.
    lines = [line for line in gatepost.stderr.splitlines() if "POST    /mcp" not in line]
    assert any(named in line for line in lines) == (tool != "sleeps")
    assert ("Timeout (" in gatepost.stderr) == (tool == "blocks")
    assert ("tool_abandoned" in gatepost.stderr) == (named == "refuses")
    if tool != "blocks":
        ((status, body),) = heard
        assert (status, json.loads(body)["error"]["data"]["error"]) == (503, "unavailable")
        assert "Traceback" not in gatepost.output
    if tool != "blocks":
        # What was done is on record before the database closes.
        assert asyncio.run(recorded_outcomes(tmp_path, tool)) == ["cancelled"]
