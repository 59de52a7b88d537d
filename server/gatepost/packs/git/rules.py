"""The commands that may be run and their options: a table, for `policy` to follow."""

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

Kind = Literal["revision", "path", "remote", "refspec", "url", "folder", "own"]
"""What an argument is that is no option: `own` is judged by the command's own rule."""

NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
REF = re.compile(r"[^\s~^:?*\[\\-][^\s~^:?*\[\\]{0,254}")
TEXT = re.compile(r"[^\s].{0,1000}")
LEASE = re.compile(r"[^\s~^?*\[\\:-][^\s~^?*\[\\:]{0,254}(?::[0-9a-f]{4,64})?")
MODE = re.compile(r"[+-]x")
UNTRACKED = re.compile(r"no|normal|all")
VERSION = re.compile(r"v?[12]")
DATES = re.compile(r"relative|local|iso|iso-strict|rfc|short|raw|human|unix|default")
FILTER = re.compile(r"[A-Za-z]{1,10}")


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """
    What one command may be given.

    Options are compared whole: git itself also takes any beginning of a long option that is
    clear (`--upload-p=…`), and several short ones in one word.
    """

    most: int
    """Arguments after the command."""
    flags: frozenset[str] = frozenset()
    values: Mapping[str, re.Pattern[str]] = {}
    """Options with a value: `--name=value`, `--name value`, or `-n value`."""
    optional: Mapping[str, re.Pattern[str]] = {}
    """Long options whose value may be missing and never stands apart."""
    numbers: frozenset[str] = frozenset()
    """Short options that a number follows in the same word; `-` alone is one."""
    message: frozenset[str] = frozenset()
    """Options with a text of any characters and lines."""
    kinds: tuple[Kind, ...] = ()
    """Of the arguments that are no options, in order; the last is that of all further ones."""
    operands: int = 50
    separator: bool = False
    """Whether `--` may stand before paths."""
    forced: tuple[str, ...] = ()
    """Options that are always given."""
    network: bool = False
    reads: bool = False
    """Whether it never changes anything."""


def _flags(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Neither programs named in a repository's configuration nor other repositories' take part.
_PLAIN_DIFF = ("--no-ext-diff", "--no-textconv")
_NOT_BELOW = "--ignore-submodules=all"

_SHOWN = "--stat --shortstat --numstat --summary --name-only --name-status --patch -p --no-patch -s"
_LOOKS = {"--format": TEXT, "--pretty": TEXT, "--date": DATES, "--diff-filter": FILTER}

RULES: Mapping[str, Rule] = {
    "clone": Rule(
        most=10,
        flags=_flags("--single-branch --no-single-branch --no-tags --no-checkout --quiet -q"),
        values={"--depth": NUMBER, "--branch": REF, "-b": REF},
        kinds=("url", "folder"),
        operands=2,
        forced=("--template=", "--no-recurse-submodules", "--no-local"),
        network=True,
    ),
    "pull": Rule(
        most=5,
        flags=_flags(
            "--ff-only --ff --no-ff --rebase --no-rebase --autostash --no-autostash --prune "
            "--tags --no-tags --quiet -q"
        ),
        kinds=("remote", "refspec"),
        forced=("--no-recurse-submodules", "--no-edit"),
        network=True,
    ),
    "fetch": Rule(
        most=10,
        flags=_flags("--all --prune -p --tags -t --no-tags --unshallow --dry-run --quiet -q"),
        values={"--depth": NUMBER, "--deepen": NUMBER},
        kinds=("remote", "refspec"),
        forced=("--no-recurse-submodules", "--no-auto-maintenance"),
        network=True,
    ),
    "status": Rule(
        most=5,
        flags=_flags("--short -s --branch -b -sb --long --ignored --show-stash -uno -uall"),
        optional={"--porcelain": VERSION, "--untracked-files": UNTRACKED},
        kinds=("path",),
        separator=True,
        forced=(_NOT_BELOW,),
        reads=True,
    ),
    "log": Rule(
        most=10,
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
    "diff": Rule(
        most=10,
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
    "show": Rule(
        most=5,
        flags=_flags(f"{_SHOWN} --oneline --quiet -q --abbrev-commit --first-parent"),
        values=_LOOKS,
        kinds=("revision",),
        separator=True,
        forced=_PLAIN_DIFF,
        reads=True,
    ),
    "branch": Rule(
        most=10,
        flags=_flags(
            "--list -l --all -a --remotes -r -v -vv --verbose --show-current --merged --no-merged "
            "--contains --no-contains -d --delete -D -m --move -M -f --force --unset-upstream -q "
            "--quiet --no-track"
        ),
        values={"--set-upstream-to": REF, "-u": REF, "--format": TEXT, "--sort": REF},
        kinds=("revision",),
    ),
    "checkout": Rule(
        most=5,
        flags=_flags(
            "--ours --theirs --detach --force -f --quiet -q --track -t --no-track --no-guess"
        ),
        values={"-b": REF, "-B": REF, "--orphan": REF},
        kinds=("revision",),
        separator=True,
        forced=("--no-recurse-submodules",),
    ),
    "add": Rule(
        most=50,
        flags=_flags(
            "-A --all -u --update -f --force -n --dry-run -v --verbose -N --intent-to-add"
        ),
        values={"--chmod": MODE},
        kinds=("path",),
        separator=True,
    ),
    "reset": Rule(
        most=5,
        flags=_flags("--soft --mixed --hard --keep --merge --quiet -q"),
        kinds=("revision",),
        separator=True,
        forced=("--no-recurse-submodules",),
    ),
    "commit": Rule(
        most=10,
        flags=_flags(
            "--amend --all -a --signoff -s --no-edit --allow-empty --dry-run --quiet -q --only "
            "--include --reset-author"
        ),
        message=frozenset({"-m", "--message", "-am"}),
        kinds=("path",),
        separator=True,
        forced=("--no-gpg-sign",),
    ),
    "push": Rule(
        most=10,
        flags=_flags(
            "--all --force -f --tags --follow-tags --set-upstream -u --delete -d --dry-run -n "
            "--prune --porcelain --quiet -q"
        ),
        optional={"--force-with-lease": LEASE},
        kinds=("remote", "refspec"),
        forced=("--recurse-submodules=no", "--no-signed"),
        network=True,
    ),
    "remote": Rule(most=10, flags=_flags("-v --verbose"), kinds=("own",)),
    "config": Rule(
        most=5,
        flags=_flags("--global --local --list -l --get --get-all --unset"),
        kinds=("own",),
    ),
    "init": Rule(
        most=5,
        flags=_flags("--bare --quiet -q"),
        values={"--initial-branch": REF, "-b": REF},
        kinds=("folder",),
        operands=1,
        forced=("--template=",),
    ),
}
"""The commands of the reference, each with the options there and a few of the same sort."""
