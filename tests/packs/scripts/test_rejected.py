"""A rejected script is refused with the reason, and no administrator is asked about it again."""

import asyncio
import copy
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel

from gatepost import CallContext, Pack
from gatepost.policy.approvals.approval_request import DisplayedParty, reason_sentence
from gatepost.policy.script_reviews.script import Place, Script
from gatepost.policy.script_reviews.store import SUBJECT, ScriptApprovals
from gatepost.tools.context.client import ProtocolError
from gatepost_packs.scripts.folders import from_code
from tests.packs.conftest import PackCaller, PackServer, open_server
from tests.support.client import Protocol, ResourceClient, ToolResult
from tests.support.commands import completed, running, tenant_folder, toml_file
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


ALLOWED_TOOLS = ["weather", "tools", "broken", "values", "binary"]


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

    def agent_of_other_process(self, protocol: Protocol, tenant: str) -> PackCaller:
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

    def approve(self, tenant: str, name: str, text: str, location: Place = "workspace") -> None:
        script = Script(name, text.encode(), location)
        self.at_approvals(tenant, lambda approvals: approvals.approve(script, by=ADMIN))

    def approve_code(self, tenant: str, code: str) -> None:
        script = from_code(code.encode())
        self.at_approvals(tenant, lambda approvals: approvals.approve(script, by=ADMIN))

    def revoke(self, tenant: str, name: str) -> None:
        self.at_approvals(tenant, lambda approvals: approvals.revoke(name))

    def waiting(self, tenant: str) -> list[str]:
        """Return the names of the scripts that wait for an administrator."""
        return [
            request.name for request in self.at_approvals(tenant, lambda those: those.waiting())
        ]


@contextmanager
def open_script_server(folder: Path, **scripts: Any) -> Iterator[ScriptServer]:
    """Serve the scripts above; *scripts* are settings of the pack beside the usual low limits."""
    usual = {
        "folder": str(folder / "operator"),
        "allow": ALLOWED_TOOLS,
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


@pytest.fixture(scope="module")
def script_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptServer]:
    """Yield a server with as many tenants as the tests need."""
    with open_script_server(tmp_path_factory.mktemp("script_server")) as script_server:
        yield script_server


@pytest.fixture(params=["mcp", "rest"])
def agent(script_server: ScriptServer, request: pytest.FixtureRequest) -> PackCaller:
    """Return an agent of a tenant of its own, which calls by one of the two protocols."""
    return script_server.agent(request.param)


pytestmark = pytest.mark.requirement("P11")

FIRST_SCRIPT, OTHER_SCRIPT = "def main():\n  return 'one'\n", "def main():\n  return 'other'\n"
REFUSAL_PATTERN = (
    r"Error: Script '{}\.star' was rejected by \S+, so it was not run\. Their reason: {} "
    r"Do not call it again as it is: change it, or ask your user\."
)


def run(agent: PackCaller, name: str = "mine") -> ToolResult:
    return agent.call("script_run", name=name)


def gatepost(script_server: ScriptServer, *words: str) -> str:
    """Run a command of the administrator in a process of its own, and return its output."""
    code, says, complaints = completed(*words, cwd=script_server.folder)
    assert code == 0, complaints
    return says


def reject(script_server: ScriptServer, tenant: str, name: str, reason: str) -> str:
    """Reject what waits by that name, at the command line; its id."""
    rows = [
        line.split() for line in gatepost(script_server, *LIST, "--tenant", tenant).splitlines()
    ]
    [which] = [words[0] for words in rows if words[2] == f"{name}.star"]
    gatepost(script_server, "approvals", "reject", "--tenant", tenant, which, "--reason", reason)
    return which


LIST = ("approvals", "list")


def test_a_rejected_call_names_the_approver_and_the_reason(
    script_server: ScriptServer, agent: PackCaller
) -> None:
    """Each call of that content is refused over both protocols and makes no new request."""
    script_server.put("mine", FIRST_SCRIPT, agent.tenant)
    run(agent)
    reject(script_server, agent.tenant, "mine", "Not tested")
    again = [run(agent), run(agent)]
    reloaded = agent.call("script_reload").value

    for reply in again:
        assert re.fullmatch(REFUSAL_PATTERN.format("mine", r"Not tested\."), str(reply.failure))
        assert reply.kind == ("denied" if agent.protocol == "rest" else None)
    assert "mine" in reloaded["unapproved"]
    assert "mine" not in script_server.waiting(agent.tenant)


def test_a_changed_script_waits_again(script_server: ScriptServer, agent: PackCaller) -> None:
    """The rejected content stays rejected, even after an approval of other content."""
    script_server.put("mine", FIRST_SCRIPT, agent.tenant)
    run(agent)
    reject(script_server, agent.tenant, "mine", "No!")
    script_server.put("mine", OTHER_SCRIPT, agent.tenant)
    changed = run(agent)
    script_server.approve(agent.tenant, "mine", OTHER_SCRIPT)
    approved = run(agent)
    script_server.put("mine", FIRST_SCRIPT, agent.tenant)

    assert "pending approval" in str(changed.failure)
    assert approved.value["value"] == "other"
    assert re.fullmatch(REFUSAL_PATTERN.format("mine", "No!"), str(run(agent).failure))
    assert script_server.waiting(agent.tenant) == []


def test_code_without_a_file_can_be_rejected(
    script_server: ScriptServer, agent: PackCaller
) -> None:
    """A rejection without a reason shows none; any other code waits."""
    first = agent.call("script_exec", code="6 * 7")
    (name,) = re.findall(r"exec-[0-9a-f]{16}", str(first.failure))
    reject(script_server, agent.tenant, name, "")
    reply = agent.call("script_exec", code="6 * 7")

    assert "so it was not run. Do not call it again" in str(reply.failure)
    assert "pending" in str(agent.call("script_exec", code="6 * 7 ").failure)


def test_an_administrator_can_approve_a_rejected_script(script_server: ScriptServer) -> None:
    """Either command shows the rejection; a script without a file can be approved, too."""
    agent = script_server.agent("mcp")
    who = ("--tenant", agent.tenant)
    script_server.put("mine", FIRST_SCRIPT, agent.tenant)
    run(agent)
    which = reject(script_server, agent.tenant, "mine", "Not \x1b[2Jtested.")
    code = agent.call("script_exec", code="6 * 7")
    (name,) = re.findall(r"exec-[0-9a-f]{16}", str(code.failure))
    reject(script_server, agent.tenant, name, "")
    listed = gatepost(script_server, "scripts", "list", *who)
    past = gatepost(script_server, *LIST, "--past", *who)
    output = gatepost(script_server, "approvals", "show", *who, which)
    seen = gatepost(script_server, "scripts", "approve", name, *who)
    (digest,) = re.findall(r"--digest ([0-9a-f]{64})", seen)
    gatepost(script_server, "scripts", "approve", name, "--digest", digest, *who)
    (digest,) = re.findall(r"approve .* --digest (\w+)", output)
    gatepost(script_server, "approvals", "approve", *who, which, "--digest", digest)

    rows = [line.split()[:2] for line in listed.splitlines()]
    assert ["mine", "rejected"] in rows
    assert [name, "rejected"] in rows
    assert which in past
    assert "Not \\x1b[2Jtested." in output
    assert "rejected this content." in seen
    assert run(agent).value["value"] == "one"
    assert agent.call("script_exec", code="6 * 7").value["value"] == 42


def test_a_rejection_counts_at_every_replica(script_server: ScriptServer) -> None:
    """The next call at any replica is refused."""
    with running("serve", "--config", "gatepost.toml", cwd=script_server.folder):
        here, remote = (
            script_server.agent("mcp", "far"),
            script_server.agent_of_other_process("mcp", "far"),
        )
        script_server.put("mine", FIRST_SCRIPT, "far")
        before = [run(here).failure, run(remote).failure]
        reject(script_server, "far", "mine", "No.")
        after = [run(remote).failure, run(here).failure]

    assert all("pending approval" in str(answer) for answer in before)
    assert all(
        re.fullmatch(REFUSAL_PATTERN.format("mine", r"No\."), str(answer)) for answer in after
    )


REASON_SENTENCES = {
    "": "",
    "No": " Their reason: No.",
    "No!": " Their reason: No!",
    "Why?": " Their reason: Why?",
}


@pytest.mark.parametrize(("reason", "sentence"), REASON_SENTENCES.items())
def test_a_rejection_reason_becomes_a_sentence(reason: str, sentence: str) -> None:
    """Scripts and calls have the same sentence; without a reason there is none."""
    assert reason_sentence(reason) == sentence
