"""What a tenant keeps stays within its quota, however many write, and is never miscounted."""

import asyncio
import errno
import fcntl
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gatepost.execution.failure import ToolFailure
from gatepost.tools.context.interfaces import WorkspaceUsage
from gatepost.workspace import Quota, TenantWorkspace, Workspaces, usage


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "workspaces"


@pytest.fixture
def processes(root: Path) -> Iterator[list[Workspaces]]:
    """Yield two processes' views of one root, each with a count and a lock of its own."""
    workspace_pair = [Workspaces(root, quota=Quota(bytes=10_000, files=20)) for _ in range(2)]
    yield workspace_pair
    for workspace in workspace_pair:
        workspace.close()


def usage_on_disk(root: Path, tenant: str = "acme") -> WorkspaceUsage:
    """Return the usage that an independent walk of the folders finds."""
    size = files = 0
    for top in (root / tenant, root / ".gatepost" / tenant / "memory"):
        for path in top.rglob("*"):
            files += 1
            size += path.stat().st_size if path.is_file() else 0
    return WorkspaceUsage(size, files)


async def kinds(*attempts: "asyncio.Future[object]") -> list[str]:
    """Return how each of the writes ended."""
    ended = await asyncio.gather(*attempts, return_exceptions=True)
    return [
        attempt_result.failure.kind if isinstance(attempt_result, ToolFailure) else "done"
        for attempt_result in ended
    ]


async def test_concurrent_writes_never_exceed_the_quota(
    processes: list[Workspaces], root: Path
) -> None:
    """Of forty concurrent writes by two processes ten fit, and thirty are refused."""
    spaces = [process.of("acme") for process in processes]
    attempts = [
        asyncio.ensure_future(spaces[number % 2].write(f"{number}", b"x" * 1_000))
        for number in range(40)
    ]

    assert sorted(await kinds(*attempts)) == ["denied"] * 30 + ["done"] * 10
    assert usage_on_disk(root) == await spaces[0].usage() == WorkspaceUsage(10_000, 10)


async def test_folders_and_memories_count_against_the_quota(
    processes: list[Workspaces], root: Path
) -> None:
    """All places of a tenant share one quota; a refused write leaves no folders behind."""
    acme = processes[0].of("acme")
    await acme.area("memory").write("note", b"x" * 100)
    await acme.write("a/b/c/d", b"1")
    await acme.make_folder("e/f")
    assert await acme.usage() == usage_on_disk(root) == WorkspaceUsage(101, 7)
    with pytest.raises(ToolFailure, match="7 of 20 files"):
        await acme.write("/".join("zyxwvutsrqponmlkj"), b"1")

    assert await acme.usage() == usage_on_disk(root) == WorkspaceUsage(101, 7)
    assert await processes[0].of("globex").usage() == WorkspaceUsage(0, 0)


async def test_a_full_workspace_can_be_emptied(processes: list[Workspaces], root: Path) -> None:
    """Reading, deleting and smaller content still work; then writes succeed again."""
    acme = processes[0].of("acme")
    await acme.write("a/big", b"x" * 10_000)
    with pytest.raises(ToolFailure) as full:
        await acme.append("a/big", b"x")
    await acme.write("a/big", b"x" * 9_000)
    await acme.append("a/big", b"x" * 1_000)
    with pytest.raises(ToolFailure):
        await acme.write("other", b"x")
    await acme.delete("a", recursive=True)
    await acme.write("other", b"x" * 10_000)

    assert full.value.failure.kind == "denied"
    assert "holds 10000 of 10000 bytes" in full.value.failure.message
    assert await acme.usage() == usage_on_disk(root) == WorkspaceUsage(10_000, 1)


async def test_a_write_is_accepted_after_files_were_deleted_outside(
    processes: list[Workspaces], root: Path
) -> None:
    """An operator made room: the next write that would be refused looks first."""
    acme = processes[0].of("acme")
    acme._home.usage_file._counted_at = 0.0  # the last count is long ago
    await acme.write("a", b"x" * 10_000)
    acme._home.usage_file._counted_at = -1e9
    os.unlink(root / "acme/a")

    await acme.write("b", b"x" * 10_000)

    assert await acme.usage() == WorkspaceUsage(10_000, 1)


@pytest.mark.parametrize("leftover", [b"", b"99", b"x y\n", b"-1 2\n", b"\xff" * 64])
async def test_a_damaged_usage_count_is_recomputed(root: Path, leftover: bytes) -> None:
    """The server counts the files again if the count is damaged, and removes half-written files."""
    first = Workspaces(root)
    await first.of("acme").write("a", b"123")
    first.close()
    (root / ".gatepost/acme/.usage").write_bytes(leftover)
    (root / "acme/.0123456789abcdef.partial").write_bytes(b"half")
    deep = root / "acme/.fedcba9876543210.partial/a/b"
    deep.mkdir(parents=True)
    (deep / "c").symlink_to("/etc")
    second = Workspaces(root)
    await second.of("acme").write("b", b"45")

    assert await second.of("acme").usage() == usage_on_disk(root) == WorkspaceUsage(5, 2)
    second.close()


async def test_a_cancelled_write_leaves_the_old_or_the_new_content(root: Path) -> None:
    """There is no other file."""
    spaces = Workspaces(root)
    acme: TenantWorkspace = spaces.of("acme")
    await acme.write("a", b"old")
    for _ in range(20):
        writing = asyncio.ensure_future(acme.write("a", b"new" * 300_000))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    spaces.close()

    assert os.listdir(root / "acme") == ["a"]
    assert (root / "acme/a").read_bytes() in (b"old", b"new" * 300_000)


async def test_a_workspace_locked_by_another_process_is_reported_as_busy(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads still work, and the change may be retried."""
    monkeypatch.setattr(usage, "LOCK_S", 0.0)
    spaces = Workspaces(root)
    acme = spaces.of("acme")
    await acme.write("a", b"1")
    handle = os.open(root / ".gatepost/acme/.usage", os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(ToolFailure) as busy:
        await acme.write("a", b"2")

    assert busy.value.failure.kind == "upstream_unavailable"
    assert await acme.read("a", limit=10) == b"1"
    os.close(handle)
    await acme.write("a", b"2")
    spaces.close()


async def test_a_write_error_of_the_disk_is_explained(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No room or no permission: the model gets a sentence, and no half-written file stays."""
    spaces = Workspaces(root)
    acme = spaces.of("acme")
    await acme.write("a", b"1")
    for number, says in (
        (errno.ENOSPC, "no room left"),
        (errno.EROFS, "may only read"),
        (errno.EACCES, "may not use it"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", partial(refuse, number))
            with pytest.raises(ToolFailure, match=says) as refused:
                await acme.write("a", b"2")
        assert refused.value.failure.kind == "denied"

    assert os.listdir(root / "acme") == ["a"]
    assert await acme.usage() == usage_on_disk(root) == WorkspaceUsage(1, 1)
    spaces.close()


def refuse(number: int, handle: int) -> None:
    raise OSError(number, os.strerror(number))
