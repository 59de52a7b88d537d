"""`gatepost dev` with an author's own files: a configuration, the environment, and reloads."""

import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gatepost.config.settings import Listen
from gatepost.dev.composition import dev_config
from gatepost.dev.given_settings import given_settings
from gatepost.dev.token_command import STATE_FILE
from tests.architecture.source import ROOT
from tests.support import commands
from tests.support.client import ResourceClient, result
from tests.support.commands import Gatepost
from tests.support.measuring import each, eventually
from tests.support.processes import free_port

CONFIG = """
resource = "https://mcp.example.com/mcp"
issuers = [{ issuer = "https://id.example.com" }]
storage = { database = "env:DATABASE" }

[listen]
host = "0.0.0.0"
drain_s = 2

[tools]
packs = ["memory"]
load = ["shop.py"]

[network]
allow_hosts = ["127.0.0.1:9"]

[[upstreams]]
name = "crm"
tenants = ["acme"]
url = "http://127.0.0.1:9/mcp"
scopes = { "find_*" = ["crm:read"] }

[[approvals.rules]]
tools = ["price"]
by = ["role:approver"]
timeout_s = 1
"""
TICKETS = f"""
[approvals]
require = ["zendesk_create_ticket"]

[credentials.desk]
type = "static"
tenants = ["acme"]
hosts = ["desk.example.com"]
api_key = "secret:DESK"

[packs.openapi.apis.tickets]
document = "{ROOT}/examples/tickets/openapi.json"
base_url = "https://desk.example.com"
credential = "desk"
prefix = "zendesk_"
tags = ["tickets"]
"""
SHOP = """
import prices
from gatepost import CallContext, Pack

pack = Pack("shop")


@pack.tool({options})
async def price(ctx: CallContext) -> str:
    '''Tell the price.'''
    return prices.OF_ALL
"""


def shop(folder: Path, options: str = "", price: str = "five") -> None:
    """Write the author's files."""
    (folder / "prices.py").write_text(f"OF_ALL = {price!r}\n")
    (folder / "shop.py").write_text(SHOP.format(options=options))


def token_file(folder: Path) -> Path:
    """Return the file that `gatepost token` reads."""
    return folder / "state" / STATE_FILE


@pytest.fixture
def reloading(tmp_path: Path) -> Iterator[Gatepost]:
    shop(tmp_path)
    with commands.dev(tmp_path, "--tools", "shop.py", "--reload") as running:
        yield running


@pytest.fixture(autouse=True)
def default_hangup() -> Iterator[None]:
    """Let commands end at SIGHUP, also if `nohup` runs the tests: they inherit what it ignores."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def tool_text(running: Gatepost, folder: Path, *scopes: str) -> str:
    """Return the text that the tool answers."""
    token = commands.token(folder, "--tenant", "acme", *scopes)
    return str(result(ResourceClient(running.url).call(token, "price"))["content"][0]["text"])


def test_a_change_of_a_file_is_served_without_a_restart(
    reloading: Gatepost, tmp_path: Path
) -> None:
    """Imported modules and scopes are reloaded; a broken file changes nothing."""
    assert tool_text(reloading, tmp_path) == "five"

    (tmp_path / "prices.py").write_text("OF_ALL = 'six hundred'\n")
    eventually(lambda: tool_text(reloading, tmp_path) == "six hundred", within=20)

    (tmp_path / "shop.py").write_text(SHOP.format(options="aproval=True"))
    reloading.wait_for("there is no option 'aproval'; did you mean 'approval'")
    assert tool_text(reloading, tmp_path) == "six hundred"

    shop(tmp_path, options="scopes={'shop:read'}", price="seven thousand")
    token = commands.token(tmp_path, "--tenant", "acme")
    eventually(lambda: ResourceClient(reloading.url).call(token, "price").status == 403, within=20)
    assert tool_text(reloading, tmp_path, "--scopes", "shop:read") == "seven thousand"


IN_TERMINAL = """
import os, sys
if os.getsid(0) != os.getpid():
    os.setsid()
os.open(sys.argv[1], os.O_RDWR)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Run a command in the terminal that the first argument names."""


@each("options", [(), ("--reload",)])
def test_the_end_of_its_terminal_ends_the_server(tmp_path: Path, options: tuple[str, ...]) -> None:
    """It ends as after Ctrl-C: the file of `gatepost token` is removed."""
    state = tmp_path / "-".join(("state", *options))
    state.mkdir()
    shop(state)
    controller, terminal = os.openpty()
    with (
        open(terminal, "rb"),
        commands.running(
            *("dev", "--port", str(free_port()), "--tools", "shop.py", "--state", "state"),
            *options,
            cwd=state,
            before=(sys.executable, "-c", IN_TERMINAL, os.ttyname(terminal)),
        ) as running,
    ):
        assert commands.token(state, "--tenant", "acme")
        os.close(controller)

        assert running.process.wait(30) == 0
        assert not token_file(state).exists()


UNREADY = """
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from gatepost import Pack

pack = Pack("unready")


@pack.lifespan
async def lifespan() -> AsyncIterator[None]:
    Path("begun").touch()
    await asyncio.Event().wait()
    yield
"""


@each("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_the_start_leaves_no_file_behind(tmp_path: Path, number: int) -> None:
    """The file of `gatepost token` holds a secret."""
    folder = tmp_path / str(number)
    folder.mkdir()
    (folder / "unready.py").write_text(UNREADY)
    arguments = ("--port", str(free_port()), "--tools", "unready.py", "--state", "state")
    server = commands.run("dev", *arguments, cwd=folder)
    try:
        eventually((folder / "begun").exists, within=30)
        assert token_file(folder).exists()
        assert server.stop(with_signal=number) == 128 + number
    finally:
        server.kill()

    assert not token_file(folder).exists()


def test_an_address_in_use_leaves_no_file_behind(tmp_path: Path) -> None:
    """The server does not start."""
    with socket.create_server(("127.0.0.1", 0)) as metrics:
        address = f"127.0.0.1:{metrics.getsockname()[1]}"
        arguments = ("--port", str(free_port()), "--state", "state")
        env = {"GATEPOST_LISTEN__METRICS": address}
        assert commands.completed("dev", *arguments, cwd=tmp_path, env=env).code != 0

    assert not token_file(tmp_path).exists()


@each("options", [(), ("--reload",)])
def test_the_end_of_its_terminal_does_not_end_a_server_under_nohup(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """`nohup` makes a command ignore SIGHUP."""
    state = tmp_path / "-".join(("state", *options))
    state.mkdir()
    arguments = ("dev", "--port", str(free_port()), "--state", "state", *options)
    with commands.running(*arguments, cwd=state, before=("nohup",)) as running:
        running.process.send_signal(signal.SIGHUP)
        token = commands.token(state, "--tenant", "acme")
        for _ in range(3):
            assert ResourceClient(running.url).listed(token)


def test_a_configuration_file_is_combined_with_the_development_settings(tmp_path: Path) -> None:
    """Its packs, scopes, rules and limits apply; replaced settings are listed in the output."""
    shop(tmp_path)
    (tmp_path / "gatepost.toml").write_text(CONFIG + TICKETS)
    env = {"GATEPOST_LIMITS__MAX_BODY_BYTES": "2000"}
    with commands.dev(tmp_path, "--config", "gatepost.toml", env=env) as running:
        token = commands.token(tmp_path, "--tenant", "acme", "--scopes", "memory:read crm:read")
        client = ResourceClient(running.url)
        listed = result(client.ask(token, "tools/list"))["tools"]
        read = client.call(token, "memory_read")
        long = client.call(token, "echo", {"text": "x" * 3000})
        waiting = client.call(token, "price")
    _, listed_by_command, _ = commands.completed(
        "tools", "--config", "state/dev.toml", cwd=tmp_path
    )

    assert {tool["name"] for tool in listed} >= {"echo", "memory_read", "price"}
    assert read.status == 200
    assert long.status == 413
    assert b"The call was not approved in time" in waiting.body
    # What `gatepost approvals approve --config` needs to judge a request by the same rules.
    assert re.search(r"^price .* always ", listed_by_command, re.MULTILINE), listed_by_command
    assert re.search(r"^zendesk_create_ticket .* always ", listed_by_command, re.MULTILINE)
    assert (
        "Not used of gatepost.toml: `resource`, `listen.host`, `issuers`, `storage`"
        in running.output
    )


def test_each_environment_variable_is_used_or_refused_by_name(tmp_path: Path) -> None:
    """An ignored variable would make its owner look for the error elsewhere."""
    refused = {
        "GATEPOST_RESOURCE": "https://mcp.example.com/mcp",
        "GATEPOST_MODE": "production",
        "GATEPOST_LISTEN__PORT": "9",
        "GATEPOST_LISTEN__WORKERS": "2",
        "GATEPOST_STORAGE__DATABASE": "memory:",
        "GATEPOST_WORKSPACE__ROOT": "/srv",
        "GATEPOST_ISSUERS": "[]",
    }
    honoured = {
        "GATEPOST_LISTEN__LEAVE_S": "3",
        "GATEPOST_WORKSPACE__QUOTA_FILES": "7",
        "GATEPOST_APPROVALS__DESTRUCTIVE": "run",
        "GATEPOST_TOOLS__PACKS": "memory",
        "GATEPOST_PORT": "tcp://10.0.0.1:80",
    }
    resource = "http://127.0.0.1:8000/mcp"
    no = given_settings(None, refused, resource)
    yes = given_settings(None, honoured, resource)
    misspelt = given_settings(None, {"GATEPOST_LIMITS__BRUST": "1"}, resource)
    assert yes.config is not None
    config = dev_config(8000, tools=(), state=tmp_path, user_config=yes.config)

    assert {problem.message.split(" ")[0] for problem in no.problems} == set(refused)
    assert all("has no effect on `gatepost dev`" in problem.message for problem in no.problems)
    assert yes.problems == ()
    assert (config.listen.leave_s, config.listen.host, config.listen.port) == (3, "127.0.0.1", 8000)
    assert config.listen.workers == Listen().workers
    assert config.workspace.quota_files == 7
    assert config.workspace.root == str(tmp_path / "workspaces")
    assert config.approvals.destructive == "run"
    assert config.approvals.timeout_s == 1_800.0
    assert config.tools.packs == ("demo", "memory")
    assert [problem.id for problem in misspelt.problems] == ["config.E004"]


def test_dev_does_not_start_with_a_refused_variable(tmp_path: Path) -> None:
    """The message has the name, the reason and what to do."""
    env = {"GATEPOST_LISTEN__PORT": "9"}
    code, _, complaints = commands.completed("dev", "--port", "0", cwd=tmp_path, env=env)

    assert code == 1
    assert "GATEPOST_LISTEN__PORT has no effect on `gatepost dev`" in complaints
    assert "--port" in complaints
