"""What a start imports: whatever is not used costs neither time nor memory."""

import json
import re
import sys
from operator import attrgetter
from pathlib import Path

import pytest

import gatepost
from gatepost.secrets.keyring import create
from tests.support.commands import READY_LINE
from tests.support.processes import Process, free_port, python_environment

HELP = """
import json, sys
from gatepost.cli.main import main

main({arguments}, standalone_mode=False)
print(json.dumps(sorted(sys.modules)))
"""


def modules(script: str, folder: Path, *, until: str = "") -> tuple[set[str], str]:
    """
    Return the modules that a script has imported, which it prints last, and its output.

    It ends by itself, or is stopped after it has printed *until*.
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
    output, _, names = process.stdout.rstrip("\n").rpartition("\n")
    return set(json.loads(names)), output


OPEN_PROGRAM = """
import asyncio, json, sys
from gatepost.storage.backends import open_records

async def opened():
    await (await open_records("{url}")).aclose()

asyncio.run(opened())
print(json.dumps(sorted(sys.modules)))
"""

SERVE_PROGRAM = """
import atexit, json, sys
from gatepost.cli.main import main

atexit.register(lambda: print(json.dumps(sorted(sys.modules))))
main(["serve", "--timings", "--config", "gatepost.toml"])
"""
CONFIG = """
resource = "http://127.0.0.1:{port}/mcp"
mode = "development"
listen.port = {port}
tools.packs = ["demo"]
{settings}
"""
MINIMAL_CONFIG = """
listen.metrics = ""
storage.database = "memory:"
issuers = [{ issuer = "http://127.0.0.1:1/issuer", tenant = { value = "acme" } }]
"""
FULL_CONFIG = """
listen.metrics = "127.0.0.1:{metrics}"
storage.database = "sqlite:///gatepost.db"
telemetry.otlp_endpoint = "http://127.0.0.1:1"
scopes.admin = "administration"
keys.ring = "file:keyring.json"
[[issuers]]
issuer = "http://127.0.0.1:1/issuer"
tenant = {{ value = "acme" }}
dashboard = {{ client_id = "dashboard", client_secret = "file:secret" }}
roles = {{ approver = {{ claim = "roles", value = "approver" }} }}
"""
BY_SETTING = {
    "storage.database": {"sqlalchemy", "gatepost.storage.sql.records"},
    "listen.metrics": {"prometheus_client", "gatepost.telemetry.exposition"},
    "telemetry.otlp_endpoint": {"opentelemetry", "gatepost.telemetry.otlp"},
    "issuers.dashboard": {"jinja2", "authlib", "gatepost.dashboard.routes"},
    "scopes.admin": {
        "gatepost.upstreams", "gatepost.credentials", "gatepost.check.upstreams",
        "gatepost.runtime.upstreams", "gatepost.rest.management",
    },
}  # fmt: skip
"""Settings, and what is imported where they are set and only there."""
UNUSED_MODULES = {
    "alembic", "asyncpg", "redis", "sqlalchemy.orm",  # other stores
    "yaml", "apprise", "icalendar", "starlark", "gatepost_packs.openapi.description",  # other packs
    "gatepost.doctor", "gatepost.dev", "gatepost_keys", "joserfc",  # other commands
    "gatepost.mcp.stdio", "gatepost.mcp_client", "gatepost.testing",
}  # fmt: skip


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_only_the_command_table(option: str, tmp_path: Path) -> None:
    """It imports only Gatepost's table of commands, and a parser of command lines."""
    imported, _ = modules(HELP.format(arguments=[option]), tmp_path)

    assert {name for name in imported if name.startswith("gatepost")} == {
        "gatepost",
        "gatepost.cli",
        "gatepost.cli.main",
    }
    assert imported & {"asyncio", "httpx2", "msgspec", "pydantic", "starlette"} == set()


def test_a_command_without_a_server_does_not_import_the_server(tmp_path: Path) -> None:
    """Approvers do not wait for imports of the protocol and its connections."""
    imported, _ = modules(HELP.format(arguments=["approvals", "--help"]), tmp_path)

    assert "gatepost.cli.approvals" in imported
    assert (
        imported & {"uvicorn", "gatepost.mcp", "gatepost.runtime.services", "sqlalchemy"} == set()
    )


def test_a_misspelt_attribute_of_the_package_is_an_error() -> None:
    """The package loads its names on first use."""
    with pytest.raises(AttributeError, match="module 'gatepost' has no attribute 'Pakc'"):
        attrgetter("Pakc")(gatepost)


@pytest.mark.parametrize(
    ("url", "needless"),
    [
        ("memory:", {"alembic", "asyncpg", "sqlalchemy"}),
        ("sqlite:///new.db", {"alembic", "asyncpg", "sqlalchemy.orm", "sqlalchemy.ext.asyncio"}),
    ],
)
def test_a_database_brings_its_own_driver_alone(
    url: str, needless: set[str], tmp_path: Path
) -> None:
    """It imports no other driver, and no migrations for a new file."""
    assert modules(OPEN_PROGRAM.format(url=url), tmp_path)[0] & needless == set()


ORM = """
import asyncio, json, sys
from gatepost.storage.sql.async_engine import create_async_engine
from sqlalchemy import text
from sqlalchemy.ext import asyncio as package

async def asked():
    engine = package.create_async_engine("{url}")
    async with package.AsyncSession(engine) as session:
        print(await session.scalar(text("SELECT 'of a session'")))
    await engine.dispose()

asyncio.run(asked())
assert package.create_async_engine is create_async_engine
print(json.dumps(sorted(sys.modules)))
"""


def test_a_tool_may_use_the_orm_that_the_stores_do_not(
    tmp_path: Path, emptied_postgres: str
) -> None:
    """It imports SQLAlchemy's whole package next to the engine that is already loaded."""
    url = emptied_postgres.replace("postgresql:", "postgresql+asyncpg:")
    imported, printed = modules(ORM.format(url=url), tmp_path)

    assert printed == "of a session"
    assert "sqlalchemy.orm" in imported


def served(settings: str, folder: Path) -> tuple[set[str], str]:
    """Return the modules of a server with these settings, and what it printed."""
    (folder / "gatepost.toml").write_text(CONFIG.format(port=free_port(), settings=settings))
    return modules(SERVE_PROGRAM, folder, until=READY_LINE)


def test_a_server_imports_only_the_modules_that_its_configuration_uses(tmp_path: Path) -> None:
    """Other stores, packs, commands and pages are not loaded."""
    imported, printed = served(MINIMAL_CONFIG, tmp_path)

    assert "gatepost_packs.demo" in imported
    assert imported & UNUSED_MODULES == set()
    assert [imported & names for names in BY_SETTING.values()] == [set()] * len(BY_SETTING)
    assert timings(printed) == START_PHASES


def test_a_server_imports_all_configured_modules_at_its_start(tmp_path: Path) -> None:
    """A failed import stops the start, and not the first request."""
    create(tmp_path / "keyring.json")
    (tmp_path / "secret").write_text("of the dashboard")

    imported, printed = served(FULL_CONFIG.format(metrics=free_port()), tmp_path)

    assert {setting: imported & names for setting, names in BY_SETTING.items()} == BY_SETTING
    assert imported & UNUSED_MODULES == set()
    assert timings(printed) == [*START_PHASES[:5], "/metrics", *START_PHASES[5:]]
    assert "  import sqlalchemy" in printed


START_PHASES = [
    "Python (CPU time)",
    "imports of the command",
    "configuration, tools and their checks",
    "key ring and sockets",
    "log, and imports that the first request would make",
    "stores and services",
    "application and TLS",
    "ready",
]


def timings(printed: str) -> list[str]:
    """Return the parts of the start in the table of `--timings`, whose times add up."""
    table = printed.split("part of the start\n")[1].splitlines()
    rows = [TIMING_LINE.fullmatch(line) for line in table]
    parts = [(row["name"], float(row["ms"])) for row in rows if row and row["name"][0] != " "]
    *parts, (last, total) = parts

    assert last == "all"
    assert sum(ms for _, ms in parts) == pytest.approx(total, abs=1)
    assert total > parts[1][1] > 0
    return [name for name, _ in parts]


TIMING_LINE = re.compile(r" *(?P<ms>\d+\.\d) (?P<mib>[ \d.-]{6})  (?P<name>.+)")
