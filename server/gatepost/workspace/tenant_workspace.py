"""The workspaces of tenants as tools use them."""

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from gatepost.execution.failure import ToolFailure
from gatepost.tools.context.interfaces import (
    EditedFile,
    FileHead,
    FolderListing,
    Item,
    WorkspaceFile,
    WorkspaceUsage,
)
from gatepost.workspace.directory_state import AREA_NAME, DirectoryState
from gatepost.workspace.ownership import NO_ROOT, PRIVATE
from gatepost.workspace.path import SHOWN_ROOT, folder_of, parts_of, written_of
from gatepost.workspace.resolver import Resolver, resolver_of
from gatepost.workspace.tree import Parts, Tree
from gatepost.workspace.usage import DEFAULT_QUOTA, Quota, UsageChange, WorkAbandoned

T = TypeVar("T")

THREADS = 16


class Workspaces:
    """
    The directories of all tenants below one open root.

    Every path is resolved from that handle without following links, so neither a link that a tool
    wrote nor a directory that was swapped meanwhile can lead elsewhere. Raises OSError if the root
    cannot be created or opened. Unless it is *required*, tools that store files fail instead.
    """

    def __init__(
        self,
        root: Path,
        *,
        quota: Quota = DEFAULT_QUOTA,
        resolver: Resolver | None = None,
        required: bool = True,
    ) -> None:
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            if required:
                raise
            self._root = NO_ROOT
        self._quota = quota
        self._resolver = resolver or resolver_of()
        self._threads = ThreadPoolExecutor(THREADS, "workspace")
        self._running: set[threading.Event] = set()
        self._tenants: dict[str, TenantWorkspace] = {}

    def for_tenant(self, tenant: str) -> "TenantWorkspace":
        """Return the workspace of one tenant; *tenant* is a validated tenant id."""
        workspace = self._tenants.get(tenant)
        if workspace is None:
            home = DirectoryState(
                self._root, tenant, self._quota, self._resolver, self._threads, self._running
            )
            workspace = self._tenants[tenant] = TenantWorkspace(self._root, tenant, home=home)
        return workspace

    def close(self) -> None:
        """Cancel running work, wait for it, and close the root."""
        for stop in tuple(self._running):
            stop.set()
        # Its threads use the root's descriptor, which may be reused once it is closed.
        self._threads.shutdown(cancel_futures=True)
        if self._root != NO_ROOT:
            os.close(self._root)


class TenantWorkspace:
    """
    One tenant's directory, created at the first write; see the Workspace protocol.

    The paths of an area do not begin with `/workspace/`.
    """

    __slots__ = ("__weakref__", "_home", "_shown_root", "_tree")

    def __init__(
        self,
        root: int,
        tenant: str,
        *,
        home: DirectoryState | None = None,
        tree: Tree | None = None,
    ) -> None:
        self._home = home or DirectoryState(root, tenant)
        self._tree = tree or Tree(root, (tenant,), self._home.resolver, SHOWN_ROOT)
        self._shown_root = self._tree.shown_path or SHOWN_ROOT

    async def write(self, path: str, data: bytes, *, mkdirs: bool = True) -> str:
        """Write a whole file atomically, and return the path as tools show it."""
        parts, tree = self._written(path), self._tree
        await self._home.change(
            lambda delta, stop: tree.write(parts, data, delta, stop, mkdirs=mkdirs)
        )
        return tree.shown_path + "/".join(parts)

    async def write_new(self, path: str, data: bytes) -> bool:
        """Write a whole file unless it exists; of concurrent attempts, one succeeds."""
        parts, tree = self._written(path), self._tree

        def write(delta: UsageChange, stop: threading.Event) -> bool:
            # Every process that writes waits for the same lock.
            if tree.exists(parts):
                return False
            tree.write(parts, data, delta, stop, mkdirs=True)
            return True

        return await self._home.change(write)

    async def append(self, path: str, data: bytes, *, mkdirs: bool = True) -> int:
        """Append to a file by replacing it; return its new size."""
        parts, tree = self._written(path), self._tree
        return await self._home.change(
            lambda delta, stop: tree.write(parts, data, delta, stop, mkdirs=mkdirs, append=True)
        )

    async def edit(
        self, path: str, change: Callable[[bytes | None], bytes], *, limit: int
    ) -> EditedFile:
        """Replace a file with the result of *change*, excluding other changes."""
        parts, tree = self._written(path), self._tree
        size, is_new = await self._home.change(
            lambda delta, stop: tree.edit(parts, change, delta, stop, limit=limit)
        )
        return EditedFile(tree.shown_path + "/".join(parts), size, is_new)

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a file of at most *limit* bytes; ToolFailure when it is missing or larger."""
        parts = self._parts(path)
        head = await self._home.run(lambda _: self._tree.read(parts, limit))
        if head.size > limit:
            raise self._tree.too_large(parts, limit)
        return head.data

    async def head(self, path: str, *, limit: int) -> FileHead:
        """Read the first *limit* bytes of a file; ToolFailure when it is missing."""
        parts = self._parts(path)
        return await self._home.run(lambda _: self._tree.read(parts, limit))

    async def heads(self, paths: Sequence[str], *, limit: int) -> list[FileHead | None]:
        """Return the first *limit* bytes of each readable file."""

        def read(stop: threading.Event) -> list[FileHead | None]:
            heads: list[FileHead | None] = []
            for path in paths:
                head = None
                with contextlib.suppress(ToolFailure):
                    head = self._tree.read(self._parts(path), limit)
                heads.append(head)
                if stop.is_set():
                    raise WorkAbandoned
            return heads

        return await self._home.run(read)

    async def files(self, *, limit: int) -> list[WorkspaceFile]:
        """
        Return the plain files, sorted by path, at most *limit*.

        Links are not followed. Temporary files and files that no tool could name are left out.
        """
        listing = await self._home.run(
            lambda _: self._tree.entries((), limit, recursive=True, files_only=True)
        )
        return [WorkspaceFile(item.path, item.size, item.modified) for item in listing.items]

    async def entries(
        self, path: str = ".", *, recursive: bool = False, hidden: bool = True, limit: int
    ) -> FolderListing:
        """Return the entries of a folder, sorted by path; raise ToolFailure if it is missing."""
        parts = folder_of(path, self._shown_root)
        return await self._home.run(
            lambda _: self._tree.entries(parts, limit, recursive=recursive, hidden=hidden)
        )

    async def stat(self, path: str) -> Item:
        """Return the status of a path; raise ToolFailure if it is missing."""
        parts = self._parts(path)
        return await self._home.run(lambda _: self._tree.status(parts))

    async def make_folder(self, path: str) -> str:
        """Create a folder and its parents; return its path as tools show it."""
        parts = self._written(path.removesuffix("/"))
        await self._home.change(lambda delta, _: self._tree.make(parts, delta))
        return self._tree.shown_path + "/".join(parts)

    async def delete(self, path: str, *, recursive: bool = False) -> bool:
        """Remove a file, or a folder with *recursive*; return whether it existed."""
        parts = folder_of(path, self._shown_root)
        if not parts:
            message = "The workspace itself cannot be deleted; name what is in it."
            raise ToolFailure("validation", message, field="path")
        return await self._home.change(
            lambda delta, _: self._tree.remove(parts, delta, recursive=recursive)
        )

    async def usage(self) -> WorkspaceUsage:
        """Count the storage of the tenant in all its directories."""
        return await self._home.run(self._home.usage_file.counted)

    async def room(self) -> WorkspaceUsage:
        """Return the remaining quota of the tenant, negative if it is exceeded."""
        used, quota = await self.usage(), self._home.usage_file.quota
        return WorkspaceUsage(quota.bytes - used.bytes, quota.files - used.files)

    async def real_path(self) -> Path:
        """Return the real path of the directory for a sandboxed program; create it if missing."""
        await self._home.change(lambda delta, _: self._tree.make((), delta))
        return Path(await self._home.run(lambda _: self._tree.absolute_path()))

    def area(self, name: str) -> "TenantWorkspace":
        """Return another directory of the tenant; raise ValueError unless *name* is lower-case."""
        if not AREA_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an area: a to z, at most 32")
        return self._subtree((PRIVATE, self._home.tenant, name), "", ())

    def folder(self, path: str, shown_path: str) -> "TenantWorkspace":
        """Return a folder of the workspace as a workspace, shown as *shown_path*."""
        return self._subtree((self._home.tenant,), shown_path, folder_of(path))

    async def in_cache(self, work: Callable[[Path, threading.Event], T]) -> T:
        """Run blocking work on data that can be recreated."""
        return await self._home.run(lambda stop: work(self._home.cache_path(), stop))

    def _subtree(self, base: Parts, shown_path: str, folder: Parts) -> "TenantWorkspace":
        home = self._home
        tree = Tree(home.root, base, home.resolver, shown_path, folder=folder)
        return TenantWorkspace(home.root, home.tenant, home=home, tree=tree)

    def _parts(self, path: str) -> Parts:
        return parts_of(path, self._shown_root)

    def _written(self, path: str) -> Parts:
        return written_of(path, self._shown_root)
