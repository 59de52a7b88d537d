"""The table of commands and options: what passes, what does not, and why nothing slips through."""

import pytest

from gatepost_packs.git.permitted_commands import RULES, ArgumentsRefused
from gatepost_packs.git.policy import GitPlan, decide
from gatepost_packs.git.tools import only_reads
from gatepost_packs.git.url import remote_of
from tests.support.measuring import each

pytestmark = pytest.mark.requirement("X2")

MAX_ARGUMENTS = {
    **{"clone": 10, "pull": 5, "fetch": 10, "status": 5, "log": 10, "diff": 10, "show": 5},
    **{"branch": 10, "checkout": 5, "add": 50, "reset": 5, "commit": 10, "push": 10},
    **{"remote": 10, "config": 5, "init": 5},
}
"""The reference's table, column "Max Args"."""

DOCUMENTED_COMMANDS = [
    "status --short --branch --porcelain",
    "log --oneline --max-count=5 --since=2.weeks",
    "clone --depth=1 --branch=main --single-branch https://github.com/user/repo.git ./myrepo",
    "pull --ff-only",
    "pull --rebase --autostash origin main",
    "fetch --all --prune --depth=3",
    "diff --cached --stat --name-only",
    "show --stat --format=%H --quiet HEAD~1",
    "branch --list --all",
    "branch -d old",
    "branch -m old new",
    "checkout -b feature/x origin/main",
    "checkout -B main",
    "checkout --track origin/main",
    "checkout --ours -- a/b.txt",
    "add -A",
    "add --all",
    "add -u",
    "add -f build/a.o",
    "reset --soft HEAD~1",
    "reset --mixed",
    "reset --hard origin/main",
    "commit -m message",
    "commit --amend --all --signoff",
    "push --all",
    "push --force origin main",
    "push --force-with-lease origin HEAD:main",
    "remote -v",
    "remote add origin https://example.com/a.git",
    "remote remove origin",
    "remote set-url origin git@example.com:a/b.git",
    "config --global user.name Ada",
    "config --local user.email ada@example.com",
    "config user.name",
    "init --bare --initial-branch=main there",
]


@each("line", DOCUMENTED_COMMANDS)
def test_every_documented_command_and_option_is_allowed(line: str) -> None:
    """The cases are the documented commands with each of their options."""
    assert isinstance(decide(line.split()), GitPlan)


@each("command", MAX_ARGUMENTS)
def test_each_command_has_its_documented_number_of_arguments(command: str) -> None:
    """One more argument is refused."""
    assert RULES[command].max_arguments == MAX_ARGUMENTS[command]
    refused = decide([command, *["x"] * (MAX_ARGUMENTS[command] + 1)])

    assert isinstance(refused, ArgumentsRefused)
    assert f"Too many arguments for git {command}" in refused.message


def test_the_allowed_commands_are_exactly_the_documented_ones() -> None:
    """There are sixteen, and no alias."""
    assert list(RULES) == list(MAX_ARGUMENTS)


URL = "https://github.com/user/repo.git"
REFUSED_COMMANDS: list[tuple[list[str], str]] = [
    # Commands and what is no command.
    ([], "Name a git command"),
    (["rm", "-rf", "."], "not an allowed git command"),
    (["daemon"], "not an allowed git command"),
    (["submodule", "update"], "not an allowed git command"),
    (["status; id"], "not an allowed git command"),
    (["--exec-path=/tmp", "status"], "not an allowed git command"),
    (["-c", "core.pager=id", "log"], "not an allowed git command"),
    (["--git-dir=/etc", "log"], "not an allowed git command"),
    (["-C", ".."], "leads out of the workspace"),
    (["-C", "/etc", "status"], "leads out of the workspace"),
    (["-C", "a/.git", "status"], "belongs to git itself"),
    (["-C", "a", "-C", "b", "status"], "not an allowed git command"),
    (["-C"], "a folder"),
    # Characters.
    *[(["add", f"a{c}b"], "invalid characters") for c in ";|&$`<>\\\0\n\r\x1b\x7f\ud800"],
    (["log", "--oneline;id"], "invalid characters"),
    (["log", "--grep=$(id)"], "invalid characters"),
    (["commit", "-m", "$(id)"], "invalid characters"),
    (["commit", "-m", "`id`"], "invalid characters"),
    (["commit", "-m", "a\0b"], "invalid characters"),
    (["commit", "-m"], "is empty"),
    (["commit", "-m", "x" * 40_000], "longer than"),
    (["commit"], "No editor is available"),
    (["add", "x" * 5000], "longer than"),
    # Paths.
    *[
        ([*command, path], "leads out of the workspace")
        for command in (["add"], ["checkout", "--"], ["diff", "--"], ["status"], ["init"])
        for path in ("../x", "a/../../x", "/etc/passwd", "/workspace/../x", "/workspaces", "~/x")
    ],
    (["show", "HEAD:../x"], "leads out"),
    (["diff", "/etc/passwd"], "leads out"),
    (["add", ":(top,glob)x"], "must not begin with"),
    (["add", ":/"], "must not begin with"),
    (["diff", ":!x"], "must not begin with"),
    *[
        (["add", f"{name}/config"], "belongs to git itself")
        for name in (".git", ".GIT", ".Git", "GIT~1", ".git ", ".git.", ".g\u200cit", ".git::$I")
        if "$" not in name
    ],
    (["clone", URL, ".git"], "belongs to git itself"),
    (["clone", URL, "a/.git/hooks"], "belongs to git itself"),
    # Options that run, read or write something else.
    *[
        ([command, option], "is not an allowed option")
        for command, options in {
            "clone": "--upload-pack=x --upl=x -u --config=a.b -c --template=x --reference=/x "
            "--recurse-submodules --separate-git-dir=/x --bare --mirror --origin=x -o "
            "--bundle-uri=x --filter=blob:none --server-option=x -ux --dep=1 --shared -s -l",
            "pull": "--upload-pack=x --exec=x --rebase=interactive --strategy=x -s -X -S",
            "fetch": "--upload-pack=x --upload-p=x --recurse-submodules --multiple --stdin "
            "--negotiation-tip=x --refmap=x --output=x -o -4",
            "status": "--ignore-submodules=none --column -z -v",
            "log": "--output=x --outp=x --ext-diff --textconv --no-index -O/etc/passwd -L1,2:x "
            "--show-signature --open-files-in-pager --stdin -Gx --remerge-diff",
            "diff": "--no-index --output=x --ext-diff --textconv --outpu=x -O --submodule=log",
            "show": "--output=x --ext-diff --textconv --show-signature --stdin",
            "branch": "--edit-description --ed -c -C --create-reflog",
            "checkout": "--recurse-submodules -p --patch --pathspec-from-file=x --conflict=x -fx",
            "add": "-p -i -e --interactive --edit --patch --pathspec-from-file=x "
            " -fA --pathspec-fi=x",
            "reset": "-p --patch --pathspec-from-file=x --recurse-submodules",
            "commit": "-F --file=x -C -c --template=x -t -S --gpg-sign -e --edit -p --fixup=x "
            "--trailer=x --pathspec-from-file=x --cleanup=x -n --no-verify",
            "push": "--receive-pack=x --exec=x --exe=x --repo=x --push-option=x -o --signed "
            "--recurse-submodules=on-demand --no-verify --mirror",
            "config": "--file=x -f --system --worktree --edit -e --replace-all --includes --blob=x "
            "--get-regexp --rename-section --show-origin --type=path --get-urlmatch",
            "init": "--template=x --separate-git-dir=x --shared=all --object-format=sha256",
        }.items()
        for option in options.split()
    ],
    # Values.
    (["clone", "--depth=x", URL], "not a valid value of"),
    (["clone", "--depth=-1", URL], "not a valid value of"),
    (["clone", "--branch=--upload-pack", URL], "not a valid value of"),
    (["checkout", "-b", "--force"], "not a valid value of"),
    (["status", "--porcelain=v9"], "not a valid value of"),
    (["log", "--max-count"], "is empty"),
    # Remotes.
    *[
        (["clone", url, "x"], says)
        for url, says in (
            ("ext::sh -c id", "`ext` is not an allowed protocol"),
            ("fd::17", "`fd` is not an allowed protocol"),
            ("file:///etc", "`file` is not an allowed protocol"),
            ("git://example.com/a", "`git` is not an allowed protocol"),
            ("ftp://example.com/a", "`ftp` is not an allowed protocol"),
            ("rsync://example.com/a", "`rsync` is not an allowed protocol"),
            ("https::https://example.com/a", "not a plain https URL"),
            ("/etc", "local paths are not allowed"),
            ("../other", "local paths are not allowed"),
            ("./x", "local paths are not allowed"),
            (".", "local paths are not allowed"),
            ("https://user:token@example.com/a", "must not hold a user name"),
            ("https://token@example.com/a", "must not hold a user name"),
            ("https://-x/a", "not a plain https URL"),
            ("https://[::1]/a", "not a plain https URL"),
            ("https://example.com", "not a plain https URL"),
            ("https://example.com/../a", "not a plain https URL"),
            ("https://example.com/a?service=x", "not a plain https URL"),
            ("https://example.com#@evil.com/a", "must not hold a user name"),
            ("https://example.com\\@evil.com/a", "invalid characters"),
            ("https://example.com:99999/a", "not a plain https URL"),
            ("ssh://-oProxyCommand=id/a", "not a plain ssh URL"),
            ("ssh://git@-oProxyCommand=id/a", "not a plain ssh URL"),
            ("ssh://git:pw@example.com/a", "not a plain ssh URL"),
            ("ssh://git@example.com/-a", "not a plain ssh URL"),
            ("-oProxyCommand=id@example.com:a", "not an allowed option"),
            ("git@-oProxyCommand=id:a", "local paths are not allowed"),
            ("git@example.com:-a", "local paths are not allowed"),
            ("git@example.com:a/../../b", "local paths are not allowed"),
            ("git@exa mple.com:a", "local paths are not allowed"),
        )
    ],
    (["fetch", "ext::sh -c id"], "not an allowed protocol"),
    (["push", "/srv/x", "main"], "local paths are not allowed"),
    (["pull", "a/b"], "local paths are not allowed"),
    (["remote", "add", "o", "ext::sh -c id"], "not an allowed protocol"),
    (["remote", "set-url", "o", "/etc"], "local paths are not allowed"),
    (["remote", "add", "../x", URL], "A remote's name"),
    (["remote", "add", "-f", "o", URL], "is not an allowed option"),
    (["remote", "update"], "git remote takes"),
    (["remote", "show", "o"], "git remote takes"),
    (["push", "origin", "a:../b"], "`..`"),
    (["push", "origin", "--", "x"], "not an allowed option"),
    (["fetch", "origin", "a b"], "not a branch, tag or refspec"),
    # Settings.
    *[
        (["config", key, "x"], "cannot be changed")
        for key in (
            *("core.pager", "core.hooksPath", "core.fsmonitor", "core.sshCommand", "core.editor"),
            *("core.gitProxy", "core.worktree", "core.attributesFile", "CORE.Pager", "alias.x"),
            *("filter.x.clean", "diff.x.command", "merge.x.driver", "credential.helper"),
            *("url.ext::x.insteadOf", "include.path", "includeIf.x.path", "http.proxy"),
            *("remote.origin.url", "remote.origin.vcs", "remote.origin.uploadpack"),
            *("submodule.x.update", "protocol.ext.allow", "gpg.program", "uploadpack.x"),
            *("safe.directory", "trailer.x.command", "sequence.editor", "user.signingKey"),
        )
    ],
    (["config", "--get", "credential.helper"], "cannot be read"),
    (["config", "--list"], "config --list --local"),
]


def id_of(case: tuple[list[str], str]) -> str:
    return " ".join(case[0]).encode("unicode_escape", "surrogatepass").decode()[:70]


@each("case", REFUSED_COMMANDS, ids=id_of)
def test_a_dangerous_command_line_is_refused(case: tuple[list[str], str]) -> None:
    """The error says what is wrong."""
    args, says = case
    refused = decide(args)

    assert isinstance(refused, ArgumentsRefused), refused
    assert says in refused.message, refused.message


MESSAGES = [
    "Fix #12: it's 100% (really) done; more & more | less, costs 5$ <ada@example.com>!",
    'Subject\n\nBody with "quotes",\ttabs and \\ slashes',
    "Überraschung 🎉",
    "-m is an option",
    "--amend",
]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_any_ordinary_text(message: str) -> None:
    """No shell reads it, so punctuation has no effect."""
    for args in (["commit", "-m", message], ["commit", f"--message={message}"]):
        plan = decide(args)
        assert isinstance(plan, GitPlan)
        assert plan.argv[-2:] == ("-m", message)


READING_COMMANDS: list[tuple[str, bool]] = [
    ("status", True),
    ("-C a status --short", True),
    ("log -5", True),
    ("diff HEAD", True),
    ("show", True),
    ("branch", True),
    ("branch -a", True),
    ("branch --list x", True),
    ("branch --show-current", True),
    ("remote -v", True),
    ("remote get-url origin", True),
    ("config user.name", True),
    ("config --list --local", True),
    ("branch x", False),
    ("branch -v x", False),
    ("branch -D x", False),
    ("branch -u origin/main", False),
    ("remote add o https://h.example/x", False),
    ("config user.name x", False),
    ("config --unset user.name", False),
    ("fetch --dry-run", False),
    ("add -n .", False),
    ("commit --dry-run", False),
    ("push --dry-run", False),
]


@each(("line", "reads"), READING_COMMANDS)
def test_read_only_command_lines_are_recognized(line: str, reads: bool) -> None:
    """A retry runs them again, and the kernel lets them write nothing."""
    plan = decide(line.split())

    assert isinstance(plan, GitPlan)
    assert plan.reads is reads
    assert only_reads({"args": line.split()}) is reads


PATH_ARGUMENTS = [
    ("add /workspace/a/b.txt", ("a/b.txt",)),
    ("add ./a", ("a",)),
    ("add /workspace", (".",)),
    ("-C a add /workspace/a/b.txt", ("b.txt",)),
    ("diff /workspace/x.txt", ("x.txt",)),
    ("clone https://h.example/a/b.git", ("--", "https://h.example/a/b.git", "b")),
    ("clone git@h.example:b.git /workspace/c", ("--", "git@h.example:b.git", "c")),
    ("-C a clone git@h.example:b.git /workspace/a/c", ("--", "git@h.example:b.git", "c")),
    ("clone https://h.example/a .", ("--", "https://h.example/a", ".")),
    ("clone --depth 2 https://h.example/a x", ("--depth=2", "--", "https://h.example/a", "x")),
]


@each(("line", "ends"), PATH_ARGUMENTS)
def test_arguments_are_rewritten_to_an_unambiguous_form(line: str, ends: tuple[str, ...]) -> None:
    """Paths become relative, values join their options, and other arguments follow `--`."""
    plan = decide(line.split())

    assert isinstance(plan, GitPlan)
    assert plan.argv[-len(ends) :] == ends


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("https://GitHub.com/a/b", ("https", "github.com", 443)),
        ("https://h.example:8443/a", ("https", "h.example", 8443)),
        ("http://h.example/a", ("http", "h.example", 80)),
        ("git@h.example:a/b.git", ("ssh", "h.example", 22)),
        ("git@h.example:/srv/b.git", ("ssh", "h.example", 22)),
        ("ssh://h.example/a", ("ssh", "h.example", 22)),
        ("ssh://git@h.example:2222/~a/b", ("ssh", "h.example", 2222)),
    ],
)
def test_the_host_of_a_remote_is_recognized(url: str, location: tuple[str, str, int]) -> None:
    """Gatepost reads a remote's address as git, curl and ssh do."""
    remote = remote_of(url)

    assert remote is not None
    assert (remote.scheme, remote.host, remote.port) == location
