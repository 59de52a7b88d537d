"""Files and folders that other users of the machine could read, change or own."""

import os
from pathlib import Path

import pytest

from gatepost.dev.composition import make_state_folder
from gatepost.execution.failure import ToolFailure
from gatepost.runtime.erasure import TenantErasure
from gatepost.secrets.keyring import KeyRing, KeyRingError, create
from gatepost.storage.backends import open_records, open_shared_store
from gatepost.storage.errors import StoreRefused
from gatepost.workspace import Workspaces
from gatepost.workspace.ownership import PRIVATE, USAGE_FILE
from gatepost.workspace.resolver import Choice, resolver_of
from tests.check.test_problems import VALID_CONFIG, folder, problems_found
from tests.support.commands import tenant_folder
from tests.support.measuring import capture_logs

__all__ = ["folder"]

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
NOBODY_UID = 65_534


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def a_home(root: Path) -> Path:
    """Create a person's folder that has the name of a tenant."""
    home = root / "alice"
    home.mkdir(parents=True)
    (home / "diary.txt").write_text("of alice")
    return home


@pytest.mark.parametrize("resolver", ["walk", "auto"])
async def test_an_existing_folder_is_not_used_as_a_workspace(
    tmp_path: Path, resolver: Choice
) -> None:
    """Reads and writes are refused, and the folder stays unchanged."""
    home = a_home(tmp_path)
    spaces = Workspaces(tmp_path, resolver=resolver_of(resolver))
    alice = spaces.for_tenant("alice")
    for attempt in (
        alice.read("diary.txt", limit=100),
        alice.write("new.txt", b"x"),
        alice.entries(recursive=True, limit=10),
        alice.delete("diary.txt", recursive=True),
        alice.real_path(),
        alice.usage(),
        alice.write("diary.txt", b"x"),
    ):
        with pytest.raises(ToolFailure, match="was not made for it"):
            await attempt
    await spaces.for_tenant("bob").write("note.txt", b"of bob")
    spaces.close()

    assert (home / "diary.txt").read_text() == "of alice"
    assert os.listdir(home) == ["diary.txt"]
    assert not (tmp_path / PRIVATE / "alice").exists()


async def test_a_workspace_folder_is_recognised_after_a_restart(tmp_path: Path) -> None:
    """The usage file marks the folder, also in existing installations."""
    first = Workspaces(tmp_path)
    await first.for_tenant("acme").write("a/note.txt", b"kept")
    first.close()
    second = Workspaces(tmp_path)

    assert await second.for_tenant("acme").read("a/note.txt", limit=10) == b"kept"

    second.close()


async def test_an_operator_can_make_an_existing_folder_a_workspace(tmp_path: Path) -> None:
    """An empty folder is accepted, and a usage file makes a full folder the tenant's."""
    (tmp_path / "empty").mkdir()
    a_home(tmp_path)
    spaces = Workspaces(tmp_path)

    await spaces.for_tenant("empty").write("note.txt", b"x")
    tenant_folder(tmp_path, "alice")

    assert await spaces.for_tenant("alice").read("diary.txt", limit=100) == b"of alice"
    assert (await spaces.for_tenant("alice").usage()).files == 1
    spaces.close()


async def test_workspace_folders_are_closed_to_other_users(tmp_path: Path) -> None:
    """Folders that an earlier version or a copy left open are closed, too."""
    spaces = Workspaces(tmp_path)
    await spaces.for_tenant("acme").write("note.txt", b"x")
    spaces.close()
    paths = [tmp_path / PRIVATE, tmp_path / PRIVATE / "acme", tmp_path / "acme"]
    for path in paths:
        path.chmod(0o777)

    again = Workspaces(tmp_path)
    await again.for_tenant("acme").read("note.txt", limit=10)
    again.close()

    assert [mode(path) for path in paths] == [0o700] * 3


async def test_an_erasure_keeps_folders_that_gatepost_did_not_create(tmp_path: Path) -> None:
    """`tenant erase alice` must not remove the home folder of the user alice."""
    home = a_home(tmp_path)
    memory = tmp_path / PRIVATE / "alice" / "memory"
    memory.mkdir(parents=True)
    (memory / "note").write_text("x")
    records, shared_store = await open_records("memory:"), await open_shared_store("")
    messages: list[str] = []

    async def pause(_: float) -> None: ...

    await TenantErasure("alice", records, shared_store, tmp_path).run(messages.append, pause)

    assert (home / "diary.txt").read_text() == "of alice"
    assert not (tmp_path / PRIVATE / "alice").exists()
    assert any("left the folder" in line for line in messages)
    await shared_store.aclose()
    await records.aclose()


def test_the_check_reports_folders_that_block_a_workspace(folder: Path) -> None:
    """`check` finds them before a tenant's first call, and says what to do."""
    a_home(folder / "workspaces")
    tenant_folder(folder / "workspaces", "acme").mkdir()
    (folder / "workspaces" / "acme" / "note").touch()

    ((id_, setting, message),) = problems_found(VALID_CONFIG)

    assert (id_, setting) == ("config.W121", "workspace.root")
    assert "workspaces/alice was not created by Gatepost" in message
    assert f"touch workspaces/{PRIVATE}/alice/{USAGE_FILE}" in message


async def test_a_database_that_other_users_can_read_is_closed_to_them(tmp_path: Path) -> None:
    """The files that SQLite keeps beside it are closed too, and a line is logged."""
    file = tmp_path / "records.db"
    records = await open_records(f"sqlite:///{file}")
    await records.aclose()
    names = [file, *(Path(f"{file}{end}") for end in ("-wal", "-shm", "-lock"))]
    for name in names:
        name.touch()
        name.chmod(0o666)

    with capture_logs() as events:
        again = await open_records(f"sqlite:///{file}")
    modes = [mode(name) for name in names if name.exists()]
    await again.aclose()

    assert modes == [0o600] * len(modes)
    assert mode(file) == 0o600
    assert [event["path"] for event in events if event["event"] == "permissions_removed"] == [
        *map(str, names)
    ]


def test_the_check_reports_a_database_that_other_users_can_read(folder: Path) -> None:
    """The server closes it, but other users may have read it before."""
    for end in ("", "-wal"):
        (folder / f"gatepost.db{end}").touch(mode=0o600)
        (folder / f"gatepost.db{end}").chmod(0o640)

    assert [(id_, setting) for id_, setting, _ in problems_found(VALID_CONFIG)] == [
        ("config.W120", "storage.database")
    ] * 2


def test_a_state_folder_that_other_users_can_read_is_closed_to_them(tmp_path: Path) -> None:
    """`gatepost dev` keeps secrets of its issuer and its dashboard there."""
    secret = tmp_path / "dashboard.secret"
    secret.write_text("x")
    for path in (secret, tmp_path):
        path.chmod(0o777)

    make_state_folder(tmp_path)

    assert (mode(tmp_path), mode(secret)) == (0o700, 0o700)


class AnotherUser:
    """This process as the machine sees it once it is not root; its rights stay."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 12_345)


@ROOT_ONLY
async def test_databases_rings_and_folders_of_another_user_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File modes do not restrict the owner of a file."""
    database, ring, state = folder / "gatepost.db", folder / "keyring.json", folder / "state"
    database.touch(mode=0o600)
    state.mkdir(mode=0o700)
    spaces = Workspaces(folder / "workspaces")
    await spaces.for_tenant("acme").write("note.txt", b"x")
    for path in (database, ring, state, folder / "workspaces" / PRIVATE / "acme"):
        os.chown(path, NOBODY_UID, NOBODY_UID)
    AnotherUser(monkeypatch)
    again = Workspaces(folder / "workspaces")

    with pytest.raises(StoreRefused, match="belongs to another user"):
        await open_records(f"sqlite:///{database}")
    with pytest.raises(KeyRingError, match="belongs to another user"):
        KeyRing.load(f"file:{ring}")
    with pytest.raises(PermissionError, match="belongs to another user"):
        make_state_folder(state)
    with pytest.raises(ToolFailure, match="was not made for it"):
        await again.for_tenant("acme").read("note.txt", limit=10)
    ids = {id_ for id_, _, _ in problems_found(VALID_CONFIG)}
    assert {"config.E120", "config.E007"} <= ids
    for workspaces in (spaces, again):
        workspaces.close()


@ROOT_ONLY
def test_files_beside_the_target_of_a_linked_database_are_checked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gatepost and SQLite keep their files there, not beside the link."""
    target = folder / "data" / "real.db"
    target.parent.mkdir()
    target.touch(mode=0o600)
    (folder / "gatepost.db").symlink_to(target)
    wal = target.with_name("real.db-audit-1")
    wal.touch(mode=0o600)
    os.chown(wal, NOBODY_UID, NOBODY_UID)
    AnotherUser(monkeypatch)

    found = [text for id_, _, text in problems_found(VALID_CONFIG) if id_ == "config.E120"]

    assert any(f"{wal} belongs to another user" in text for text in found), found


def test_a_key_ring_of_the_same_user_is_loaded(tmp_path: Path) -> None:
    """This is the control for the refused key ring of another user."""
    create(tmp_path / "ring.json")

    assert KeyRing.load(f"file:{tmp_path / 'ring.json'}").sign("x", b"y")
