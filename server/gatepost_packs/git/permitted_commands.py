"""The permitted commands, options and settings, as tables that `policy` follows."""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from gatepost.workspace import is_repository
from gatepost.workspace import problem_of as path_problem
from gatepost_packs.git.url import RemoteUrl, problem_of, remote_of

ArgumentKind = Literal["revision", "path", "remote", "refspec", "url", "folder", "own"]
"""The kind of an argument that is not an option; `own` is checked by the command's own rule."""

NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
REF = re.compile(r"[^\s~^:?*\[\\-][^\s~^:?*\[\\]{0,254}")
TEXT = re.compile(r"[^\s].{0,1000}")
LEASE = re.compile(r"[^\s~^?*\[\\:-][^\s~^?*\[\\:]{0,254}(?::[0-9a-f]{4,64})?")
MODE = re.compile(r"[+-]x")
UNTRACKED = re.compile(r"no|normal|all")
VERSION = re.compile(r"v?[12]")
DATES = re.compile(r"relative|local|iso|iso-strict|rfc|short|raw|human|unix|default")
FILTER = re.compile(r"[A-Za-z]{1,10}")


class CommandRule(msgspec.Struct, frozen=True, kw_only=True):
    """
    The permitted arguments of one command.

    Options must match exactly. Git itself also accepts abbreviated long options (`--upload-p=…`)
    and several short ones in one word.
    """

    max_arguments: int
    """Maximum number of arguments after the command."""
    flags: frozenset[str] = frozenset()
    values: Mapping[str, re.Pattern[str]] = {}
    """Options with a value: `--name=value`, `--name value`, or `-n value`."""
    optional: Mapping[str, re.Pattern[str]] = {}
    """Long options whose value is optional and never a separate argument."""
    numbers: frozenset[str] = frozenset()
    """Short options with a number in the same word; `-` alone is one."""
    message: frozenset[str] = frozenset()
    """Options with a text of any characters and lines."""
    kinds: tuple[ArgumentKind, ...] = ()
    """
    Kinds of the arguments that are not options, in order; the last applies to all further ones.
    """
    operands: int = 50
    separator: bool = False
    """Whether `--` may come before paths."""
    forced: tuple[str, ...] = ()
    """Options that are always passed."""
    network: bool = False
    reads: bool = False
    """Whether it never changes anything."""


def _flags(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Neither programs that a repository's configuration names nor other repositories take part.
_PLAIN_DIFF = ("--no-ext-diff", "--no-textconv")
_NOT_BELOW = "--ignore-submodules=all"

_SHOWN = "--stat --shortstat --numstat --summary --name-only --name-status --patch -p --no-patch -s"
_LOOKS = {"--format": TEXT, "--pretty": TEXT, "--date": DATES, "--diff-filter": FILTER}

RULES: Mapping[str, CommandRule] = {
    "clone": CommandRule(
        max_arguments=10,
        flags=_flags("--single-branch --no-single-branch --no-tags --no-checkout --quiet -q"),
        values={"--depth": NUMBER, "--branch": REF, "-b": REF},
        kinds=("url", "folder"),
        operands=2,
        forced=("--template=", "--no-recurse-submodules", "--no-local"),
        network=True,
    ),
    "pull": CommandRule(
        max_arguments=5,
        flags=_flags(
            "--ff-only --ff --no-ff --rebase --no-rebase --autostash --no-autostash --prune "
            "--tags --no-tags --quiet -q"
        ),
        kinds=("remote", "refspec"),
        forced=("--no-recurse-submodules", "--no-edit"),
        network=True,
    ),
    "fetch": CommandRule(
        max_arguments=10,
        flags=_flags("--all --prune -p --tags -t --no-tags --unshallow --dry-run --quiet -q"),
        values={"--depth": NUMBER, "--deepen": NUMBER},
        kinds=("remote", "refspec"),
        forced=("--no-recurse-submodules", "--no-auto-maintenance"),
        network=True,
    ),
    "status": CommandRule(
        max_arguments=5,
        flags=_flags("--short -s --branch -b -sb --long --ignored --show-stash -uno -uall"),
        optional={"--porcelain": VERSION, "--untracked-files": UNTRACKED},
        kinds=("path",),
        separator=True,
        forced=(_NOT_BELOW,),
        reads=True,
    ),
    "log": CommandRule(
        max_arguments=10,
        flags=_flags(
            f"{_SHOWN} --oneline --all --graph --decorate --no-decorate --reverse --merges "
            "--no-merges --first-parent --follow --abbrev-commit --branches --tags -i"
        ),
        values={
            **_LOOKS,
            **{"--max-count": NUMBER, "-n": NUMBER, "--skip": NUMBER},
            **{"--since": TEXT, "--after": TEXT, "--until": TEXT, "--before": TEXT},
            **{"--author": TEXT, "--grep": TEXT},
        },
        numbers=frozenset({"-", "-n"}),
        kinds=("revision",),
        separator=True,
        forced=_PLAIN_DIFF,
        reads=True,
    ),
    "diff": CommandRule(
        max_arguments=10,
        flags=_flags(
            f"{_SHOWN} --cached --staged --merge-base --word-diff --ignore-all-space -w "
            "--ignore-space-change -b --exit-code --quiet --minimal"
        ),
        values={"--diff-filter": FILTER, "--unified": NUMBER},
        numbers=frozenset({"-U"}),
        kinds=("revision",),
        separator=True,
        forced=(*_PLAIN_DIFF, _NOT_BELOW),
        reads=True,
    ),
    "show": CommandRule(
        max_arguments=5,
        flags=_flags(f"{_SHOWN} --oneline --quiet -q --abbrev-commit --first-parent"),
        values=_LOOKS,
        kinds=("revision",),
        separator=True,
        forced=_PLAIN_DIFF,
        reads=True,
    ),
    "branch": CommandRule(
        max_arguments=10,
        flags=_flags(
            "--list -l --all -a --remotes -r -v -vv --verbose --show-current --merged --no-merged "
            "--contains --no-contains -d --delete -D -m --move -M -f --force --unset-upstream -q "
            "--quiet --no-track"
        ),
        values={"--set-upstream-to": REF, "-u": REF, "--format": TEXT, "--sort": REF},
        kinds=("revision",),
    ),
    "checkout": CommandRule(
        max_arguments=5,
        flags=_flags(
            "--ours --theirs --detach --force -f --quiet -q --track -t --no-track --no-guess"
        ),
        values={"-b": REF, "-B": REF, "--orphan": REF},
        kinds=("revision",),
        separator=True,
        forced=("--no-recurse-submodules",),
    ),
    "add": CommandRule(
        max_arguments=50,
        flags=_flags(
            "-A --all -u --update -f --force -n --dry-run -v --verbose -N --intent-to-add"
        ),
        values={"--chmod": MODE},
        kinds=("path",),
        separator=True,
    ),
    "reset": CommandRule(
        max_arguments=5,
        flags=_flags("--soft --mixed --hard --keep --merge --quiet -q"),
        kinds=("revision",),
        separator=True,
        forced=("--no-recurse-submodules",),
    ),
    "commit": CommandRule(
        max_arguments=10,
        flags=_flags(
            "--amend --all -a --signoff -s --no-edit --allow-empty --dry-run --quiet -q --only "
            "--include --reset-author"
        ),
        message=frozenset({"-m", "--message", "-am"}),
        kinds=("path",),
        separator=True,
        forced=("--no-gpg-sign",),
    ),
    "push": CommandRule(
        max_arguments=10,
        flags=_flags(
            "--all --force -f --tags --follow-tags --set-upstream -u --delete -d --dry-run -n "
            "--prune --porcelain --quiet -q"
        ),
        optional={"--force-with-lease": LEASE},
        kinds=("remote", "refspec"),
        forced=("--recurse-submodules=no", "--no-signed"),
        network=True,
    ),
    "remote": CommandRule(max_arguments=10, flags=_flags("-v --verbose"), kinds=("own",)),
    "config": CommandRule(
        max_arguments=5,
        flags=_flags("--global --local --list -l --get --get-all --unset"),
        kinds=("own",),
    ),
    "init": CommandRule(
        max_arguments=5,
        flags=_flags("--bare --quiet -q"),
        values={"--initial-branch": REF, "-b": REF},
        kinds=("folder",),
        operands=1,
        forced=("--template=",),
    ),
}
"""The commands of Octoprox, each with its options there and a few similar ones."""

ROOT = "/workspace"
GIT_FOLDER = "A folder named .git belongs to git itself: name the folder that holds it instead."


class ArgumentsRefused(msgspec.Struct, frozen=True):
    """The reason why arguments are not accepted, as a sentence for a model."""

    message: str


class CheckedArguments(msgspec.Struct, frozen=True):
    """The result of a command's own rules for its arguments."""

    operands: tuple[str, ...]
    reads: bool = False
    remote: RemoteUrl | None = None
    named: str | None = None
    urls: tuple[RemoteUrl, ...] = ()
    target: tuple[str, ...] | None = None


def relative(
    text: str, folder: tuple[str, ...], *, pattern: bool = False
) -> ArgumentsRefused | tuple[str, ...]:
    """
    Return the names of a path below *folder*; `/workspace` is the root of the workspace.

    A *pattern* may hold wildcards, and end in `/`.
    """
    absolute = text.startswith("/")
    if absolute and text != ROOT and not text.startswith(f"{ROOT}/"):
        return ArgumentsRefused(f"{text[:60]!r} leads out of the workspace, whose root is {ROOT}.")
    inner = text.removeprefix(ROOT) if absolute else text
    names = [name for name in inner.split("/") if name not in ("", ".")]
    if ".." in names or text.startswith("~"):
        return ArgumentsRefused(f"{text[:60]!r} leads out of the workspace: it must not hold `..`.")
    if not pattern and any(set(name) & set("*?[]:") for name in names):
        return ArgumentsRefused(f"{text[:60]!r} is not a plain path of a folder.")
    if any(is_repository(name) for name in names):
        return ArgumentsRefused(GIT_FOLDER)
    if absolute:
        if tuple(names[: len(folder)]) != folder:
            shown_folder = "/".join((ROOT, *folder))
            return ArgumentsRefused(
                f"{text[:60]!r} is not in {shown_folder}, where the command runs."
            )
        names = names[len(folder) :]
    # No deeper than the file tools go: they could neither list nor delete what git made there.
    if not pattern and names and (problem := path_problem("/".join((*folder, *names)))) is not None:
        return ArgumentsRefused(f"{text[:60]!r} {problem}.")
    return tuple(names)


REMOTE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
MAY_SET = frozenset(
    {
        *("user.name", "user.email", "init.defaultbranch"),
        *("pull.rebase", "pull.ff", "fetch.prune", "fetch.prunetags"),
        *("push.default", "push.autosetupremote", "push.followtags"),
        *("rebase.autostash", "merge.conflictstyle", "merge.ff"),
        *("branch.sort", "branch.autosetuprebase", "branch.autosetupmerge", "tag.sort"),
        *("diff.algorithm", "diff.renames", "diff.context", "log.date", "log.decorate"),
        *("status.short", "status.branch", "status.showuntrackedfiles"),
    }
)
"""Settings that name no program, file, host or key; in lower case, as git compares them."""
MAY_READ = re.compile(
    r"(?:remote\.[^.\n]+\.(?:url|pushurl|fetch)|branch\..+\.(?:remote|merge|rebase)"
    r"|core\.(?:bare|filemode|repositoryformatversion))"
)

LISTS = frozenset({"--list", "-l", "--merged", "--no-merged", "--contains", "--no-contains"})
BRANCH_LISTING = LISTS | {
    *("--all", "-a", "--remotes", "-r", "-v", "-vv", "--verbose", "--show-current"),
}


def reads_only(
    command: str, rule: CommandRule, options: Sequence[str], operands: Sequence[str]
) -> bool:
    """Return whether a command only reads in this form."""
    if command != "branch":
        return rule.reads
    option_names = {option.partition("=")[0] for option in options} - {"--format", "--sort"}
    return option_names <= BRANCH_LISTING and (not operands or bool(option_names & LISTS))


def configuration(
    options: Sequence[str], operands: Sequence[str]
) -> ArgumentsRefused | CheckedArguments:
    """Check `git config`: its settings never make git run or read something else."""
    option_names = set(options)
    if option_names & {"--list", "-l"}:
        if operands or not option_names & {"--global", "--local"}:
            return ArgumentsRefused("Write config --list --local, or config --list --global.")
        return CheckedArguments((), reads=True)
    if not operands:
        return ArgumentsRefused("git config needs a setting, for example user.name.")
    key = operands[0].lower()
    writes = "--unset" in option_names or len(operands) > 1
    is_allowed = key in MAY_SET or (not writes and MAY_READ.fullmatch(key))
    if not is_allowed:
        return ArgumentsRefused(
            f"The setting {operands[0][:60]!r} cannot be {'changed' if writes else 'read'} "
            f"here. Allowed are: {', '.join(sorted(MAY_SET))}."
        )
    if len(operands) > (1 if option_names & {"--get", "--get-all", "--unset"} else 2):
        return ArgumentsRefused(
            "git config takes a setting and one value; quote a value with spaces."
        )
    return CheckedArguments(tuple(operands), reads=not writes)


def remotes(options: Sequence[str], operands: Sequence[str]) -> ArgumentsRefused | CheckedArguments:
    """Check `git remote`: the list, and add, remove, rename, get-url, set-url."""
    if not operands:
        return CheckedArguments((), reads=True)
    verb, names = operands[0], list(operands[1:])
    names_needed = {"add": 2, "set-url": 2, "rename": 2, "remove": 1, "rm": 1, "get-url": 1}.get(
        verb
    )
    if names_needed is None:
        return ArgumentsRefused(
            "git remote takes: -v, add NAME URL, remove NAME, rename OLD NEW, get-url NAME, "
            "set-url NAME URL."
        )
    if options or len(names) != names_needed:
        return ArgumentsRefused(
            f"git remote {verb} takes {names_needed} argument{'s' * (names_needed > 1)}, "
            "no options."
        )
    remote = None
    if verb in ("add", "set-url"):
        remote = remote_of(names[1])
        if remote is None:
            return ArgumentsRefused(problem_of(names[1]))
    if not all(REMOTE_NAME.fullmatch(name) for name in (names[:1] if remote else names)):
        return ArgumentsRefused(
            "A remote's name consists of letters, digits, `_`, `.` and `-`, at most 64."
        )
    return CheckedArguments(
        tuple(operands), reads=verb == "get-url", urls=(remote,) if remote else ()
    )
