"""Work on one directory of a tenant, always relative to an open handle; blocks."""

import errno
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gatepost.execution.failure import ToolFailure
from gatepost.tools.context.interfaces import (
    FileHead,
    FolderListing,
    Item,
    ItemType,
    WorkspaceUsage,
)
from gatepost.workspace.path import PARTIAL, listed_paths, partial_name
from gatepost.workspace.removal import clear
from gatepost.workspace.resolver import DIRECTORY, Resolver, place_of
from gatepost.workspace.usage import UsageChange, WorkAbandoned

Parts = tuple[str, ...]

# Without O_NONBLOCK, opening a pipe would block the thread until data is written.
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAKING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

CHUNK = 1 << 20
"""The number of bytes between two checks whether the caller still waits."""

BLOCKED_ERRORS = frozenset(
    {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ENXIO}
)
"""The errors for a path through or to a link, a file as a folder, or a socket."""

REFUSED = {
    errno.ENOSPC: "there is no room left for files. Delete something, or ask the operator.",
    errno.EDQUOT: "there is no room left for files. Delete something, or ask the operator.",
    errno.EACCES: "the server itself may not use it. The operator can change that.",
    errno.EPERM: "the server itself may not use it. The operator can change that.",
    errno.EROFS: "the server may only read here.",
}

KINDS: dict[int, ItemType] = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}


class Tree:
    """
    One directory below the root, created at the first write.

    *base* is its path from *root*, and *folder* the path from there to the part that is used.
    *shown_path* is the prefix of its paths in tools.
    """

    def __init__(
        self, root: int, base: Parts, resolver: Resolver, shown_path: str, *, folder: Parts = ()
    ) -> None:
        self._root = root
        self._base = (*base, *folder)
        self._uncounted = len(base)
        self._resolver = resolver
        self.shown_path = shown_path

    def read(self, parts: Parts, limit: int) -> FileHead:
        """Return the first *limit* bytes of a plain file, and its size."""
        with self._explained(parts), self._file(parts) as file:
            data = bytearray()
            while len(data) < limit and (chunk := os.read(file, min(limit - len(data), CHUNK))):
                data += chunk
            status = os.fstat(file)
            return FileHead(bytes(data), max(status.st_size, len(data)), status.st_mtime)

    def write(
        self,
        parts: Parts,
        data: bytes,
        delta: UsageChange,
        stop: threading.Event,
        *,
        mkdirs: bool,
        append: bool = False,
    ) -> int:
        """Replace a file, or append to it with *append*; return its new size."""
        with self._explained(parts):
            missing = self._missing(parts[:-1])
            if missing and not mkdirs:
                message = f"The folder {self._show(parts[:-1])} does not exist."
                raise ToolFailure("not_found", f"{message} Pass mkdirs=true to make it.")
            old = None if missing else self._status(parts)
            if old is not None and stat.S_ISDIR(old.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            before = old.st_size if old is not None and stat.S_ISREG(old.st_mode) else 0
            growth = len(data) if append else len(data) - before
            delta.require(bytes=growth, files=missing + (old is None))
            with self._creating_folder(parts[:-1], delta) as folder:
                source = parts if append and old is not None else None
                size = self._replace(folder, parts[-1], data, stop, source, _mode(old))
                delta.add(bytes=size - before, files=int(old is None))
                os.fsync(folder)
            return size

    def edit(
        self,
        parts: Parts,
        change: Callable[[bytes | None], bytes],
        delta: UsageChange,
        stop: threading.Event,
        *,
        limit: int,
    ) -> tuple[int, bool]:
        """Replace a file with the result of a function; return its size and whether it is new."""
        old: bytes | None = None
        try:
            head = self.read(parts, limit)
            if head.size > limit:
                raise self.too_large(parts, limit)
            old = head.data
        except _Missing:
            pass
        size = self.write(parts, change(old), delta, stop, mkdirs=True)
        return size, old is None

    def too_large(self, parts: Parts, limit: int) -> ToolFailure:
        """Return the message for a file that has more than *limit* bytes."""
        message = f"{self._show(parts)} is larger than the {limit} bytes allowed."
        return ToolFailure("validation", message, field="path")

    def make(self, parts: Parts, delta: UsageChange) -> None:
        """Create a folder and its parents."""
        with self._explained(parts):
            delta.require(bytes=0, files=self._missing(parts))
            with self._creating_folder(parts, delta):
                return

    def remove(self, parts: Parts, delta: UsageChange, *, recursive: bool) -> bool:
        """Remove a file or folder; a folder disappears as a whole and is then cleared."""
        try:
            with self._explained(parts), self._folder(parts[:-1]) as folder:
                status = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode) and not recursive:
                    message = (
                        f"{self._show(parts)} is a folder. Pass recursive=true to delete it with "
                        "everything in it."
                    )
                    raise ToolFailure("validation", message, field="recursive")
                hidden = partial_name()
                os.rename(parts[-1], hidden, src_dir_fd=folder, dst_dir_fd=folder)
                removed = clear(folder, hidden)
                delta.add(bytes=-removed.bytes, files=-removed.files)
                os.fsync(folder)
                return True
        except _Missing:
            return False

    def exists(self, parts: Parts) -> bool:
        """Return whether the path exists."""
        with self._explained(parts):
            return self._status(parts) is not None

    def absolute_path(self) -> str:
        """Return the absolute path of the open folder, as the system reports it."""
        with self._explained(()), self._folder(()) as folder:
            return place_of(folder)

    def status(self, parts: Parts) -> Item:
        """Return the status of the path."""
        with self._explained(parts):
            status = self._status(parts)
            if status is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return _item("/".join(parts), status)

    def entries(
        self,
        parts: Parts,
        limit: int,
        *,
        recursive: bool,
        files_only: bool = False,
        hidden: bool = True,
    ) -> FolderListing:
        """
        Return at most *limit* entries below a folder, breadth first.

        Temporary files and entries that no path could name are left out. Without *hidden*, names
        that begin with a dot are left out too. The same tree gives the same list.
        """
        items: list[Item] = []
        todo = deque([parts])
        while todo and len(items) <= limit:
            folder = todo.popleft()
            try:
                with self._explained(folder):
                    # One more than wanted shows that the list is cut.
                    max_items = None if files_only else limit + 1 - len(items)
                    folder_items = self._entries(folder, max_items, hidden=hidden)
            except ToolFailure:
                if folder == parts and parts:
                    raise
                continue  # nothing is written yet, or it was removed meanwhile
            items += [item for item in folder_items if item.type == "file" or not files_only]
            if recursive:
                todo += [
                    tuple(item.path.split("/")) for item in folder_items if item.type == "folder"
                ]
        is_cut = len(items) > limit
        return FolderListing(sorted(items[:limit], key=lambda item: item.path), is_cut)

    def count(self) -> WorkspaceUsage:
        """Count all files, including links and odd names; remove leftovers of a crash."""
        size = files = 0
        todo: list[Parts] = [()]
        while todo:
            parts = todo.pop()
            try:
                with self._folder(parts) as folder:
                    for name in os.listdir(folder):
                        if PARTIAL.fullmatch(name):
                            clear(folder, name)
                            continue
                        status = _status(name, folder)
                        if status is None:
                            continue
                        files += 1
                        size += status.st_size if stat.S_ISREG(status.st_mode) else 0
                        todo += [(*parts, name)] if stat.S_ISDIR(status.st_mode) else []
            except OSError as error:
                if error.errno not in (*BLOCKED_ERRORS, errno.ENOENT):
                    raise
        return WorkspaceUsage(size, files)

    def _entries(self, parts: Parts, max_items: int | None, *, hidden: bool) -> list[Item]:
        """Return the entries of a folder in order, but no more than *max_items*."""
        items: list[Item] = []
        with self._folder(parts) as folder:
            names = sorted(os.listdir(folder))
            for name, path in listed_paths(parts, names, hidden=hidden):
                if len(items) == max_items:
                    break
                if (status := _status(name, folder)) is not None:
                    items.append(_item(path, status))
        return items

    @contextmanager
    def _folder(self, parts: Sequence[str]) -> Iterator[int]:
        handle = self._resolver.open(self._root, (*self._base, *parts), DIRECTORY)
        try:
            yield handle
        finally:
            os.close(handle)

    @contextmanager
    def _file(self, parts: Parts) -> Iterator[int]:
        with self._folder(parts[:-1]) as folder:
            handle = self._resolver.open(folder, parts[-1:], READ_FLAGS)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise ToolFailure("validation", f"{self._show(parts)} is not a file.", field="path")
            if status.st_nlink > 1:
                # The other name of a hard link may be another tenant's file. No tool creates hard
                # links between shown files, so there is no legitimate use here.
                message = f"{self._show(parts)} has several names (hard links) and is not read."
                raise ToolFailure("validation", message, field="path")
            yield handle
        finally:
            os.close(handle)

    @contextmanager
    def _creating_folder(self, parts: Parts, delta: UsageChange) -> Iterator[int]:
        """Return the folder; create it if it is missing, each step relative to the previous one."""
        handle = os.dup(self._root)
        try:
            for at, name in enumerate((*self._base, *parts)):
                try:
                    os.mkdir(name, 0o700, dir_fd=handle)
                except FileExistsError:
                    pass
                else:
                    delta.add(bytes=0, files=int(at >= self._uncounted))
                    os.fsync(handle)
                subfolder = self._resolver.open(handle, (name,), DIRECTORY)
                os.close(handle)
                handle = subfolder
            yield handle
        finally:
            os.close(handle)

    def _missing(self, parts: Parts) -> int:
        """Return the number of missing folders on the way to the directory."""
        inner = len(self._base) - self._uncounted
        for depth in range(len(parts), -1, -1):
            try:
                with self._folder(parts[:depth]):
                    return len(parts) - depth
            except FileNotFoundError:
                continue
        return len(parts) + inner

    def _status(self, parts: Parts) -> os.stat_result | None:
        try:
            with self._folder(parts[:-1]) as folder:
                return _status(parts[-1], folder)
        except FileNotFoundError:
            return None

    def _replace(
        self,
        folder: int,
        name: str,
        data: bytes,
        stop: threading.Event,
        source: Parts | None,
        mode: int,
    ) -> int:
        temporary = partial_name()
        is_replaced = False
        try:
            handle = os.open(temporary, MAKING, mode, dir_fd=folder)
            try:
                if source is not None:
                    with self._file(source) as old:
                        while chunk := os.read(old, CHUNK):
                            _write(handle, chunk, stop)
                _write(handle, data, stop)
                size = os.fstat(handle).st_size
                os.fsync(handle)
            finally:
                os.close(handle)
            if stop.is_set():
                raise WorkAbandoned
            # Renaming replaces a link instead of writing through it.
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            is_replaced = True
            return size
        finally:
            if not is_replaced:
                clear(folder, temporary)

    def _show(self, parts: Parts) -> str:
        return self.shown_path + "/".join(parts)

    @contextmanager
    def _explained(self, parts: Parts) -> Iterator[None]:
        """Translate errors into messages about the workspace, without the machine's own paths."""
        try:
            yield
        except FileNotFoundError:
            raise _Missing(
                "not_found", f"{self._show(parts)} does not exist.", field="path"
            ) from None
        except OSError as error:
            if error.errno in BLOCKED_ERRORS:
                message = f"{self._show(parts)} is not a plain file in plain folders."
                raise ToolFailure("validation", message, field="path") from None
            if error.errno in REFUSED:
                raise ToolFailure(
                    "denied", f"{self._show(parts)}: {REFUSED[error.errno]}"
                ) from None
            if error.errno == errno.EAGAIN:
                message = f"{self._show(parts)} is being changed at the moment. Try again."
                raise ToolFailure("upstream_unavailable", message, retry_after=1.0) from None
            raise


class _Missing(ToolFailure):
    """Raised when the path does not exist."""


def _status(name: str, folder: int) -> os.stat_result | None:
    """Return the status of the path, or None if it has disappeared."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _write(handle: int, data: bytes, stop: threading.Event) -> None:
    view = memoryview(data)
    while view:
        if stop.is_set():
            raise WorkAbandoned
        view = view[os.write(handle, view[:CHUNK]) :]


def _mode(old: os.stat_result | None) -> int:
    """Return the mode for a rewritten file; executable files stay executable."""
    return 0o700 if old is not None and stat.S_ISREG(old.st_mode) and old.st_mode & 0o100 else 0o600


def _item(path: str, status: os.stat_result) -> Item:
    kind = KINDS.get(stat.S_IFMT(status.st_mode), "other")
    size = status.st_size if kind == "file" else 0
    stamp = (status.st_ino, size, status.st_mtime_ns, status.st_ctime_ns)
    return Item(path, kind, size, status.st_mtime, stamp)
