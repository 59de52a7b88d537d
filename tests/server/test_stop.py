"""A stop ends, whatever tools do, and says something to whoever still waits."""

import contextlib
import http.client
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.test_serve import asking
from tests.support.gatepost import READY, Gatepost, token
from tests.support.process import python_environment
from tests.support.sockets import free_port
from tests.support.waiting import eventually

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
'''


@contextlib.contextmanager
def impatient(folder: Path) -> Iterator[Gatepost]:
    """`gatepost dev` with these tools, a drain of one second and one more to close."""
    (folder / "stuck.py").write_text(TOOLS)
    options = ["--port", str(free_port()), "--state", str(folder / "state")]
    command = [
        sys.executable,
        "-m",
        "tests.server.impatient",
        "dev",
        *options,
        "--tools",
        "stuck.py",
    ]
    process = Gatepost(command, env=python_environment(), cwd=folder)
    try:
        process.url = process.wait_for(READY)["url"]
        yield process
    finally:
        process.kill()


@pytest.mark.parametrize(("tool", "code"), [("sleeps", 0), ("blocks", 1), ("refuses", 1)])
def test_a_stop_ends_the_process_whatever_a_tool_does(tmp_path: Path, tool: str, code: int) -> None:
    """A thread holds nothing up; who holds the loop is named, and the process ends without it."""
    heard: list[tuple[int, bytes]] = []

    def call() -> None:
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            asking(gatepost.url, bearer, tool, {}) as answer,
        ):
            heard.append((answer.status, answer.read()))

    with impatient(tmp_path) as gatepost:
        bearer = token(tmp_path, "--tenant", "acme")
        caller = threading.Thread(target=call)
        caller.start()
        eventually((tmp_path / "began").exists, within=10)
        assert gatepost.stop(timeout_s=12) == code
        caller.join(10)

    assert (tool in gatepost.stderr) == (tool == "blocks")
    assert ("Timeout (" in gatepost.stderr) == (code == 1)
    if tool == "sleeps":
        ((status, body),) = heard
        assert (status, json.loads(body)["error"]["data"]["error"]) == (503, "unavailable")
        assert "Traceback" not in gatepost.output
