"""Rules of single commands (settings, remotes, forms that only read), and results of the check."""

import re
from collections.abc import Sequence

import msgspec

from gatepost.workspace import is_repository
from gatepost.workspace import problem_of as path_problem
from gatepost_packs.git.rules import CommandRule
from gatepost_packs.git.url import RemoteUrl, problem_of, remote_of

ROOT = "/workspace"
NOT_OURS = "A folder named .git belongs to git itself: name the folder that holds it instead."


class ArgumentsRefused(msgspec.Struct, frozen=True):
    """Why arguments are not accepted, as a sentence for a model."""

    message: str


class Settled(msgspec.Struct, frozen=True):
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
        return ArgumentsRefused(NOT_OURS)
    if absolute:
        if tuple(names[: len(folder)]) != folder:
            shown = "/".join((ROOT, *folder))
            return ArgumentsRefused(f"{text[:60]!r} is not in {shown}, where the command runs.")
        names = names[len(folder) :]
    # No deeper than the file tools go: they could neither list nor delete what git made there.
    if not pattern and names and (problem := path_problem("/".join((*folder, *names)))) is not None:
        return ArgumentsRefused(f"{text[:60]!r} {problem}.")
    return tuple(names)


NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
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
LOOKS = LISTS | {
    *("--all", "-a", "--remotes", "-r", "-v", "-vv", "--verbose", "--show-current"),
}


def reads_only(
    command: str, rule: CommandRule, options: Sequence[str], operands: Sequence[str]
) -> bool:
    """Return whether a command only reads in this form."""
    if command != "branch":
        return rule.reads
    given = {option.partition("=")[0] for option in options} - {"--format", "--sort"}
    return given <= LOOKS and (not operands or bool(given & LISTS))


def configuration(options: Sequence[str], operands: Sequence[str]) -> ArgumentsRefused | Settled:
    """Check `git config`: its settings never make git run or read something else."""
    given = set(options)
    if given & {"--list", "-l"}:
        if operands or not given & {"--global", "--local"}:
            return ArgumentsRefused("Write config --list --local, or config --list --global.")
        return Settled((), reads=True)
    if not operands:
        return ArgumentsRefused("git config needs a setting, for example user.name.")
    key = operands[0].lower()
    writes = "--unset" in given or len(operands) > 1
    known = key in MAY_SET or (not writes and MAY_READ.fullmatch(key))
    if not known:
        return ArgumentsRefused(
            f"The setting {operands[0][:60]!r} cannot be {'changed' if writes else 'read'} "
            f"here. Allowed are: {', '.join(sorted(MAY_SET))}."
        )
    if len(operands) > (1 if given & {"--get", "--get-all", "--unset"} else 2):
        return ArgumentsRefused(
            "git config takes a setting and one value; quote a value with spaces."
        )
    return Settled(tuple(operands), reads=not writes)


def remotes(options: Sequence[str], operands: Sequence[str]) -> ArgumentsRefused | Settled:
    """Check `git remote`: the list, and add, remove, rename, get-url, set-url."""
    if not operands:
        return Settled((), reads=True)
    verb, names = operands[0], list(operands[1:])
    takes = {"add": 2, "set-url": 2, "rename": 2, "remove": 1, "rm": 1, "get-url": 1}.get(verb)
    if takes is None:
        return ArgumentsRefused(
            "git remote takes: -v, add NAME URL, remove NAME, rename OLD NEW, get-url NAME, "
            "set-url NAME URL."
        )
    if options or len(names) != takes:
        return ArgumentsRefused(
            f"git remote {verb} takes {takes} argument{'s' * (takes > 1)}, no options."
        )
    remote = None
    if verb in ("add", "set-url"):
        remote = remote_of(names[1])
        if remote is None:
            return ArgumentsRefused(problem_of(names[1]))
    if not all(NAME.fullmatch(name) for name in (names[:1] if remote else names)):
        return ArgumentsRefused(
            "A remote's name consists of letters, digits, `_`, `.` and `-`, at most 64."
        )
    return Settled(tuple(operands), reads=verb == "get-url", urls=(remote,) if remote else ())
