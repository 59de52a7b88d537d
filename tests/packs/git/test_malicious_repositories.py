"""An attacker has written into a repository: git runs none of it and follows none of it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from gatepost.sandbox import child
from tests.packs.conftest import PackCaller
from tests.packs.git.conftest import GitServers, git_output, git_refusal, git_result, plain_git

pytestmark = pytest.mark.requirement("X2")

COMMANDS = (["status"], ["fetch", "origin"])
"""What reads and what writes; before they differ, the repository is looked at."""


class PlantedConfig(NamedTuple):
    """A part of a repository that only an operator's mistake could have put there."""

    name: str
    plant: Callable[[Path, str], None]
    """Gets the folder and a command that leaves a trace."""
    says: str


def setting(text: str) -> Callable[[Path, str], None]:
    """Return a function that adds lines to the repository's settings; `RUN` is the command."""

    def plant(folder: Path, run: str) -> None:
        with (folder / ".git/config").open("a") as file:
            file.write(text.replace("RUN", run))

    return plant


def planted_file(path: str, text: str = "RUN") -> Callable[[Path, str], None]:
    """Return a function that writes a file of the repository."""

    def plant(folder: Path, run: str) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(
            text.replace("RUN", run).replace("OUTSIDE", outer_folder(folder))
        )

    return plant


def linked(path: str, target: str) -> Callable[[Path, str], None]:
    """Return a function that puts a link in the place of a path."""

    def plant(folder: Path, run: str) -> None:
        old = folder / path
        if old.exists():
            old.rename(folder / "moved-away")
        old.symlink_to(target.replace("OUTSIDE", outer_folder(folder)))

    return plant


def plant_git_file(folder: Path, run: str) -> None:
    """Replace `.git` with a file that names a repository with a configuration of its own."""
    other = folder.parent / f"{folder.name}-other"
    other.mkdir()
    plain_git(other, "init", "--quiet")
    plain_git(other, "config", "core.fsmonitor", run)
    (folder / ".git").rename(folder / "old")
    (folder / ".git").write_text(f"gitdir: {other}/.git\n")


def outer_folder(folder: Path) -> str:
    return str(folder.parent.parent)


KEYS = [
    ("core", "fsmonitor = RUN"),
    ("core", "hooksPath = hooks"),
    ("core", "sshCommand = RUN"),
    ("core", "gitProxy = RUN"),
    ("core", "pager = RUN"),
    ("core", "editor = RUN"),
    ("core", "askPass = RUN"),
    ("core", "worktree = /"),
    ("core", "attributesFile = /etc/passwd"),
    ("core", "alternateRefsCommand = RUN"),
    ("core", "bare = true"),
    ("core", "repositoryFormatVersion = 7"),
    ("extensions", "worktreeConfig = true"),
    ("extensions", "partialClone = origin"),
    ("include", "path = ../evil"),
    ('includeIf "gitdir:/"', "path = /etc/passwd"),
    ('filter "x"', "clean = RUN"),
    ('filter "x"', "process = RUN"),
    ('diff "x"', "textconv = RUN"),
    ("diff", "external = RUN"),
    ('merge "x"', "driver = RUN"),
    ("credential", "helper = RUN"),
    ("gpg", "program = RUN"),
    ("commit", "gpgSign = true"),
    ("alias", "status = !RUN"),
    ("pager", "status = RUN"),
    ("http", "proxy = http://127.0.0.1:9"),
    ("http", "sslVerify = false"),
    ("protocol", "allow = always"),
    ('url "ext::RUN"', "insteadOf = https://git.company.test/"),
    ('remote "origin"', "url = ext::RUN"),
    ('remote "origin"', "url = /etc"),
    ('remote "origin"', "vcs = ext"),
    ('remote "origin"', "uploadpack = RUN"),
    ('remote "origin"', "proxy = http://127.0.0.1:9"),
    ('remote "../x"', "url = https://git.company.test/x"),
    ('branch "main"', "remote = ext::RUN"),
    ('submodule "x"', "update = !RUN"),
    ("trailer", "x = RUN"),
    ("uploadpack", "packObjectsHook = RUN"),
    ("sequence", "editor = RUN"),
    ("interactive", "diffFilter = RUN"),
]

OTHER_CONFIG_LINES = [
    # Lines that git and a hasty reader take apart differently.
    PlantedConfig(
        "continued", setting("[user]\n\tname = x\\\n[core]\n\tfsmonitor = RUN\n"), "line"
    ),
    PlantedConfig("one-line", setting("[core] fsmonitor = RUN\n"), "line"),
    PlantedConfig("no-value", setting("[commit]\n\tgpgSign\n"), "line"),
    PlantedConfig("spaces", setting("[core]\n  fsmonitor = RUN\n"), "line"),
    PlantedConfig("carriage", setting("[core]\r\n\tfsmonitor = RUN\r\n"), "line"),
    PlantedConfig("old-subsection", setting("[filter.x]\n\tclean = RUN\n"), "line"),
    PlantedConfig("comment", setting("# [user]\n\tname = x\n"), "line"),
    PlantedConfig("quote", setting('[remote "o"]\n\turl = "https://x/#"ext::RUN\n'), "URL"),
    PlantedConfig("large", setting("[user]\n" + "\tname = x\n" * 8000), "more than"),
    PlantedConfig("no-config", lambda folder, run: (folder / ".git/config").unlink(), "missing"),
    # Ways to other repositories.
    PlantedConfig("gitdir", plant_git_file, "not a folder"),
    PlantedConfig("gitlink", linked(".git", "moved-away"), "not a folder"),
    PlantedConfig("commondir", planted_file(".git/commondir", "OUTSIDE\n"), "commondir"),
    PlantedConfig(
        "alternates", planted_file(".git/objects/info/alternates", "OUTSIDE\n"), "borrows"
    ),
    PlantedConfig(
        "http", planted_file(".git/objects/info/http-alternates", "http://x\n"), "borrows"
    ),
    PlantedConfig(
        "worktree",
        planted_file(".git/config.worktree", "[core]\n\tpager = RUN\n"),
        "refers to another place",
    ),
    PlantedConfig(
        "worktrees", planted_file(".git/worktrees/a/gitdir", "OUTSIDE\n"), "refers to another place"
    ),
    PlantedConfig(
        "modules",
        planted_file(".git/modules/a/config", "[core]\n\tpager = RUN\n"),
        "refers to another place",
    ),
    PlantedConfig(
        "remotes", planted_file(".git/remotes/origin", "URL: ext::RUN\n"), "refers to another place"
    ),
    PlantedConfig(
        "branches", planted_file(".git/branches/origin", "ext::RUN\n"), "refers to another place"
    ),
    PlantedConfig("link-config", linked(".git/config", "/etc/passwd"), "is a link"),
    PlantedConfig("link-objects", linked(".git/objects", "OUTSIDE"), "is a link"),
    PlantedConfig("link-head", linked(".git/HEAD", "/etc/passwd"), "is a link"),
    PlantedConfig("link-refs", linked(".git/refs/heads", "OUTSIDE"), "is a link"),
]
PLANTED_CONFIGS = [
    *(
        PlantedConfig(f"{head} {line}", setting(f"[{head}]\n\t{line}\n"), "config")
        for head, line in KEYS
    ),
    *OTHER_CONFIG_LINES,
]


def prepared_repository(mcp_agent: PackCaller) -> tuple[Path, str]:
    """Make a repository with git alone; return its folder and a command that leaves a trace."""
    folder = mcp_agent.folder
    folder.mkdir(parents=True)
    plain_git(folder, "init", "--quiet", "--initial-branch=main", "--template=")
    plain_git(folder, "remote", "add", "origin", "https://git.company.test/x.git")
    (folder / "a.txt").write_text("one\n")
    (folder / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
    return folder, f"touch {folder}/trace"


@pytest.fixture
def unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run git as on a kernel without Landlock, where only Gatepost's rules protect."""
    monkeypatch.setattr(child, "confines", lambda: False)


@pytest.mark.usefixtures("unconfined")
@pytest.mark.parametrize("planted", PLANTED_CONFIGS, ids=lambda planted: planted.name)
def test_a_repository_that_steers_git_is_refused(
    mcp_agent: PackCaller, planted: PlantedConfig
) -> None:
    """Each command is refused before it starts, with the reason."""
    folder, run = prepared_repository(mcp_agent)
    planted.plant(folder, run)

    for command in COMMANDS:
        message = git_refusal(mcp_agent, *command)
        assert "git does not run in this repository" in message
        assert planted.says in message
        assert str(folder) not in message
    assert not (folder / "trace").exists()


def test_the_planted_programs_run_without_gateposts_rules(mcp_agent: PackCaller) -> None:
    """Without Gatepost's rules git runs the programs, so the other tests would see a trace."""
    folder, run = prepared_repository(mcp_agent)
    setting("[core]\n\tfsmonitor = RUN\n")(folder, run)

    plain_git(folder, "status")

    assert (folder / "trace").exists()


@pytest.mark.usefixtures("unconfined")
def test_hooks_and_files_that_name_programs_have_no_effect(mcp_agent: PackCaller) -> None:
    """They may come with a clone; Gatepost tells git to ignore them."""
    folder, run = prepared_repository(mcp_agent)
    hooks = folder / ".git/hooks"
    hooks.mkdir()
    for name in ("pre-commit", "commit-msg", "post-commit", "post-checkout", "post-index-change"):
        (hooks / name).write_text(f"#!/bin/sh\n{run}\n")
        (hooks / name).chmod(0o755)
    (folder / ".git/info").mkdir(exist_ok=True)
    (folder / ".git/info/attributes").write_text("* filter=x diff=x\n")
    (folder / ".gitmodules").write_text(
        f'[submodule "x"]\n\tpath = x\n\turl = ../x\n\tupdate = !{run}\n'
    )

    git_output(mcp_agent, "add", "-A")
    git_output(mcp_agent, "commit", "-m", "x")
    git_output(mcp_agent, "checkout", "-b", "other")
    git_output(mcp_agent, "show", "--stat", "--format=%G? %s")

    assert not (folder / "trace").exists()


@pytest.mark.usefixtures("unconfined")
def test_a_folder_that_resembles_a_bare_repository_is_not_used(mcp_agent: PackCaller) -> None:
    """File tools can write such a folder (HEAD, objects, refs, config); only `.git` counts."""
    run = f"touch {mcp_agent.folder}/trace"
    for name, text in {
        "HEAD": "ref: refs/heads/main\n",
        "config": f"[core]\n\tbare = false\n\tworktree = /\n\tfsmonitor = {run}\n",
        "objects/info/x": "",
        "refs/heads/x": "",
    }.items():
        mcp_agent.call("fs_write_text", path=f"fake/{name}", text=text)

    assert "There is no git repository in /workspace/fake" in git_refusal(
        mcp_agent, "-C", "fake", "status"
    )
    git_output(mcp_agent, "-C", "fake", "init")
    git_output(mcp_agent, "-C", "fake", "status")
    assert not (mcp_agent.folder / "trace").exists()


def test_init_and_clone_refuse_an_existing_git_link(
    mcp_agent: PackCaller, git_servers: GitServers
) -> None:
    """They are refused where `.git` already leads elsewhere."""
    folder, run = prepared_repository(mcp_agent)
    plant_git_file(folder, run)

    assert "not a folder" in git_refusal(mcp_agent, "init")
    assert "not a folder" in git_refusal(
        mcp_agent, "clone", f"{git_servers.web.url}/x.git", "there"
    )
    assert not (folder / "trace").exists()


@pytest.mark.usefixtures("unconfined")
def test_links_made_by_an_operator_are_not_followed(
    mcp_agent: PackCaller, git_servers: GitServers
) -> None:
    """Git follows them neither to a repository nor to a place for a new one."""
    folder, _ = prepared_repository(mcp_agent)
    other = folder.parent / f"{mcp_agent.tenant}-beside"
    other.mkdir()
    plain_git(other, "init", "--quiet")
    (folder / "link").symlink_to(other)

    for args in (
        ["-C", "link", "status"],
        ["init", "link/x"],
        ["clone", git_servers.web.url + "/x", "link/y"],
    ):
        assert "/workspace/link is a link" in git_refusal(mcp_agent, *args)
    assert sorted(path.name for path in other.iterdir()) == [".git"]


def test_a_branch_that_tracks_a_local_branch_is_allowed(mcp_agent: PackCaller) -> None:
    """Git notes that as a remote named `.`."""
    prepared_repository(mcp_agent)
    git_output(mcp_agent, "add", "-A")
    git_output(mcp_agent, "commit", "-m", "x")
    git_output(mcp_agent, "checkout", "-b", "other")
    git_output(mcp_agent, "branch", "--set-upstream-to=main")

    assert "Your branch is up to date with 'main'" in git_output(mcp_agent, "status")


GIT_FOLDER_SPELLINGS = [
    ".git",
    ".GIT",
    ".Git",
    "git~1",
    "GIT~2",
    ".git ",
    ".git.",
    ".g\u200cit",
    ".git:x",
]


@pytest.mark.parametrize(
    "name", GIT_FOLDER_SPELLINGS, ids=lambda name: name.encode("unicode_escape").decode()
)
def test_no_file_tool_writes_where_git_reads(agent: PackCaller, name: str) -> None:
    """This holds for any spelling that a file system takes for the same name."""
    git_output(agent, "init")
    before = (agent.folder / ".git/config").read_bytes()
    for path in (f"{name}/config", f"{name}/hooks/pre-commit", f"a/{name}", name):
        for tool, text in (("fs_write_text", "text"), ("workspace_write", "content")):
            reply = agent.call(tool, path=path, **{text: "x"})
            assert reply.failure is not None
            assert "only git itself" in reply.failure
            assert reply.kind in (None, "denied")

    assert (agent.folder / ".git/config").read_bytes() == before
    assert os.listdir(agent.folder) == [".git"]


def test_a_whole_repository_can_be_deleted(mcp_agent: PackCaller) -> None:
    """A new one can be made in its place; its files can be read."""
    git_output(mcp_agent, "init")
    read = mcp_agent.call("fs_read_text", path=".git/HEAD")
    deleted = mcp_agent.call("fs_delete", path=".git", recursive=True)

    assert read.value == "ref: refs/heads/main\n"
    assert deleted.value == "ok"
    assert git_result(mcp_agent, "init")["returncode"] == 0
