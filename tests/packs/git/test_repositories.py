"""Git creates repositories in the workspace only, and explains why a path is unusable."""

import os
from pathlib import Path

import pytest

from gatepost_packs.git.repository import emptied
from gatepost_packs.git.repository_configuration import configuration_of
from tests.packs.conftest import PackCaller
from tests.packs.git.conftest import GitServers

DEEP_PATH = "/".join("x" * 40)

REFUSED_FOLDERS = {
    "below a name that is too long": (["-C", "a" * 300, "status"], "is too long"),
    "at a name that is too long": (["init", "a" * 300], "is too long"),
    "deeper than the tools for files go": (["init", DEEP_PATH], "and 32 names"),
    "deeper from a folder": (["-C", DEEP_PATH[:60], "init", DEEP_PATH[:30]], "and 32 names"),
    "at a name that hides": (["init", "a\u202e"], "marks that reorder"),
    "at a file": (["init", "file"], "is a file, not a folder"),
    "a clone at a file": (["clone", "https://git.company.test/a.git", "file"], "is a file"),
    "in a file": (["-C", "file", "status"], "There is no folder /workspace/file."),
    "below a file": (["-C", "file/below", "status"], "There is no folder"),
    "a bare one over files": (["init", "--bare", "shaped"], "new or empty folder"),
    "a bare one over files here": (["-C", "shaped", "init", "--bare"], "new or empty folder"),
}


@pytest.mark.parametrize(("args", "expected_text"), REFUSED_FOLDERS.values(), ids=REFUSED_FOLDERS)
def test_an_invalid_path_is_an_error_of_the_caller(
    mcp_agent: PackCaller, args: list[str], expected_text: str
) -> None:
    """Names and depths that no file system takes must not be failures of the server."""
    mcp_agent.call("fs_write_text", path="file", text="x")
    # What a bare repository is made of may be written by any tool; git reads what it includes.
    mcp_agent.call("fs_write_text", path="shaped/config", text="[include]\n\tpath = /etc/passwd\n")

    reply = mcp_agent.call("git", args=args)
    assert reply.failure is not None
    assert expected_text in reply.failure
    assert reply.kind in (None, "validation", "not_found")


def test_a_new_bare_repository_is_made(mcp_agent: PackCaller, git_servers: GitServers) -> None:
    """The folder may be new or empty."""
    (mcp_agent.folder / "empty").mkdir(parents=True)

    answers = [mcp_agent.call("git", args=["init", "--bare", name]) for name in ("new", "empty")]
    assert [reply.value["returncode"] for reply in answers] == [0, 0]


def test_a_branch_with_quotes_in_its_name_is_worked_on(mcp_agent: PackCaller) -> None:
    """The owner of a remote chooses the names; a quote must not make a repository unusable."""
    done = [
        mcp_agent.call("git", args=["-C", "quotes", *args] if args[0] != "init" else args)
        for args in (
            ["init", "quotes"],
            ["commit", "--allow-empty", "-m", "one"],
            ["checkout", "-q", "-b", 'a"b'],
            ["branch", "-u", "main"],
            ["status"],
        )
    ]
    assert [reply.failure for reply in done] == [None] * 5
    assert 'On branch a"b' in done[-1].value["stdout"]


def test_a_quoted_section_name_does_not_hide_a_key() -> None:
    """A quote with a backslash before it does not end the name, for git as for us."""
    config = configuration_of('[branch "a\\"]\\\\b"]\n\tmerge = refs/heads/x\n')

    assert config.remotes == {}


def test_a_folder_of_any_depth_is_removed(tmp_path: Path) -> None:
    """An attacker's tree may be a thousand folders deep."""
    folder, here = tmp_path / "made", os.getcwd()
    folder.mkdir()
    os.chdir(folder)
    try:
        for _ in range(1_200):
            os.mkdir("d")
            os.chdir("d")
        Path("file").write_text("x")
    finally:
        os.chdir(here)
    emptied(folder, keep=True)
    entries = list(folder.iterdir())
    emptied(folder, keep=False)

    assert entries == []
    assert not folder.exists()


def test_a_lock_that_a_killed_git_left_is_removed(mcp_agent: PackCaller) -> None:
    """A lock younger than a minute may belong to a running git, so the call fails with a hint."""
    mcp_agent.call("git", args=["init", "held"])
    git = mcp_agent.folder / "held/.git"
    locks = [git / "index.lock", git / "refs/heads/topic/one.lock"]
    locks[1].parent.mkdir()
    for lock in locks:
        lock.touch()
    mcp_agent.call("fs_write_text", path="held/a.txt", text="x")
    add = ["-C", "held", "add", "-A"]
    answer = mcp_agent.call("git", args=add)
    for lock in locks:
        os.utime(lock, (1, 1))
    done = mcp_agent.call("git", args=add)

    assert answer.value["returncode"] == 128
    assert (
        "hint: The lock of a stopped command is removed after a minute" in (answer.value["stderr"])
    )
    assert done.value["returncode"] == 0
    assert [lock.exists() for lock in locks] == [False, False]
