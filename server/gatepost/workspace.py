"""A tenant's own directory: files by relative path, and no way out of it."""

import asyncio
import errno
import os
import secrets
import stat
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gatepost.tools.api import ToolFailure
from gatepost.tools.surroundings import File

SHOWN_ROOT = "/workspace/"
"""How tools show the directory; a path may be written with it or relative to it."""

NAME_BYTES = 255
PATH_BYTES = 4096
DEPTH = 32

CONTROLS = frozenset({"Cc", "Zl", "Zp"})
"""Unicode categories: controls, and what begins a new line."""
BIDI = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
"""Marks that reorder what follows: who approves `txt.exe` would be shown another name."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Workspaces:
    """
    All tenants' directories, below one root that is held open.

    Every path is walked from that handle, name by name, without following links: neither a link
    that a tool wrote nor a directory swapped while we walk can lead elsewhere. OSError when the
    root cannot be made or opened.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def of(self, tenant: str) -> "TenantWorkspace":
        """The directory of one tenant; *tenant* is a checked tenant id, so it is a plain name."""
        return TenantWorkspace(self._root, tenant)

    def close(self) -> None:
        """Let go of the root."""
        os.close(self._root)


# Made for every call, so without a constructor in Python.
class TenantWorkspace(msgspec.Struct, frozen=True, gc=False):
    """One tenant's directory, made when something is first written."""

    _root: int
    _tenant: str

    async def write(self, path: str, data: bytes) -> str:
        """
        Write a whole file, making its folders; nobody ever sees half of it.

        Answers the path as tools show it. ToolFailure when the path is not one inside the
        workspace, or something stands in its way.
        """
        parts = parts_of(path)
        await asyncio.to_thread(self._write, parts, data)
        return SHOWN_ROOT + "/".join(parts)

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a file of at most *limit* bytes; ToolFailure when it is missing or larger."""
        return await asyncio.to_thread(self._read, parts_of(path), limit)

    async def files(self, *, limit: int) -> list[File]:
        """
        The plain files there are, sorted by path; at most *limit* of them.

        Links are not followed, and what is being written and what no tool could name are left out.
        """
        return await asyncio.to_thread(self._files, limit)

    def _files(self, limit: int) -> list[File]:
        found: list[File] = []
        todo: list[tuple[str, ...]] = [()]
        while todo and len(found) < limit:
            parts = todo.pop()
            try:
                with self._folder(parts, make=False) as folder, os.scandir(folder) as entries:
                    below = sorted((one for one in entries if _is_listed(one, parts)), key=_name)
                    found += [_file(one, parts) for one in below if one.is_file(**_HERE)]
                    # The first folder comes off the end first.
                    folders = [one.name for one in reversed(below) if one.is_dir(**_HERE)]
                    todo += [(*parts, name) for name in folders]
            except FileNotFoundError:
                continue  # nothing written yet, or gone while we walk
        return sorted(found, key=lambda file: file.path)[:limit]

    def _write(self, parts: tuple[str, ...], data: bytes) -> None:
        with _explained(parts), self._folder(parts[:-1], make=True) as folder:
            name = parts[-1]
            if _is_directory(name, folder):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            temporary = f".{secrets.token_hex(8)}.partial"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                # Renaming replaces a link instead of writing through it.
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                _discard(temporary, folder)
                raise
            os.fsync(folder)

    def _read(self, parts: tuple[str, ...], limit: int) -> bytes:
        with _explained(parts), self._folder(parts[:-1], make=False) as folder:
            # Without O_NONBLOCK, opening a pipe would hold the thread until somebody writes.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(parts[-1], flags, dir_fd=folder), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ToolFailure("validation", f"{_shown(parts)} is not a file.", field="path")
                data = file.read(limit + 1)
        if len(data) > limit:
            message = f"{_shown(parts)} is larger than the {limit} bytes allowed."
            raise ToolFailure("validation", message, field="path")
        return data

    @contextmanager
    def _folder(self, parts: tuple[str, ...], *, make: bool) -> Iterator[int]:
        """Walk to a folder; each step is opened relative to the one before."""
        handle = os.dup(self._root)
        try:
            for name in (self._tenant, *parts):
                if make:
                    _make_folder(name, handle)
                below = os.open(name, _DIRECTORY, dir_fd=handle)
                os.close(handle)
                handle = below
            yield handle
        finally:
            os.close(handle)


def parts_of(path: str) -> tuple[str, ...]:
    """
    The names in a tool's path; ToolFailure when it is not one inside the workspace.

    Absolute paths, `..`, empty names, control and reordering characters, what UTF-8 cannot encode
    and what is too long are refused rather than repaired: a repaired path is not the one that was
    approved.
    """
    relative = path.removeprefix(SHOWN_ROOT)
    problem = _problem(relative)
    if problem:
        raise ToolFailure("validation", f"The path {problem}.", field="path")
    return tuple(relative.split("/"))


def _problem(path: str) -> str | None:
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "is not valid text"
    names = path.split("/")
    if not path:
        return "is empty"
    if path.startswith("/"):
        return f"must be relative, or start with {SHOWN_ROOT}"
    if any(name in ("", ".", "..") for name in names):
        return "must not hold `.`, `..` or empty names"
    if any(
        unicodedata.category(character) in CONTROLS or unicodedata.bidirectional(character) in BIDI
        for character in path
    ):
        return "must not hold control characters"
    if size > PATH_BYTES or len(names) > DEPTH or any(len(n.encode()) > NAME_BYTES for n in names):
        return "is too long"
    return None


_HERE = {"follow_symlinks": False}


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _is_listed(entry: os.DirEntry[str], parts: tuple[str, ...]) -> bool:
    partial = entry.name.startswith(".") and entry.name.endswith(".partial")
    return not partial and _problem("/".join((*parts, entry.name))) is None


def _file(entry: os.DirEntry[str], parts: tuple[str, ...]) -> File:
    status = entry.stat(**_HERE)
    return File("/".join((*parts, entry.name)), status.st_size, status.st_mtime)


def _make_folder(name: str, parent: int) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return


def _is_directory(name: str, folder: int) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _discard(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return


def _shown(parts: tuple[str, ...]) -> str:
    return SHOWN_ROOT + "/".join(parts)


@contextmanager
def _explained(parts: tuple[str, ...]) -> Iterator[None]:
    """Say what went wrong in terms of the workspace; the machine's own paths stay inside."""
    try:
        yield
    except FileNotFoundError:
        raise ToolFailure("not_found", f"{_shown(parts)} does not exist.", field="path") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
            message = f"{_shown(parts)} is not a plain file in plain folders."
            raise ToolFailure("validation", message, field="path") from None
        raise
