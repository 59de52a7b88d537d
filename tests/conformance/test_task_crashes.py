"""Tasks of real servers that are killed or stopped: what was acknowledged is not lost."""

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.keyring import create
from tests.conformance.tasking import DECLARED
from tests.support.door import Door
from tests.support.forge import Forge
from tests.support.gatepost import READY, run
from tests.support.idp import Idp
from tests.support.mcp import META, VERSION, message
from tests.support.process import Process
from tests.support.sockets import free_port
from tests.support.waiting import eventually
from tests.tenancy.house import issuer
from tests.tenancy.post import toml

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


class Replica:
    """One server process, and the way to it."""

    def __init__(self, site: "Site", port: int) -> None:
        self.site, self.port = site, port
        self.process = self.start()

    def start(self) -> Process:
        config = self.site.write(self.port)
        process = run("serve", "--config", str(config), cwd=self.site.folder, env=self.site.env)
        process.wait_for(READY)
        return process

    def ask(self, method: str, params: dict[str, Any], name: str) -> Any:
        """The result of one request."""
        fields = [
            ("MCP-Protocol-Version", VERSION),
            ("Mcp-Method", method),
            ("Mcp-Name", name),
        ]
        meta = {META + "protocolVersion": VERSION, **DECLARED}
        body = message(method, {**params, "_meta": meta})
        door = Door(self.site.resource)
        door.port = self.port
        answer = door.send("POST", None, fields, body, token=self.site.token)
        assert answer.status == 200, answer
        return json.loads(answer.body)["result"]

    def begin(self, tool: str, name: str) -> str:
        """The id of a new task, once its tool runs."""
        asked = {"name": tool, "arguments": {"name": name}}
        task_id: str = self.ask("tools/call", asked, tool)["taskId"]
        eventually(lambda: self.site.runs(name), within=WITHIN_S)
        return task_id

    def get(self, task_id: str) -> Any:
        return self.ask("tasks/get", {"taskId": task_id}, task_id)

    def ended(self, task_id: str) -> Any:
        """The task at its end."""
        eventually(lambda: self.get(task_id)["status"] != "working", within=WITHIN_S)
        return self.get(task_id)


class Site:
    """Two servers for one resource, on one database and one Valkey."""

    def __init__(self, idp: Idp, folder: Path, database: str, shared: str) -> None:
        self.folder = folder
        self.env = {"DATABASE": database, "SHARED": shared}
        ports = free_port(), free_port()
        self.resource = f"http://127.0.0.1:{ports[0]}/mcp"
        self._issuers = [issuer(idp, tenants={"acme": "acme"})]
        self.token = Forge(idp.issuer("main"), self.resource).token()
        create(folder / "keyring.json")
        (folder / "crashes.py").write_text(TOOLS, encoding="utf-8")
        self.first, self.second = Replica(self, ports[0]), Replica(self, ports[1])

    def write(self, port: int) -> Path:
        """The configuration of the replica at that port."""
        settings = {
            "resource": self.resource,
            "mode": "development",
            "listen": {"port": port, "drain_s": 1},
            "keys": {"ring": "file:keyring.json"},
            "issuers": self._issuers,
            "storage": {"database": "env:DATABASE", "shared": "env:SHARED"},
            "tasks": {"lease_s": 2.0},
            "tools": {"load": ["./crashes.py"]},
        }
        path = self.folder / f"{port}.toml"
        path.write_text("\n".join(f"{k} = {toml(v)}" for k, v in settings.items()), "utf-8")
        return path

    def runs(self, name: str) -> int:
        """How often the tool was begun for *name*."""
        path = self.folder / f"{name}.runs"
        return len(path.read_text()) if path.exists() else 0

    def go(self, name: str) -> None:
        """Let the tool finish."""
        (self.folder / f"{name}.go").touch()


@pytest.fixture(scope="module")
def idp() -> Iterator[Idp]:
    with Idp() as idp:
        yield idp


Start = Callable[[str], contextlib.AbstractContextManager[Site]]


@pytest.fixture
def start(idp: Idp, tmp_path: Path, valkey: str) -> Start:
    """Starts a site on a database and Valkey; whatever still runs ends with the block."""

    @contextlib.contextmanager
    def started(database: str) -> Iterator[Site]:
        site = Site(idp, tmp_path, database, valkey)
        try:
            yield site
        finally:
            for replica in (site.first, site.second):
                replica.process.kill()

    return started


@pytest.mark.requirement("K-07", "K-10", "K-16")
def test_k_07_a_killed_server_loses_no_task_sqlite(start: Start, tmp_path: Path) -> None:
    """On SQLite: what may run again completes elsewhere, the rest ends honestly, and both stay."""
    with start(f"sqlite:///{tmp_path / 'gatepost.db'}") as site:
        a_server_is_killed(site)


@pytest.mark.requirement("K-07", "K-10", "K-16")
def test_k_07_a_killed_server_loses_no_task_postgresql(
    start: Start, migrated_postgres: str
) -> None:
    """The same on PostgreSQL; then a server that stops in peace hands its task over."""
    with start(migrated_postgres) as site:
        a_server_is_killed(site)
        a_server_stops(site)


def a_server_is_killed(site: Site) -> None:
    looking, paying = site.first.begin("look_up", "looking"), site.first.begin("pay", "paying")
    done = site.first.begin("pay", "done")
    site.go("done")
    before = site.second.ended(done)
    site.first.process.process.send_signal(signal.SIGKILL)
    site.first.process.process.wait(5)

    failed = site.second.ended(paying)
    assert (failed["status"], site.runs("paying")) == ("failed", 1)
    assert "whether it took effect is unknown" in failed["statusMessage"]
    eventually(lambda: site.runs("looking") == 2, within=WITHIN_S)
    site.first.process.kill()
    site.first.process = site.first.start()
    site.go("looking")
    completed = site.first.ended(looking)
    assert completed["result"]["content"][0]["text"] == str(site.second.process.process.pid)
    assert before["status"] == "completed"
    assert site.first.get(done) == site.second.get(done) == before


def a_server_stops(site: Site) -> None:
    task = site.second.begin("look_up", "later")
    assert site.second.process.stop() == 0
    eventually(lambda: site.runs("later") == 2, within=WITHIN_S)
    site.go("later")

    completed = site.first.ended(task)
    assert completed["result"]["content"][0]["text"] == str(site.first.process.process.pid)
    assert "Traceback" not in site.second.process.output
