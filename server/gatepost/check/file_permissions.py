"""Find files that other users of the machine can change or read."""

import grp
import os
import pwd
import stat
import sys
from collections.abc import Iterable, Iterator
from glob import escape, glob
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import msgspec

from gatepost.config.references import UnresolvedReference, resolved_setting
from gatepost.config.settings import Config
from gatepost.permissions import GROUP_AND_OTHERS, is_foreign
from gatepost.storage.sqlite_file import SCHEME, path_of
from gatepost.workspace.ownership import adoption, is_foreign_folder
from gatepost.workspace.resolver import resolver_of
from gatepost_authz.config import TENANT_ID, Problem

FILE = "file:"
TOOLS = "config.E117", "config.W117"
CONFIGURATION = "config.E119", "config.W119"
MAX_FOLDERS = 5
"""Maximum number of folders in the report."""
LINKS = 40
"""Maximum number of links that are followed, as in the system itself."""


def problems(config: Config) -> Iterator[Problem]:
    """Yield the problems with modes and owners of files in production."""
    if config.development:
        return
    yield from _tools(config)
    yield from _secrets(config)
    yield from _database(config)
    yield from _workspaces(config)


def of_configuration(path: Path) -> Iterator[Problem]:
    """Yield the problem if other users can change the configuration file."""
    if (problem := _changed_by_others(path, "the configuration", ids=CONFIGURATION)) is not None:
        yield problem


def changeable(path: Path) -> tuple[Path, bool] | None:
    """
    Return what of *path* other users can change and whether all users can, or None.

    Checks the file and every folder and link on the way to it, because a user who can write to a
    folder can replace the file.
    """
    widest: tuple[Path, bool] | None = None
    for component in _parents(path):
        try:
            status = component.lstat()
        except OSError:
            continue  # a missing file is reported elsewhere
        by_all = _by_all(status)
        if by_all or (widest is None and _by_some(status)):
            widest = (component, by_all)
            if by_all:
                return widest
    return widest


def _parents(path: Path) -> Iterator[Path]:
    """Yield every folder and link that leads to *path*, and their targets."""
    todo = list(reversed(path.absolute().parts[1:]))
    at, links = Path(path.absolute().anchor), 0
    yield at
    while todo:
        name = todo.pop()
        if name == "..":
            at = at.parent
            continue
        next_path = at / name
        yield next_path
        if next_path.is_symlink() and links < LINKS:
            links += 1
            target = Path(os.readlink(next_path))
            if target.is_absolute():
                at = Path(target.anchor)
            todo += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        else:
            at = next_path


def _by_all(status: os.stat_result) -> bool:
    """Return whether every user can change it; in a sticky folder only the owner can."""
    if stat.S_ISLNK(status.st_mode):
        return False
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    return bool(status.st_mode & stat.S_IWOTH) and not sticky


def _by_some(status: os.stat_result) -> bool:
    """Return whether another user than this one and root can change it."""
    if status.st_uid not in (0, os.geteuid()):
        return True
    if stat.S_ISLNK(status.st_mode) or not status.st_mode & stat.S_IWGRP:
        return False
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    return not sticky and _has_others(status.st_gid, status.st_uid)


def _has_others(group: int, owner: int) -> bool:
    """Return whether the group has other members; most systems give each user an own group."""
    if group == 0:
        return False
    try:
        members, user = grp.getgrgid(group), pwd.getpwuid(owner)
    except KeyError:
        return True
    return members.gr_name != user.pw_name or bool(set(members.gr_mem) - {user.pw_name})


def _writers(by_all: bool) -> str:
    return f"{'every' if by_all else 'another'} user of this machine"


def _changed_by_others(
    path: Path, content: str, setting: str = "", *, ids: tuple[str, str]
) -> Problem | None:
    """Return the problem if other users can change *path*; *ids* are for all users and for some."""
    changed = changeable(path)
    if changed is None:
        return None
    component, by_all = changed
    return Problem(
        ids[0] if by_all else ids[1],
        f"{_writers(by_all)} can change {component}, and with it {content}",
        f"run chmod go-w {component}; the owner must be root or the server's user",
        "error" if by_all else "warning",
        setting,
    )


def _tools(config: Config) -> Iterator[Problem]:
    for at, source in enumerate(config.tools.load):
        setting = f"tools.load[{at}]"
        for file in _files(source):
            problem = _changed_by_others(file, f"the tools of {source}", setting, ids=TOOLS)
            if problem is not None:
                yield problem
                break


def _files(source: str) -> Iterator[Path]:
    """Yield the files of a source of tools with their bytecode, which Python prefers."""
    if source.endswith(".py"):
        sources: Iterable[str | None] = [source]
    else:
        # Parent packages run first.
        names = source.split(".")
        packages = (".".join(names[: n + 1]) for n in range(len(names)))
        sources = [getattr(sys.modules.get(name), "__file__", None) for name in packages]
    for file in filter(None, sources):
        yield Path(file)
        yield Path(cache_from_source(os.path.abspath(file)))


def _secrets(config: Config) -> Iterator[Problem]:
    files = [*_references(msgspec.to_builtins(config), "")]
    if config.listen.tls_key:
        files.append(("listen.tls_key", config.listen.tls_key))
    for setting, name in files:
        path = Path(name)
        try:
            mode = path.stat().st_mode
        except OSError:
            continue  # a missing file is reported elsewhere
        changed = changeable(path)
        if changed is not None and changed[1]:
            yield Problem(
                "config.E118",
                f"every user of this machine can change {changed[0]}, and with it the secret",
                f"run chmod go-w {changed[0]}",
                setting=setting,
            )
        if mode & stat.S_IROTH:
            yield Problem(
                "config.W118",
                f"every user of this machine can read {path}, which holds a secret",
                f"run chmod o-r {path}; in a container, mount it with mode 0400 or 0440",
                "warning",
                setting,
            )


def _database(config: Config) -> Iterator[Problem]:
    try:
        url = resolved_setting(config.storage.database)
    except UnresolvedReference:
        return  # reported already
    if not url.startswith(SCHEME):
        return
    path = path_of(url)
    related = [f"{path}-wal", f"{path}-shm", f"{path}-lock", *glob(f"{escape(path)}-audit-*")]
    for name in (path, *sorted(related)):
        try:
            status = os.stat(name)
        except OSError:
            continue
        if is_foreign(status):
            yield Problem(
                "config.E120",
                f"{name} belongs to another user (uid {status.st_uid}), who can read and change it",
                "run as its owner, or give the file to the server's user with chown",
                setting="storage.database",
            )
        elif status.st_mode & GROUP_AND_OTHERS:
            yield Problem(
                "config.W120",
                f"other users can access {name}; the server removes their permissions when it "
                "opens the file",
                f"run chmod 600 {name}; other users may already have read or changed it",
                "warning",
                "storage.database",
            )


def _workspaces(config: Config) -> Iterator[Problem]:
    root = Path(config.workspace.root)
    try:
        handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return  # created at the start, or reported already
    try:
        names = [name for name in sorted(os.listdir(handle)) if TENANT_ID.fullmatch(name)]
        foreign = [name for name in names if is_foreign_folder(handle, name, resolver_of())]
    except OSError:
        return
    finally:
        os.close(handle)
    for name in foreign[:MAX_FOLDERS]:
        yield Problem(
            "config.W121",
            f"{root / name} was not created by Gatepost, so tools cannot use it as the workspace "
            f"of tenant {name!r}",
            adoption(root, name),
            "warning",
            "workspace.root",
        )


def _references(node: Any, setting: str) -> Iterator[tuple[str, str]]:
    """Yield the files of all references with their settings, except the key ring."""
    if isinstance(node, dict):
        for key, inner in node.items():
            yield from _references(inner, f"{setting}.{key}" if setting else str(key))
    elif isinstance(node, list | tuple):
        for at, inner in enumerate(node):
            yield from _references(inner, f"{setting}[{at}]")
    elif isinstance(node, str) and node.startswith(FILE) and setting != "keys.ring":
        yield setting, node.removeprefix(FILE)
