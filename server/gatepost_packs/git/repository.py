"""Inspect a repository before git does, because its contents must not control git."""

import contextlib
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gatepost import ToolFailure
from gatepost.workspace import clear
from gatepost_packs.git.repository_configuration import (
    MAX_BYTES,
    Configuration,
    UnusableConfiguration,
    configuration_of,
)

GIT = ".git"
OUTSIDE_NAMES = frozenset(
    {"commondir", "gitdir", "config.worktree", "worktrees", "modules", "remotes", "branches"}
)
"""Names by which a repository uses another one, or addresses outside its configuration."""
ALTERNATES = frozenset({"alternates", "http-alternates"})
"""Files that name objects of other repositories, anywhere on this machine (`objects/info`)."""
MAX_SHOWN = 10


def configuration_at(folder: Path) -> Configuration | None:
    """
    Return the configuration of the repository in *folder*, after inspecting its whole `.git`.

    None if there is no repository; ToolFailure if git must not run in it.
    """
    git = folder / GIT
    try:
        status = git.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        raise _unusable("`.git` is not a folder; linked worktrees and submodules are not supported")
    if problem := next(_problems(git), None):
        raise _unusable(problem)
    try:
        return configuration_of(_text(git / "config"))
    except UnusableConfiguration as error:
        raise _unusable(f"in its configuration (.git/config), {error}") from None


def require_plain(root: Path, parts: tuple[str, ...]) -> None:
    """Raise ToolFailure if a link is on the path from the workspace to a folder."""
    path = root
    for name in parts:
        path /= name
        if path.is_symlink():
            shown_path = f"/workspace/{path.relative_to(root)}"
            raise ToolFailure("validation", f"{shown_path} is a link, not a folder.", field="args")


def _text(path: Path) -> str:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise UnusableConfiguration("it is not a file")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UnusableConfiguration(f"it has more than {MAX_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UnusableConfiguration("it is not UTF-8") from None


def _problems(git: Path) -> Iterator[str]:
    if not (git / "config").exists():
        yield "its configuration (.git/config) is missing"
    todo = [git]
    while todo:
        folder = todo.pop()
        for entry in list(os.scandir(folder)):
            if entry.is_symlink():
                yield f"{entry.name} in its `.git` is a link"
            elif folder == git and entry.name.lower() in OUTSIDE_NAMES:
                yield f"its `.git` holds {entry.name}, which refers to another place"
            elif folder == git / "objects" / "info" and entry.name.lower() in ALTERNATES:
                yield f"it borrows objects from elsewhere ({entry.name})"
            elif entry.is_dir(follow_symlinks=False):
                todo.append(Path(entry.path))


def _unusable(reason: str) -> ToolFailure:
    return ToolFailure(
        "denied",
        f"git does not run in this repository: {reason}. Delete the repository and clone it "
        "again, or correct the problem.",
    )


def missing(root: Path, folder: tuple[str, ...]) -> ToolFailure:
    """Return the failure for a missing repository."""
    shown_folder = "/".join(("/workspace", *folder))
    repositories = []
    if root.is_dir():
        repositories = sorted(
            entry.name
            for entry in list(os.scandir(root))
            if entry.is_dir(follow_symlinks=False) and os.path.isdir(f"{entry.path}/{GIT}")
        )[:MAX_SHOWN]
    hint = (
        f"To work in one of {', '.join(repositories)}, begin with its folder: "
        f'["-C", "{repositories[0]}", "status"].'
        if repositories
        else 'Create one with ["init"] or clone one; ["-C", "folder", "status"] works in a folder.'
    )
    return ToolFailure(
        "not_found", f"There is no git repository in {shown_folder}. {hint}", field="args"
    )


def require_empty(folder: Path) -> None:
    """
    Raise ToolFailure if the folder of a new bare repository is not empty.

    Git would use a `config` in it and all that the file includes, and any tool may have written
    that.
    """
    if folder.is_dir() and os.listdir(folder):
        message = "A bare repository needs a new or empty folder, and this one holds files."
        raise ToolFailure("validation", message, field="args")


def emptied(folder: Path, keep: bool) -> None:
    """Remove the contents of a clone, however deep; with *keep* the folder itself stays."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return  # a link is not a folder either
    try:
        for name in os.listdir(handle):
            clear(handle, name)
    finally:
        os.close(handle)
    if not keep:
        folder.rmdir()


def unlocked(git: Path, since: float, until: float = math.inf) -> None:
    """
    Remove the locks of a killed git: the next one would wait for them in vain.

    No branch name ends in `.lock`.
    """
    for lock in (*git.glob("*.lock"), *(git / "refs").rglob("*.lock")):
        with contextlib.suppress(FileNotFoundError):
            if since <= lock.lstat().st_mtime <= until:
                lock.unlink()
