"""The rules that single commands have of their own: settings, remotes, forms that only read."""

import re
from collections.abc import Sequence

from gatepost.packs.git.rules import Rule
from gatepost.packs.git.terms import Refused, Settled
from gatepost.packs.git.url import problem_of, remote_of

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


def reads_only(command: str, rule: Rule, options: Sequence[str], operands: Sequence[str]) -> bool:
    """Whether a command only reads in this form."""
    if command != "branch":
        return rule.reads
    given = {option.partition("=")[0] for option in options} - {"--format", "--sort"}
    return given <= LOOKS and (not operands or bool(given & LISTS))


def configuration(options: Sequence[str], operands: Sequence[str]) -> Refused | Settled:
    """`git config`: settings by name, none of which makes git run or read something else."""
    given = set(options)
    if given & {"--list", "-l"}:
        if operands or not given & {"--global", "--local"}:
            return Refused("Write config --list --local, or config --list --global.")
        return Settled((), reads=True)
    if not operands:
        return Refused("git config needs a setting, for example user.name.")
    key = operands[0].lower()
    writes = "--unset" in given or len(operands) > 1
    known = key in MAY_SET or (not writes and MAY_READ.fullmatch(key))
    if not known:
        return Refused(
            f"The setting {operands[0][:60]!r} may not be {'changed' if writes else 'read'} here. "
            f"There are: {', '.join(sorted(MAY_SET))}."
        )
    if len(operands) > (1 if given & {"--get", "--get-all", "--unset"} else 2):
        return Refused("git config takes a setting and one value; quote a value with spaces.")
    return Settled(tuple(operands), reads=not writes)


def remotes(options: Sequence[str], operands: Sequence[str]) -> Refused | Settled:
    """`git remote`: the list, and add, remove, rename, get-url, set-url."""
    if not operands:
        return Settled((), reads=True)
    verb, names = operands[0], list(operands[1:])
    takes = {"add": 2, "set-url": 2, "rename": 2, "remove": 1, "rm": 1, "get-url": 1}.get(verb)
    if takes is None:
        return Refused(
            "git remote does: -v, add NAME URL, remove NAME, rename OLD NEW, get-url NAME, "
            "set-url NAME URL."
        )
    if options or len(names) != takes:
        return Refused(f"git remote {verb} takes {takes} argument{'s' * (takes > 1)}, no options.")
    remote = None
    if verb in ("add", "set-url"):
        remote = remote_of(names[1])
        if remote is None:
            return Refused(problem_of(names[1]))
    if not all(NAME.fullmatch(name) for name in (names[:1] if remote else names)):
        return Refused("A remote's name is letters, digits, `_`, `.` and `-`, at most 64.")
    return Settled(tuple(operands), reads=verb == "get-url", urls=(remote,) if remote else ())
