"""Parts of a workspace: a folder as a root of its own, changes under its lock, what is apart."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gatepost.execution.failure import ToolFailure
from gatepost.workspace import Quota, TenantWorkspace, Workspaces


@pytest.fixture
def workspaces(tmp_path: Path) -> Iterator[Workspaces]:
    workspaces_made = Workspaces(tmp_path, quota=Quota(bytes=1_000, files=10))
    yield workspaces_made
    workspaces_made.close()


@pytest.fixture
def acme(workspaces: Workspaces) -> TenantWorkspace:
    return workspaces.of("acme")


@pytest.fixture
def vault(acme: TenantWorkspace) -> TenantWorkspace:
    return acme.folder("deep/vault", "/vault/")


async def test_a_folder_can_be_a_root_of_its_own(
    acme: TenantWorkspace, vault: TenantWorkspace
) -> None:
    """Paths are relative to it, and none leads out of it, not even to the workspace."""
    await acme.write("secret", b"s")

    assert await vault.write("/vault/a/b", b"1") == "/vault/a/b"
    assert await acme.read("/workspace/deep/vault/a/b", limit=9) == b"1"
    assert [
        item.path for item in (await vault.entries("/vault", recursive=True, limit=9)).items
    ] == [
        "a",
        "a/b",
    ]
    for path in ("../../secret", "/workspace/secret", "/vault/../secret", "/secret"):
        with pytest.raises(ToolFailure, match="leads out of the workspace"):
            await vault.read(path, limit=9)
    with pytest.raises(ToolFailure, match="/vault/no does not exist"):
        await vault.read("no", limit=9)


async def test_a_root_folder_that_is_a_link_is_refused(
    acme: TenantWorkspace, vault: TenantWorkspace, tmp_path: Path
) -> None:
    """A tenant could otherwise point it to another folder."""
    (tmp_path / "outside").mkdir()
    await acme.make_folder("deep")
    (tmp_path / "acme/deep/vault").symlink_to(tmp_path / "outside")

    with pytest.raises(ToolFailure):
        await vault.write("a", b"1")
    assert (await vault.entries(limit=9)).items == []
    assert os.listdir(tmp_path / "outside") == []


async def test_files_of_a_folder_root_count_in_the_workspace(
    acme: TenantWorkspace, vault: TenantWorkspace
) -> None:
    """Its parent folders count, too."""
    await acme.usage()
    await vault.write("a/b", b"12345")
    counted = acme._home.usage_file
    with counted.changing(threading.Event()) as usage_change:
        usage_counted = (usage_change.bytes, usage_change.files)

    usage = await acme.usage()
    assert usage_counted == (usage.bytes, usage.files) == (5, 4)
    with pytest.raises(ToolFailure, match="is full"):
        await vault.write("c", b"x" * 1_000)


async def test_concurrent_changes_are_all_applied(vault: TenantWorkspace) -> None:
    """Each change starts from the result of the one before."""
    edits = [
        vault.edit("log", lambda old, n=n: (old or b"") + b"%d;" % n, limit=100) for n in range(20)
    ]
    done = await asyncio.gather(*edits)

    assert sorted((await vault.read("log", limit=100)).split(b";")) == sorted(
        [b"", *(b"%d" % n for n in range(20))]
    )
    assert [written.is_new for written in done].count(True) == 1
    assert {written.path for written in done} == {"/vault/log"}


async def test_a_refused_change_keeps_files_and_usage(vault: TenantWorkspace) -> None:
    """The files and the counted usage stay the same."""
    await vault.write("a", b"12345")

    def refuse(old: bytes | None) -> bytes:
        raise ToolFailure("conflict", "no")

    with pytest.raises(ToolFailure, match="no"):
        await vault.edit("a", refuse, limit=100)
    with pytest.raises(ToolFailure, match="larger than the 4 bytes allowed"):
        await vault.edit("a", lambda old: b"", limit=4)
    with pytest.raises(ToolFailure, match="git itself"):
        await vault.edit(".git/hooks", lambda old: b"", limit=4)

    assert await vault.read("a", limit=10) == b"12345"


async def test_many_files_are_read_at_once(vault: TenantWorkspace, tmp_path: Path) -> None:
    """The result has the beginning of each file, or None if it cannot be read."""
    await vault.write("a", b"12345")
    await vault.write("b", b"")
    (tmp_path / "acme/deep/vault/link").symlink_to("a")

    heads = await vault.heads(["a", "no", "link", "../a", "b"], limit=3)

    assert [(head.data, head.size) if head else None for head in heads] == [
        (b"123", 5),
        None,
        None,
        None,
        (b"", 0),
    ]


async def test_a_list_can_leave_out_hidden_names(acme: TenantWorkspace) -> None:
    """The list leaves out names that begin with a dot, and everything below them."""
    for path in (".obsidian/app", "a/.b/c", "a/d", ".e"):
        await acme.write(path, b"1")

    listing = await acme.entries(recursive=True, hidden=False, limit=2)

    assert [item.path for item in listing.items] == ["a", "a/d"]
    assert not listing.cut


async def test_a_stamp_differs_once_a_file_is_replaced(
    acme: TenantWorkspace, tmp_path: Path
) -> None:
    """This holds also for a new file of the same size and age."""
    await acme.write("a", b"1")
    os.utime(tmp_path / "acme/a", (1, 1))
    before = (await acme.stat("a")).stamp
    await acme.write("a", b"2")
    os.utime(tmp_path / "acme/a", (1, 1))

    assert (await acme.stat("a")).stamp != before


async def test_derived_files_are_stored_outside_the_workspace(
    workspaces: Workspaces, acme: TenantWorkspace
) -> None:
    """Each tenant has its own folder for them, which no path reaches and no quota counts."""
    await acme.usage()
    places = [
        await space.in_cache(lambda folder, _: folder) for space in (acme, workspaces.of("globex"))
    ]
    (places[0] / "index").write_bytes(b"x" * 100_000)

    assert places[0] != places[1]
    assert all(folder.is_dir() for folder in places)
    assert (await acme.usage()).bytes == 0
    assert (await acme.entries(recursive=True, limit=9)).items == []
    assert (places[0] / "index").is_file()


async def test_background_work_is_stopped_when_its_call_is_cancelled(acme: TenantWorkspace) -> None:
    """Background work ends when its call does."""
    begun, ended = threading.Event(), threading.Event()

    def work(folder: Path, stop: threading.Event) -> None:
        begun.set()
        if stop.wait(10):
            ended.set()

    task = asyncio.create_task(acme.in_cache(work))
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await asyncio.to_thread(ended.wait, 10)
