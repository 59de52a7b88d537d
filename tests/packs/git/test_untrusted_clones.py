"""The content of untrusted repositories stays plain files."""

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from gatepost.sandbox import child
from tests.packs.conftest import PackCaller
from tests.packs.git.conftest import GitServers, git_output, git_refusal, git_result

pytestmark = pytest.mark.requirement("X2")

README = {"README.md": b"hello\n"}


class Content(NamedTuple):
    """What a repository holds, and whether git takes it at all."""

    name: str
    files: dict[str, bytes | str]
    taken: bool = True
    modes: dict[str, str] = {}


TRACE_COMMAND = b"touch trace; touch ../trace"
SCRIPT = b"#!/bin/sh\n" + TRACE_COMMAND + b"\n"
LINKS: dict[str, bytes | str] = {
    "passwd": "/etc/passwd",
    "up": "..",
    "neighbour": "../../mcp-1",
    "deep/er": "../../..",
    "proc": "/proc/self/environ",
    "git": ".git",
    "self": "self",
}

CONTENTS = [
    Content(
        "hooks",
        {"hooks/post-checkout": SCRIPT, "HEAD": b"x"},
        modes={"hooks/post-checkout": "100755"},
    ),
    Content(
        "bare-layout",
        {
            "HEAD": b"ref: refs/heads/main\n",
            "config": b"[core]\n\tfsmonitor = " + TRACE_COMMAND,
            "objects/x": b"",
            "refs/x": b"",
        },
    ),
    Content(
        "filters",
        {
            ".gitattributes": b"* filter=lfs diff=x merge=x text eol=crlf ident\n"
            b"*.x export-subst working-tree-encoding=UTF-16\n",
            "a.x": b"$Id$",
        },
    ),
    Content(
        "submodule",
        {
            ".gitmodules": b'[submodule "x"]\n\tpath = x\n'
            b"\turl = https://git.company.test/x\n\tupdate = checkout\n",
            "x": b"",
        },
    ),
    Content(
        "submodule-run",
        {
            ".gitmodules": b'[submodule "x"]\n\tpath = x\n\turl = https://x/x\n\tupdate = !'
            + TRACE_COMMAND
        },
        taken=False,
    ),
    Content(
        "submodule-option",
        {".gitmodules": b'[submodule "x"]\n\tpath = x\n\turl = -u./payload\n'},
        taken=False,
    ),
    Content(
        "submodule-name",
        {".gitmodules": b'[submodule "../../x"]\n\tpath = x\n\turl = https://x/x\n'},
        taken=False,
    ),
    Content("links", LINKS),
    Content("link-modules", {".gitmodules": "README.md"}, taken=False),
    Content(
        "odd-names",
        {
            "a\nb": b"1",
            "c\td": b"1",
            "-rf": b"1",
            "e\udcffg": b"1",
            "$(touch trace)": b"1",
            "`touch trace`": b"1",
            ";touch trace": b"1",
            "‮txt.exe": b"1",
        },
    ),
    Content("dotgit", {".git/config": b"[core]\n\tfsmonitor = " + TRACE_COMMAND}, taken=False),
    Content("dotgit-case", {".GIT/config": b"[core]\n\tfsmonitor = " + TRACE_COMMAND}, taken=False),
    Content(
        "dotgit-short", {"git~1/config": b"[core]\n\tfsmonitor = " + TRACE_COMMAND}, taken=False
    ),
    Content("dotgit-hidden", {".g\u200cit/config": b"x"}, taken=False),
    Content("dotgit-deep", {"a/b/.git/hooks/pre-commit": SCRIPT}, taken=False),
    Content("dotgit-space", {".git /config": b"x"}, taken=False),
    Content("dotdot", {"../escaped": b"x"}, taken=False),
    Content("dot", {"./x": b"x"}, taken=False),
]


@pytest.fixture
def unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run git as on a kernel without Landlock, where only Gatepost's rules protect."""
    monkeypatch.setattr(child, "confines", lambda: False)


def paths_below(folder: Path) -> list[Path]:
    return [
        Path(where) / name
        for where, folders, files in os.walk(folder)
        for name in (*folders, *files)
    ]


@pytest.mark.usefixtures("unconfined")
@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: content.name)
def test_cloning_an_untrusted_repository_has_no_side_effects(
    git_servers: GitServers, mcp_agent: PackCaller, content: Content
) -> None:
    """It runs no program, makes no link and writes only below itself."""
    upstream = git_servers.offered(f"{content.name}.git")
    upstream.commit({**README, **content.files}, modes=content.modes)
    before = set(git_servers.root.iterdir())

    answer = git_result(mcp_agent, "clone", f"{git_servers.web.url}/{content.name}.git", "theirs")

    assert (answer["returncode"] == 0) is content.taken, answer
    assert set(git_servers.root.iterdir()) <= before | {
        mcp_agent.folder,
        git_servers.root / ".gatepost",
    }
    files = paths_below(mcp_agent.folder)
    assert not any(path.is_symlink() or path.name in ("trace", "escaped") for path in files)
    if not content.taken:
        assert files == []
        return
    git_output(mcp_agent, "-C", "theirs", "status")
    assert not any(path.name == "trace" for path in paths_below(mcp_agent.folder))
    assert mcp_agent.call("fs_read_text", path="theirs/README.md").value.split() == ["hello"]
    assert mcp_agent.call("workspace_list", path="theirs").failure is None


@pytest.mark.usefixtures("unconfined")
def test_links_of_a_clone_become_plain_files(
    git_servers: GitServers, mcp_agent: PackCaller
) -> None:
    """Each file holds the link's target; a new commit keeps it a link."""
    git_servers.offered("linked.git").commit({**README, **LINKS})
    git_output(mcp_agent, "clone", f"{git_servers.web.url}/linked.git", "theirs")

    for name, target in LINKS.items():
        assert mcp_agent.call("fs_read_text", path=f"theirs/{name}").value == target
        assert mcp_agent.call("fs_list", path=f"theirs/{name}").failure is not None
    reply = mcp_agent.call("fs_write_text", path="theirs/up/mcp-1/x", text="x")
    assert reply.failure is not None
    assert git_result(mcp_agent, "-C", "theirs", "status", "--short")["stdout"] == ""


def test_a_clone_that_is_too_large_leaves_no_files(
    git_servers: GitServers, mcp_agent: PackCaller
) -> None:
    """The limits count its size, its unpacked size and its number of files."""
    git_servers.offered("large.git").commit({"large": os.urandom(4_000_000)})
    git_servers.offered("zeros.git").commit({f"zeros{at}": bytes(900_000 + at) for at in range(5)})
    git_servers.offered("many.git").commit(
        {f"{at}/{name}": b"" for at in range(25) for name in "abcdefghijklmnopqrstuvwxyz"}
    )

    for name in ("large", "zeros", "many"):
        message = git_refusal(mcp_agent, "clone", f"{git_servers.web.url}/{name}.git", "theirs")
        assert "would need more room than the workspace has" in message
        assert mcp_agent.call("fs_list").value == []
    assert mcp_agent.call("fs_write_text", path="small.txt", text="x").value == "ok"


def test_writing_commands_are_refused_in_a_full_workspace(mcp_agent: PackCaller) -> None:
    """Commands that only read still run; after a deletion all run again."""
    git_output(mcp_agent, "init")
    (mcp_agent.folder / "large").write_bytes(bytes(3_100_000))

    assert "The workspace is full" in git_refusal(mcp_agent, "add", "-A")
    assert git_result(mcp_agent, "status", "--short")["stdout"] == "?? large\n"
    mcp_agent.call("fs_delete", path="large")
    git_output(mcp_agent, "add", "-A")
