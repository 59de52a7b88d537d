"""A backup made while a server works, put back in another place: what was acknowledged is there."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gatepost.secrets.keyring import create
from tests.policy.conftest import TASKS
from tests.support import tools as process_tools
from tests.support.client import modern_request
from tests.support.commands import CommandProcess, ServerProcess, server_process, tenant_folder
from tests.support.issuers import Idp
from tests.support.server import issuer_settings
from tests.support.stores import Postgres

pytestmark = [pytest.mark.slow, pytest.mark.requirement("CO5")]
SECRET = "the-value-that-is-kept"
WITHIN_S = 60


class BackedUpServer:
    """A deployment in a folder: the server that runs there, and its command line."""

    def __init__(self, folder: Path, database: str, server: ServerProcess) -> None:
        self.folder, self.database, self.server = folder, database, server
        self.token = server.token(scope="files:write")
        self.commands = CommandProcess(folder)

    def ask(self, method: str, params: dict[str, Any], **capabilities: Any) -> dict[str, Any]:
        """Return the result of a request of 2026-07-28."""
        fields, body = modern_request(method, params)
        body = body.replace(b'"io.modelcontextprotocol/clientCapabilities": {}', _can(capabilities))
        answer = self.server.client.send("POST", fields=fields, body=body, token=self.token)
        document = json.loads(answer.body)
        assert "result" in document, document
        result: dict[str, Any] = document["result"]
        return result

    def work(self, name: str) -> str:
        """Run a task to its end; return its id."""
        (self.folder / f"go-{name}").touch()
        params = {"name": "rebuild", "arguments": {"name": name}}
        return str(self.ask("tools/call", params, **TASKS)["taskId"])

    def task(self, task_id: str) -> dict[str, Any]:
        return self.ask("tasks/get", {"taskId": task_id}, **TASKS)


def _can(capabilities: dict[str, Any]) -> bytes:
    return f'"io.modelcontextprotocol/clientCapabilities": {json.dumps(capabilities)}'.encode()


@contextmanager
def shop(idp: Idp, folder: Path, database: str, port: int = 0) -> Iterator[BackedUpServer]:
    """Run a server in that folder, at that address if one is given."""
    settings: dict[str, Any] = {
        "keys": {"ring": "file:keyring.json"},
        "storage": {"database": database},
        "tools": {"load": [process_tools.__file__], "packs": ["demo"]},
        "approvals": {"require": ["hold"], "timeout_s": 3600},
    }
    if port:
        settings |= {"listen": {"port": port}, "resource": f"http://127.0.0.1:{port}/mcp"}
    with server_process(
        idp, folder, [issuer_settings(idp, tenants={"acme": "acme"})], **settings
    ) as server:
        backed_up = BackedUpServer(folder, database, server)
        try:
            yield backed_up
        finally:
            backed_up.commands.kill()


@contextmanager
def tasks_under_load(shop: BackedUpServer) -> Iterator[list[str]]:
    """Start tasks one after another; yield the ids of those that were acknowledged."""
    begun: list[str] = []
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            begun.append(shop.work(f"load{len(begun)}"))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield begun
    finally:
        over.set()
        thread.join(WITHIN_S)


Back = Callable[[BackedUpServer, Path], str]
"""Takes a backup, puts it back for a server in another folder, and answers its `database`."""


def sqlite(shop: BackedUpServer, new_folder: Path) -> str:
    """Run `gatepost backup` and put the copy in the place of the database's file."""
    output = shop.commands.succeed("backup", "kept.db")
    assert "Backed up the database to" in output.out
    assert (shop.folder / "kept.db").stat().st_mode & 0o777 == 0o600
    shutil.copy(shop.folder / "kept.db", new_folder / "gatepost.db")
    return "sqlite:///gatepost.db"


def postgresql(server: Postgres, stack: list[str]) -> Back:
    """Return a function that runs `pg_dump` and `pg_restore` as docs/storage.md says."""

    def back(shop: BackedUpServer, new_folder: Path) -> str:
        dump = new_folder / "gatepost.dump"
        server.run("pg_dump", "--format=custom", f"--file={dump}", shop.database)
        server.run("pg_restore", "--exit-on-error", f"--dbname={stack[0]}", str(dump))
        return stack[0]

    return back


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_backup_of_a_running_server_has_all_acknowledged_data(
    idp: Idp, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """It has no data that was written after the backup, and its audit records verify."""
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
    create(old / "keyring.json")
    database, back = "sqlite:///gatepost.db", sqlite
    if kind == "postgresql":
        server = request.getfixturevalue("postgres_server")
        database = request.getfixturevalue("migrated_postgres")
        back = postgresql(server, [request.getfixturevalue("postgres")])
    with shop(idp, old, database) as here:
        port = here.server.client.port
        before = prepare_data(here)
        with tasks_under_load(here) as begun:
            before += begun[: len(begun)]
            restored = back(here, new)
        after = here.work("after")
    for name in ("keyring.json", "workspaces"):
        source = old / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, new / name)
    with shop(idp, new, restored, port) as restored_server:
        for task_id in before:
            assert restored_server.task(task_id)["status"] in {"working", "completed"}
        with pytest.raises(AssertionError, match="Unknown task"):
            restored_server.task(after)
        assert_data_restored(restored_server)


def prepare_data(server: BackedUpServer) -> list[str]:
    """Store one record of each kind, acknowledged; return the ids of tasks."""
    server.commands.succeed("secrets", "set", "KEY", "--tenant", "acme", typed=SECRET)
    server.commands.succeed("revoke", "--subject", "mallory", "--reason", "left")
    workspace = tenant_folder(server.folder / "workspaces", "acme")
    workspace.mkdir(parents=True, exist_ok=True)
    (workspace / "note.txt").write_text("kept")
    first = server.work("first")
    body = json.dumps({"name": "x"}).encode()
    waiting = server.server.client.send("POST", "/tool/hold/call", body=body, token=server.token)
    assert waiting.status == 503, waiting
    return [first]


def assert_data_restored(restored_server: BackedUpServer) -> None:
    """Assert that the server and the commands in the new place read all data."""
    assert (
        "cannot be decrypted"
        not in restored_server.commands.succeed("secrets", "list", "--tenant", "acme").out
    )
    assert "KEY" in restored_server.commands.succeed("secrets", "list", "--tenant", "acme").out
    assert "tokens of subject mallory" in restored_server.commands.succeed("revoke", "--list").out
    assert "hold" in restored_server.commands.succeed("approvals", "list", "--tenant", "acme").out
    assert "acme: " in restored_server.commands.succeed("audit", "verify").out
    assert (restored_server.folder / "workspaces" / "acme" / "note.txt").read_text() == "kept"
    mallory = restored_server.server.token(sub="mallory", iat=1_700_000_000, exp=1_700_000_001)
    assert restored_server.server.status(mallory) == 401


def test_a_backup_does_not_overwrite_a_file(idp: Idp, tmp_path: Path) -> None:
    """For a database other than SQLite the command refers to its own tools."""
    create(tmp_path / "keyring.json")
    with shop(idp, tmp_path, "sqlite:///gatepost.db") as here:
        here.commands.succeed("backup", "one.db")
        result = here.commands.run("backup", "one.db")
        nowhere = here.commands.run("backup", "no/such/folder/one.db")
        assert (result.code, "already exists" in result.err) == (1, True)
        assert nowhere.err == (
            "Error: no/such/folder/one.db cannot be written: No such file or directory.\n"
        )
        assert sorted(path.name for path in tmp_path.glob("one*")) == ["one.db"]
        check = [sys.executable, "-c", "import sqlite3,sys;print(*sqlite3.connect(sys.argv[1])"]
        check[-1] += ".execute('pragma integrity_check').fetchone())"
        done = subprocess.run(
            [*check, "one.db"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout.strip() == "ok"
