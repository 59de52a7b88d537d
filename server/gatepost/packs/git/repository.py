"""Looks at a repository before git does: whoever wrote into it must not steer git."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gatepost.packs.git.configuration import (
    MOST_BYTES,
    Configuration,
    Unusable,
    configuration_of,
)
from gatepost.tools.api import ToolFailure
from gatepost.workspace.clearing import clear
from gatepost.workspace.resolver import DIRECTORY

GIT = ".git"
ELSEWHERE = frozenset(
    {"commondir", "gitdir", "config.worktree", "worktrees", "modules", "remotes", "branches"}
)
"""By these a repository uses another one, or addresses that its configuration does not hold."""
BORROWED = frozenset({"alternates", "http-alternates"})
"""Objects of other repositories, anywhere on this machine (`objects/info`)."""
MOST_SHOWN = 10


def configuration_at(folder: Path) -> Configuration | None:
    """
    The configuration of the repository in *folder*, with all of its folder looked at; None where
    there is none. ToolFailure when it is not one that git may be let into.
    """
    git = folder / GIT
    try:
        status = git.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        raise _unusable(
            "`.git` is not a folder: linked worktrees and submodules lead elsewhere and are not "
            "supported"
        )
    if problem := next(_problems(git), None):
        raise _unusable(problem)
    try:
        return configuration_of(_text(git / "config"))
    except Unusable as error:
        raise _unusable(f"of its configuration (.git/config), {error}") from None


def require_plain(root: Path, parts: tuple[str, ...]) -> None:
    """ToolFailure when a link stands on the way from the workspace to a folder."""
    place = root
    for name in parts:
        place /= name
        if place.is_symlink():
            shown = f"/workspace/{place.relative_to(root)}"
            raise ToolFailure("validation", f"{shown} is a link and not a folder.", field="args")


def _text(path: Path) -> str:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise Unusable("it is not a file")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise Unusable(f"there are more than {MOST_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Unusable("it is not UTF-8") from None


def _problems(git: Path) -> Iterator[str]:
    if not (git / "config").exists():
        yield "its configuration (.git/config) is missing"
    todo = [git]
    while todo:
        folder = todo.pop()
        for entry in list(os.scandir(folder)):
            if entry.is_symlink():
                yield f"{entry.name} in its `.git` is a link"
            elif folder == git and entry.name.lower() in ELSEWHERE:
                yield f"its `.git` holds {entry.name}, by which it would use what is elsewhere"
            elif folder == git / "objects" / "info" and entry.name.lower() in BORROWED:
                yield f"it borrows objects from elsewhere ({entry.name})"
            elif entry.is_dir(follow_symlinks=False):
                todo.append(Path(entry.path))


def _unusable(reason: str) -> ToolFailure:
    return ToolFailure(
        "denied",
        f"git is not let into this repository: {reason}. Delete it as a whole and clone it anew, "
        "or put right what is said here.",
    )


def missing(root: Path, folder: tuple[str, ...]) -> ToolFailure:
    """What a model hears where there is no repository."""
    shown = "/".join(("/workspace", *folder))
    found = []
    if root.is_dir():
        found = sorted(
            entry.name
            for entry in list(os.scandir(root))
            if entry.is_dir(follow_symlinks=False) and os.path.isdir(f"{entry.path}/{GIT}")
        )[:MOST_SHOWN]
    hint = (
        f'Begin with the folder of one, as in ["-C", "{found[0]}", "status"]: {", ".join(found)}.'
        if found
        else 'Make one with ["init"] or clone one; ["-C", "folder", "status"] works in a folder.'
    )
    return ToolFailure("not_found", f"There is no git repository in {shown}. {hint}", field="args")


def require_empty(folder: Path) -> None:
    """
    ToolFailure when anything is in the folder of a new bare repository.

    Git takes up a `config` that lies there, and what that includes: any tool may have written it.
    """
    if folder.is_dir() and os.listdir(folder):
        message = "A bare repository is made in a new or empty folder, and this one holds files."
        raise ToolFailure("validation", message, field="args")


def emptied(folder: Path, keep: bool) -> None:
    """Remove what a clone made, however deep it is; with *keep* the folder itself stays."""
    try:
        handle = os.open(folder, DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return  # a link is no folder either
    try:
        for name in os.listdir(handle):
            clear(handle, name)
    finally:
        os.close(handle)
    if not keep:
        folder.rmdir()


def unlocked(git: Path, since: float) -> None:
    """Remove the locks of a git that was killed: the next one would wait for it in vain."""
    for folder in (git, git / "refs", git / "refs" / "heads"):
        for lock in folder.glob("*.lock"):
            if lock.lstat().st_mtime >= since:
                lock.unlink(missing_ok=True)
