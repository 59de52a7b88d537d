"""Tasks of real servers that are killed or stopped: what was acknowledged is not lost."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import ResourceClient
from tests.support.endpoint import DECLARED_META, META, VERSION, message
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.replicas import ReplicaProcesses

TOOLS = '''
import asyncio
import os
from pathlib import Path

from gatepost import CallContext, Pack

pack = Pack("crashes")


async def run(name: str) -> str:
    with open(f"{name}.runs", "a") as runs:
        runs.write("x")
    while not Path(f"{name}.go").exists():
        await asyncio.sleep(0.02)
    return str(os.getpid())


@pack.tool(task_support="optional", read_only=True, timeout_s=60)
async def look_up(ctx: CallContext, name: str) -> str:
    """Change nothing."""
    return await run(name)


@pack.tool(task_support="optional", timeout_s=60)
async def pay(ctx: CallContext, name: str) -> str:
    """Pay; twice would be too often."""
    return await run(name)
'''
WITHIN_S = 20


class CrashingReplicas(ReplicaProcesses):
    """Two servers with these tools, and the way to each by its number."""

    def __init__(self, idp: Idp, folder: Path, shared: str) -> None:
        tools = folder / "crashes.py"
        tools.write_text(TOOLS, encoding="utf-8")
        storage = {"database": "sqlite:///gatepost.db", "shared": shared}
        limits = {"listen": {"drain_s": 1}, "tasks": {"lease_s": 2.0}}
        super().__init__(idp, folder, storage, tools=tools, **limits)

    def ask(self, at: int, method: str, params: dict[str, Any], name: str) -> Any:
        """Send one request; return its result."""
        fields = [
            ("MCP-Protocol-Version", VERSION),
            ("Mcp-Method", method),
            ("Mcp-Name", name),
        ]
        meta = {META + "protocolVersion": VERSION, **DECLARED_META}
        body = message(method, {**params, "_meta": meta})
        client = ResourceClient(self.url)
        client.port = self.ports[at]
        answer = client.send("POST", None, fields, body, token=self.token())
        assert answer.status == 200, answer
        return json.loads(answer.body)["result"]

    def begin(self, at: int, tool: str, name: str) -> str:
        """Start a task; return its id once its tool runs."""
        params = {"name": tool, "arguments": {"name": name}}
        task_id: str = self.ask(at, "tools/call", params, tool)["taskId"]
        eventually(lambda: self.runs(name), within=WITHIN_S)
        return task_id

    def get(self, at: int, task_id: str) -> Any:
        return self.ask(at, "tasks/get", {"taskId": task_id}, task_id)

    def ended(self, at: int, task_id: str) -> Any:
        """Wait for the task's end; return the task."""
        eventually(lambda: self.get(at, task_id)["status"] != "working", within=WITHIN_S)
        return self.get(at, task_id)

    def runs(self, name: str) -> int:
        """Return how often the tool was begun for *name*."""
        path = self.folder / f"{name}.runs"
        return len(path.read_text()) if path.exists() else 0

    def go(self, name: str) -> None:
        """Let the tool finish."""
        (self.folder / f"{name}.go").touch()

    def pid(self, number: int) -> str:
        """Return the process id that a tool at this server answers."""
        return str(self.servers[number].process.pid)


@pytest.fixture
def replicas(idp: Idp, tmp_path: Path, valkey: str) -> Iterator[CrashingReplicas]:
    replicas = CrashingReplicas(idp, tmp_path, valkey)
    with replicas.running():
        yield replicas


@pytest.mark.requirement("K-07", "K-10", "K-16")
def test_k_07_a_server_that_is_killed_or_stopped_loses_no_task(replicas: CrashingReplicas) -> None:
    """Repeatable tasks complete at another server; the others fail. Both stay readable."""
    a_server_is_killed(replicas)
    a_server_stops(replicas)


def a_server_is_killed(replicas: CrashingReplicas) -> None:
    looking, paying = replicas.begin(0, "look_up", "looking"), replicas.begin(0, "pay", "paying")
    done = replicas.begin(0, "pay", "done")
    replicas.go("done")
    before = replicas.ended(1, done)
    replicas.kill(0)

    failed = replicas.ended(1, paying)
    assert (failed["status"], replicas.runs("paying")) == ("failed", 1)
    assert "whether it took effect is unknown" in failed["statusMessage"]
    eventually(lambda: replicas.runs("looking") == 2, within=WITHIN_S)
    replicas.restart(0)
    replicas.go("looking")
    completed = replicas.ended(0, looking)
    assert completed["result"]["content"][0]["text"] == replicas.pid(1)
    assert before["status"] == "completed"
    assert replicas.get(0, done) == replicas.get(1, done) == before


def a_server_stops(replicas: CrashingReplicas) -> None:
    """Assert that a server that stops normally hands its task over."""
    task = replicas.begin(1, "look_up", "later")
    assert replicas.servers[1].stop() == 0
    eventually(lambda: replicas.runs("later") == 2, within=WITHIN_S)
    replicas.go("later")

    completed = replicas.ended(0, task)
    assert completed["result"]["content"][0]["text"] == replicas.pid(0)
    assert "Traceback" not in replicas.servers[1].output
