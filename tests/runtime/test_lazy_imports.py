"""What a start imports: whatever is not used costs neither time nor memory."""

import json
import sys
from operator import attrgetter
from pathlib import Path

import pytest

import gatepost
from tests.support.commands import READY
from tests.support.processes import Process, free_port, python_environment

HELP = """
import json, sys
from gatepost.cli.main import main

main({arguments}, standalone_mode=False)
print(json.dumps(sorted(sys.modules)))
"""


def modules(script: str, folder: Path, *, until: str = "") -> set[str]:
    """
    The modules that a script has imported, of which it prints a list at its end.

    It ends by itself, or is stopped once it has printed *until*.
    """
    process = Process([sys.executable, "-c", script], env=python_environment(None), cwd=folder)
    try:
        if until:
            process.wait_for(until)
        else:
            process.process.wait(30)
        process.stop()
    finally:
        process.kill()
    return set(json.loads(process.stdout.splitlines()[-1]))


OPEN = """
import asyncio, json, sys
from gatepost.storage.backends import open_records

async def opened():
    await (await open_records("{url}")).aclose()

asyncio.run(opened())
print(json.dumps(sorted(sys.modules)))
"""

SERVE = """
import atexit, json, sys
from gatepost.cli.main import main

atexit.register(lambda: print(json.dumps(sorted(sys.modules))))
main(["serve", "--config", "gatepost.toml"])
"""
CONFIG = """
resource = "http://127.0.0.1:{port}/mcp"
mode = "development"
listen = {{ port = {port}, metrics = "" }}
storage.database = "memory:"
tools.packs = ["demo"]
issuers = [{{ issuer = "http://127.0.0.1:1/issuer", tenant = {{ value = "acme" }} }}]
"""
UNUSED = {
    "alembic", "sqlalchemy", "aiosqlite", "asyncpg", "redis",  # other stores
    "prometheus_client", "opentelemetry",  # nobody scrapes, nothing is sent
    "jinja2", "authlib", "gatepost.dashboard.routes",  # no dashboard
    "yaml", "apprise", "icalendar", "starlark", "gatepost_packs.openapi.description",  # other packs
    "gatepost.upstreams", "gatepost.credentials", "gatepost.runtime.upstreams",  # no upstreams
    "gatepost.rest.management", "gatepost.dashboard.upstreams", "gatepost.check.upstreams",
    "gatepost.doctor", "gatepost.dev", "gatepost_keys", "joserfc",  # other commands
}  # fmt: skip


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_a_command_line_that_runs_nothing_imports_no_server(option: str, tmp_path: Path) -> None:
    """Of ours the table of commands alone, and of others what reads a command line."""
    found = modules(HELP.format(arguments=[option]), tmp_path)

    assert {one for one in found if one.startswith("gatepost")} == {
        "gatepost",
        "gatepost.cli",
        "gatepost.cli.main",
    }
    assert found & {"asyncio", "httpx2", "msgspec", "pydantic", "starlette", "structlog"} == set()


def test_a_misspelt_name_of_the_package_is_told() -> None:
    """Names are loaded when they are asked for, and one that is not there is an error as ever."""
    with pytest.raises(AttributeError, match="module 'gatepost' has no attribute 'Pakc'"):
        attrgetter("Pakc")(gatepost)


@pytest.mark.parametrize(
    ("url", "needless"),
    [
        ("memory:", {"alembic", "aiosqlite", "asyncpg", "sqlalchemy"}),
        ("sqlite:///new.db", {"alembic", "asyncpg"}),
    ],
)
def test_a_database_brings_its_own_driver_alone(
    url: str, needless: set[str], tmp_path: Path
) -> None:
    """And neither the other's nor, for a new file, what takes an old one forward."""
    assert modules(OPEN.format(url=url), tmp_path) & needless == set()


def test_a_server_imports_nothing_that_its_configuration_does_not_use(tmp_path: Path) -> None:
    """Other stores, packs, commands, and pages are loaded where they are named, and only there."""
    (tmp_path / "gatepost.toml").write_text(CONFIG.format(port=free_port()))

    found = modules(SERVE, tmp_path, until=READY)

    assert "gatepost_packs.demo" in found
    assert found & UNUSED == set()
