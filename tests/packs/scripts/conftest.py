"""A server with scripts of its operator, on a database that an administrator shares."""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel

from gatepost import CallContext, Pack
from gatepost.policy.approvals.approval_request import DisplayedParty
from gatepost.policy.script_reviews.script import Place, Script
from gatepost.policy.script_reviews.store import SUBJECT, ScriptApprovals
from gatepost.tools.client import ProtocolError
from gatepost_packs.scripts.folders import from_code
from tests.packs.conftest import PackCaller, PackServer, Protocol, open_server
from tests.support.client import ResourceClient
from tests.support.commands import tenant_folder, toml_file
from tests.support.processes import free_port
from tests.support.server import configuration

pack = Pack("called")


class ScriptSureForm(BaseModel):
    """The form."""

    sure: bool


@pack.tool()
async def asks(ctx: CallContext) -> str:
    """Ask the person whether to go on."""
    return (await ctx.ask("Go on?", ScriptSureForm)).action


@pack.tool()
async def answers_an_error(ctx: CallContext) -> str:
    """Answer a JSON-RPC error."""
    raise ProtocolError(4711, "not in this house")


@pack.tool()
async def deeper(ctx: CallContext) -> str:
    """Call this tool again, and answer the depth at which that failed."""
    inner = await ctx.call("deeper", {})
    return inner.failure.message if inner.failure else f"> {inner.content[0]['text']}"


def is_there(path: str) -> bool:
    """Return whether that file exists."""
    return Path(path).exists()


@pack.tool(timeout_s=120)
async def held(ctx: CallContext, until: str) -> str:
    """Run until the test has made that file."""
    while not is_there(until):  # noqa: ASYNC110  # the server may be another process
        await asyncio.sleep(0.02)
    return "let go"


T = TypeVar("T")
ADMIN = DisplayedParty(subject="admin", kind="operator")

WEATHER = """\
# Current weather in a city.
# Made up, as it has no network.

def get_weather(city, units = "c"):
    return {"city": city, "temp_c": 15.5, "condition": "Cloudy"}

def main(*cities):
    print("asked for", len(cities))
    return [get_weather(city)["city"] for city in cities]

def _hidden():
    return 1
"""
TOOLS = """\
'''Calls other tools.'''

def main(tool, arguments):
    return call(tool, **arguments)

def attempt(tool, arguments):
    return try_call(tool, **arguments)

def again(depth):
    return try_call("script_run", name = "tools", function = "again", args = [depth + 1])

def nested(code):
    return try_call("script_exec", code = code)
"""
OPERATORS = {
    "weather.star": WEATHER,
    "tools.star": TOOLS,
    "broken.star": "def main(:\n",
    "values.star": "def echo(value):\n  return value\ndef text():\n  return 'Cloudy'\n",
    "new_feature.star": "def main():\n  return 'new'\n",
    "binary.star": "\udcff",
    "exec-0123456789abcdef.star": "1",
    "notes.txt": "no script",
}
ALLOW = ["weather", "tools", "broken", "values", "binary"]
PACKS = ["scripts", "filesystem", "demo"]


class ScriptServer(PackServer):
    """The server, the operator's folder, and a configuration for `gatepost scripts`."""

    folder: Path
    port: int

    def configure(self, settings: dict[str, Any]) -> None:
        """Write the configuration of another process: a replica, or `gatepost scripts`."""
        issuers = [{"issuer": self.config.issuers[0].issuer, "tenant": {"claim": "org_id"}}]
        self.port = free_port()
        configured = configuration(0, issuers, **settings) | {
            "resource": self.config.resource,
            "listen": {"port": self.port, "drain_s": 1},
            "tenancy": {"create_on_first_use": True},
        }
        (self.folder / "gatepost.toml").write_text(toml_file(configured), encoding="utf-8")

    def elsewhere(self, protocol: Protocol, tenant: str) -> PackCaller:
        """Return an agent that calls the other process, which runs with that configuration."""
        agent = self.agent(protocol, tenant)
        agent.gatepost = copy.copy(self)
        agent.gatepost.client = ResourceClient(self.client.resource)
        agent.gatepost.client.port = self.port
        return agent

    def put(self, name: str, text: str, tenant: str | None = None) -> Path:
        """Write a script into the operator's folder, or into a tenant's workspace."""
        base = self.folder / "operator"
        if tenant is not None:
            base = tenant_folder(self.folder / "workspaces", tenant) / "scripts"
            base.mkdir(parents=True, exist_ok=True)
        path = base / f"{name}.star"
        path.write_bytes(text.encode(errors="surrogateescape"))
        return path

    def at_approvals(self, tenant: str, do: Callable[[ScriptApprovals], Awaitable[T]]) -> T:
        """Do something with a tenant's approvals, as an administrator does."""

        async def work() -> T:
            return await do(ScriptApprovals(self.services.records.of(tenant).entries(SUBJECT)))

        # In the server's own loop: SQLite loses its locks when one process opens a file twice.
        return self.run(work())

    def approve(self, tenant: str, name: str, text: str, place: Place = "workspace") -> None:
        script = Script(name, text.encode(), place)
        self.at_approvals(tenant, lambda approvals: approvals.approve(script, by=ADMIN))

    def approve_code(self, tenant: str, code: str) -> None:
        script = from_code(code.encode())
        self.at_approvals(tenant, lambda approvals: approvals.approve(script, by=ADMIN))

    def revoke(self, tenant: str, name: str) -> None:
        self.at_approvals(tenant, lambda approvals: approvals.revoke(name))

    def waiting(self, tenant: str) -> list[str]:
        """Return the names of the scripts that wait for an administrator."""
        return [one.name for one in self.at_approvals(tenant, lambda those: those.waiting())]


@contextmanager
def open_script_server(folder: Path, **scripts: Any) -> Iterator[ScriptServer]:
    """Serve the scripts above; *scripts* are settings of the pack beside the usual low limits."""
    usual = {
        "folder": str(folder / "operator"),
        "allow": ALLOW,
        "timeout_s": 10,
        "cpu_s": 5,
        "memory_mb": 64,
        "max_steps": 20_000_000,
        "max_output_bytes": 20_000,
        "max_calls": 10,
        "max_pending": 3,
    }
    settings: dict[str, Any] = {
        "packs": {"scripts": usual | scripts},
        "tools": {"packs": PACKS, "load": [__name__]},
        "storage": {"database": f"sqlite:///{folder / 'gatepost.db'}"},
        "workspace": {"root": str(folder / "workspaces")},
    }
    (folder / "operator").mkdir()
    for file, text in OPERATORS.items():
        (folder / "operator" / file).write_bytes(text.encode(errors="surrogateescape"))

    with open_server(folder, PACKS, kind=ScriptServer, **settings) as script_server:
        script_server.folder = folder
        script_server.configure(settings)
        yield script_server


def children_of(parent: int) -> set[int]:
    """Return the children of a process, zombies included."""
    pids = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return {pid for pid in pids if int(_stat_of(pid)[1]) == parent}


def is_alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    return _stat_of(pid)[0] not in "XZ"


def _stat_of(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ["X", "0"]
    return text.rpartition(")")[2].split()


@pytest.fixture(scope="module")
def script_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptServer]:
    """A server with as many tenants as the tests need."""
    with open_script_server(tmp_path_factory.mktemp("script_server")) as script_server:
        yield script_server


@pytest.fixture(params=["mcp", "rest"])
def agent(script_server: ScriptServer, request: pytest.FixtureRequest) -> PackCaller:
    """An agent of a tenant of its own, who calls by one of the two protocols."""
    return script_server.agent(request.param)
