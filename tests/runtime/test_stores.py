"""The configured stores: judged, opened, looked after, watched; and said so when they are out."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gatepost.app import build_app
from gatepost.check.pack_loading import load
from gatepost.check.problems import problems
from gatepost.config.settings import Config, Listen, StorageSettings
from gatepost.runtime import stores
from gatepost.runtime.startup import opened
from gatepost.runtime.stores import Watch
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.errors import StoreRefused, StoreUnavailable
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.shared_store import MemorySharedStore
from gatepost.storage.sql.tables import REVISION
from tests.support.commands import run
from tests.support.connections import ask
from tests.support.measuring import capture_logs
from tests.support.processes import Process, free_port, python_environment
from tests.support.stores import POSTGRES_PASSWORD

SILENT_STORE = "redis://127.0.0.1:1/0"
"""Where no Valkey is."""


def config(database: str = "memory:", shared: str = "", **settings: Any) -> Config:
    return Config(
        resource="http://127.0.0.1:8000/mcp",
        **{"mode": "development", **settings},
        storage=StorageSettings(database=database, shared=shared),
    )


def storage_problems(configured: Config) -> list[tuple[str, str, str]]:
    """Return the id, the setting and the text of each problem with the storage."""
    judged = problems(configured, load(configured.tools))
    return [
        (problem.id, problem.setting, f"{problem.message} {problem.hint}")
        for problem in judged
        if problem.setting.startswith("storage.")
    ]


PG, REDIS = "postgresql://a:hidden@db/x", "redis://:hidden@cache/0"
WORKERS = Listen(workers=2)
REFUSED_SETTINGS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "no scheme": ({"database": "gatepost.db"}, "E032", "database", "sqlite:///PATH"),
    "a scheme of others": ({"database": "mysql://a:hidden@b/c"}, "E032", "database", "mysql"),
    "no path": ({"database": "sqlite:///"}, "E032", "database", "sqlite:///PATH"),
    "SQLite's memory": ({"database": "sqlite:///:memory:"}, "E032", "database", "memory:"),
    "SQLite's URL": ({"database": "sqlite:///file:x"}, "E032", "database", "sqlite:///PATH"),
    "a driver": ({"database": "postgresql+psycopg://b/c"}, "E032", "database", "postgresql:"),
    "no host": ({"database": "postgresql:///c"}, "E032", "database", "postgresql://"),
    "no port": ({"database": "postgresql://a:hidden@b:x/c"}, "E032", "database", "store URL"),
    "nothing": ({"database": ""}, "E032", "database", "memory:"),
    "a secret in the wrong place": ({"database": "hidden"}, "E032", "database", "this"),
    "http": ({"shared": "http://hidden@b/"}, "E032", "shared", "redis://"),
    "memory is no shared store": ({"shared": "memory:"}, "E032", "shared", "redis://"),
    "an unset variable": ({"database": "env:NO_SUCH"}, "E030", "database", "NO_SUCH"),
    "a missing file": ({"shared": "file:none"}, "E030", "shared", "none"),
    "a password in the file": (
        {"database": PG, "mode": "production"}, "E031", "database", "env:NAME",
    ),
    "a password as an option": (
        {"database": "postgresql://b/c?password=hidden", "mode": "production"},
        "E031", "database", "file:PATH",
    ),
    "a shared store's password": (
        {"database": "sqlite:///x", "shared": REDIS, "mode": "production"},
        "E031", "shared", "env:",
    ),
    "a folder": ({"database": "sqlite:///."}, "E034", "database", "folder"),
    "below a file": ({"database": "sqlite:///file/x.db"}, "E034", "database", "not a folder"),
    "workers without a shared store": (
        {"database": "sqlite:///x.db", "listen": WORKERS}, "E035", "shared", "redis://",
    ),
    "workers with memories": (
        {"database": "memory:", "shared": REDIS, "listen": WORKERS}, "E036", "database", "memory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_SETTINGS.values(), ids=REFUSED_SETTINGS)
def test_a_store_that_cannot_be_opened_is_reported(
    case: tuple[dict[str, Any], str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found before the start, and has an id, the setting, a remedy, and no secret."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    settings, problem, setting, says = case
    reported_problems = storage_problems(config(**settings))

    assert [(id_, where) for id_, where, _ in reported_problems] == [
        (f"config.{problem}", f"storage.{setting}")
    ]
    assert says in reported_problems[0][2]
    assert "hidden" not in reported_problems[0][2]


VALID_SETTINGS: dict[str, dict[str, Any]] = {
    "the default": {"database": "sqlite:///gatepost.db"},
    "a folder that will be made": {"database": "sqlite:///data/deep/gatepost.db"},
    "workers of one machine": {"database": "sqlite:///x.db", "shared": REDIS, "listen": WORKERS},
    "a password in development": {"database": PG, "shared": REDIS},
    "references in production": {
        "database": "env:DATABASE", "shared": "file:shared_store", "mode": "production",
        "listen": WORKERS,
    },
    "TLS": {"shared": "rediss://cache.example.com:6380/1"},
    "no password in production": {"database": "postgresql://a@b/c", "mode": "production"},
}  # fmt: skip


@pytest.mark.parametrize("settings", VALID_SETTINGS.values(), ids=VALID_SETTINGS)
def test_a_store_that_can_be_opened_is_not_reported(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL may be a reference, which keeps its password out of the file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE", PG)
    (tmp_path / "shared_store").write_text(f"{REDIS}\n")
    (tmp_path / "shared_store").chmod(0o600)

    assert storage_problems(config(**settings)) == []


def test_memory_storage_in_production_is_a_warning() -> None:
    """The server starts, and `check` explains the consequences."""
    assert [id_ for id_, _, _ in storage_problems(config(mode="production"))] == ["config.W030"]


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator can paste the line into a shell."""
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    monkeypatch.setitem(sys.modules, "redis", None)
    reported_problems = storage_problems(config(database=PG, shared=REDIS))

    assert [id_ for id_, _, _ in reported_problems] == ["config.E033"] * 2
    assert "pip install 'gatepost[postgres]'" in reported_problems[0][2]
    assert "pip install 'gatepost[redis]'" in reported_problems[1][2]


async def readyz(configured: Config) -> tuple[int, Any]:
    """Return the probe's answer from a server with that configuration."""
    async with opened(configured, load(configured.tools), KeyRing.ephemeral()) as services:
        answer = await ask(build_app(configured, services), "/readyz", method="GET")
    return answer.status, answer.json


async def test_readyz_names_the_stores(valkey: str, migrated_postgres: str) -> None:
    """A server that can reach them is ready."""
    status, body = await readyz(config(migrated_postgres, valkey))

    assert status == 200
    assert body["status"] == "ok"
    assert body["stores"] == {"database": "ok", "shared": "ok"}


async def test_readyz_names_the_store_that_is_unavailable(tmp_path: Path) -> None:
    """The server serves calls without the shared store, so it stays ready for a balancer."""
    status, body = await readyz(config(f"sqlite:///{tmp_path}/x.db", SILENT_STORE))

    assert status == 200
    assert body["status"] == "ok"
    assert body["stores"] == {"database": "ok", "shared": "unavailable"}
    assert "127.0.0.1" not in json.dumps(body["stores"])


class CountingRecords(MemoryRecords):
    """Records that count how often they are pinged or told to clean up."""

    def __init__(self) -> None:
        super().__init__()
        self.pings = 0
        self.sweeps = 0
        self.swept = asyncio.Event()
        self.out = False

    async def ping(self) -> None:
        self.pings += 1
        if self.out:
            raise StoreUnavailable("out")

    async def sweep(self, now: float) -> int:
        self.sweeps += 1
        self.swept.set()
        if self.sweeps == 1:
            raise StoreUnavailable("out")
        return await super().sweep(now)


async def test_probes_query_the_stores_once_per_interval() -> None:
    """A client may request `/readyz` at any rate; Gatepost asks the stores once per interval."""
    now = 100.0
    records = CountingRecords()
    watch = Watch(records, MemorySharedStore(), clock=lambda: now)

    await asyncio.gather(*(watch.states() for _ in range(50)))
    assert records.pings == 1

    records.out = True
    assert (await watch.states())["database"] == "ok"
    now += stores.CACHED_S
    assert (await watch.states())["database"] == "unavailable"
    assert records.pings == 2


async def test_a_failed_sweep_is_repeated() -> None:
    """The sweep uses the same tasks as long as the server runs, and they end with it."""
    records = CountingRecords()
    before = asyncio.all_tasks()
    seen = set()
    async with asyncio.timeout(10), stores.sweeping(records, every_s=0.001):
        while records.sweeps < 3:
            records.swept.clear()
            await records.swept.wait()
            seen.add(frozenset(asyncio.all_tasks() - before))
        assert len(seen) == 1

    assert asyncio.all_tasks() == before


async def test_a_server_without_its_tables_does_not_start(postgres: str) -> None:
    """The error says what the operator has to do."""
    with pytest.raises(StoreRefused, match="gatepost migrate"):
        await readyz(config(postgres))


async def test_a_server_starts_without_its_shared_store() -> None:
    """The log and `/readyz` report the outage."""
    with capture_logs() as logs:
        await stores.prepare(StorageSettings(database="memory:", shared=SILENT_STORE))

    assert [entry["event"] for entry in logs] == ["shared_store_unavailable"]


CONFIG = """
resource = "http://127.0.0.1:{port}/mcp"
mode = "development"
listen.port = {port}
issuers = [{{ issuer = "http://127.0.0.1:1/dev-as", tenant = {{ value = "acme" }} }}]
storage = {{ database = "{database}", shared = "{shared}" }}
"""


def command(folder: Path, *arguments: str, database: str, shared: str = "") -> Process:
    """Run a command with that storage; return its process after it has ended by itself."""
    text = CONFIG.format(port=free_port(), database=database, shared=shared)
    (folder / "gatepost.toml").write_text(text)
    process = run(*arguments, cwd=folder)
    try:
        process.process.wait(30)
        process.stop()
    finally:
        process.kill()
    assert "Traceback" not in process.output
    assert POSTGRES_PASSWORD not in process.output
    return process


def outcome(process: Process) -> tuple[int, str]:
    return process.process.returncode, process.output.strip()


def test_migrate_reports_its_result(postgres: str, tmp_path: Path) -> None:
    """Behind, migrated and up to date each have a sentence and an exit code."""
    behind = command(tmp_path, "migrate", "--check", database=postgres)
    moved = command(tmp_path, "migrate", database=postgres)
    fine = command(tmp_path, "migrate", "--check", database=postgres)
    again = command(tmp_path, "migrate", database=postgres)

    assert behind.process.returncode == 1
    assert f"revision none and this Gatepost needs {REVISION}: run `gate" in behind.output
    assert moved.process.returncode == 0
    assert moved.stdout.splitlines() == [
        "0001: Create all tables.",
        "0002: Index the approval requests in the order in which they are listed.",
        f"Migrated from revision none to {REVISION}.",
    ]
    assert outcome(fine) == (0, "The database is up to date.")
    assert outcome(again) == (0, f"Nothing to do: the database is at revision {REVISION}.")


def test_migrate_check_changes_nothing(tmp_path: Path) -> None:
    """`--check` creates no file; a missing database is reported in a sentence."""
    absent = command(tmp_path, "migrate", "--check", database="sqlite:///new.db")
    memory = command(tmp_path, "migrate", database="memory:")
    silent = command(
        tmp_path, "migrate", database=f"postgresql://a:{POSTGRES_PASSWORD}@127.0.0.1:1/x"
    )
    wrong = command(tmp_path, "migrate", database="mysql://x/y")

    assert absent.process.returncode == 1
    assert not (tmp_path / "new.db").exists()
    assert memory.process.returncode == 0
    assert silent.process.returncode == 1
    assert "the database cannot be reached" in silent.stderr
    assert wrong.process.returncode == 1
    assert "config.E032" in wrong.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_serve_reports_an_unusable_store_once(
    postgres: str, valkey: str, tmp_path: Path, workers: str
) -> None:
    """The number of processes does not matter."""
    output = command(tmp_path, "serve", "--workers", workers, database=postgres, shared=valkey)

    assert output.process.returncode == 1
    assert output.stderr.count("run `gatepost migrate`") == 1
    assert "Gatepost is ready" not in output.stdout


def test_the_workers_option_is_checked(tmp_path: Path) -> None:
    """`--workers` is checked like the setting in the file."""
    output = command(tmp_path, "serve", "--workers", "2", database="sqlite:///x.db")

    assert output.process.returncode == 1
    assert "config.E035 [storage.shared]" in output.stderr


IMPORT_PROGRAM = """
import asyncio, sys
from gatepost.app import build_app
from gatepost.check.problems import problems
from gatepost.check.pack_loading import load
from gatepost.secrets.keyring import KeyRing
from gatepost.serve import run
from gatepost.runtime.startup import opened
from gatepost.config.settings import Config, StorageSettings
config = Config(resource="http://127.0.0.1:1/mcp", mode="development",
                storage=StorageSettings(database="memory:"))
async def main():
    loaded_packs = load(config.tools, config.packs, config.network)
    async with opened(config, loaded_packs, KeyRing.ephemeral()) as services:
        build_app(config, services)
list(problems(config, load(config.tools, config.packs, config.network)))
asyncio.run(main())
print(*[name for name in ("sqlalchemy", "alembic", "asyncpg", "redis", "yaml")
        if name in sys.modules])
"""


def test_a_server_without_a_database_imports_none(tmp_path: Path) -> None:
    """The import would take half a second of every start."""
    process = Process(
        [sys.executable, "-c", IMPORT_PROGRAM], env=python_environment(), cwd=tmp_path
    )
    try:
        assert process.next_line() == ""
    finally:
        process.kill()
    assert [path.name for path in tmp_path.iterdir()] == ["workspaces"]
