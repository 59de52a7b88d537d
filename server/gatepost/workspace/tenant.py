"""The workspaces of all tenants, and one tenant's as tools use it."""

import asyncio
import contextlib
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from gatepost.tools.api import ToolFailure
from gatepost.tools.surroundings import Edited, File, Head, Item, Listing, Usage
from gatepost.workspace.ledger import DEFAULT_QUOTA, Ledger, Quota, Stopped, Tally
from gatepost.workspace.path import SHOWN_ROOT, folder_of, parts_of, written_of
from gatepost.workspace.resolver import DIRECTORY, Resolver, place_of, resolver_of
from gatepost.workspace.tree import Parts, Tree

T = TypeVar("T")

PRIVATE = ".gatepost"
"""What lies beside the tenants' directories; no tenant's id begins with a dot."""
LEDGER = ".usage"
APART = ".made"
"""What a tenant's packs can make again; not counted, so no area's name."""

AREA = re.compile(r"[a-z]{1,32}", re.ASCII)

THREADS = 16
TURNS = 4
"""Threads that one tenant may hold at once, so that it never holds all of them."""


class Workspaces:
    """
    All tenants' directories, below one root that is held open.

    Every path is resolved from that handle without following links: neither a link that a tool
    wrote nor a directory swapped meanwhile can lead elsewhere. OSError when the root cannot be
    made or opened.
    """

    def __init__(
        self, root: Path, *, quota: Quota = DEFAULT_QUOTA, resolver: Resolver | None = None
    ) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._quota = quota
        self._resolver = resolver or resolver_of()
        self._threads = ThreadPoolExecutor(THREADS, "workspace")
        self._running: set[threading.Event] = set()
        self._tenants: dict[str, TenantWorkspace] = {}

    def of(self, tenant: str) -> "TenantWorkspace":
        """The directory of one tenant; *tenant* is a checked tenant id, so it is a plain name."""
        known = self._tenants.get(tenant)
        if known is None:
            home = Home(self._root, tenant, self._quota, self._resolver, self._threads)
            home.running = self._running
            known = self._tenants[tenant] = TenantWorkspace(self._root, tenant, home=home)
        return known

    def close(self) -> None:
        """Call off what still runs, wait for it, and let go of the root."""
        for stop in tuple(self._running):
            stop.set()
        # Its threads use the root's number, which somebody else may get once it is closed.
        self._threads.shutdown(cancel_futures=True)
        os.close(self._root)


class Home:
    """What all of a tenant's directories share: the count, and turns at the threads."""

    def __init__(
        self,
        root: int,
        tenant: str,
        quota: Quota = DEFAULT_QUOTA,
        resolver: Resolver | None = None,
        threads: Executor | None = None,
    ) -> None:
        self.root = root
        self.tenant = tenant
        self.resolver = resolver or resolver_of()
        self.ledger = Ledger(self._opened, self._count, quota)
        self.running: set[threading.Event] = set()
        self._threads = threads
        self._turns = asyncio.Semaphore(TURNS)
        self._changes = asyncio.Lock()

    async def run(self, work: Callable[[threading.Event], T]) -> T:
        """
        Do blocking work in a thread; it gets an event that is set when nobody waits any more.
        """
        async with self._turns:
            stop = threading.Event()
            self.running.add(stop)
            future = asyncio.get_running_loop().run_in_executor(self._threads, work, stop)
            future.add_done_callback(lambda _: self.running.discard(stop))
            try:
                # Waiting for it, and not for its result: that would cancel it at once, while its
                # thread goes on and tells nobody how it ended.
                await asyncio.wait((future,))
            except asyncio.CancelledError:
                stop.set()
                future.add_done_callback(_unheard)
                raise
            return future.result()

    async def change(self, work: Callable[[Tally, threading.Event], T]) -> T:
        """The same for work that changes files: one at a time, counted."""

        def counted(stop: threading.Event) -> T:
            with self.ledger.changing(stop) as tally:
                return work(tally, stop)

        async with self._changes:
            return await self.run(counted)

    def apart(self) -> Path:
        """Where packs keep what they can make again, for those who must open it by its path."""
        handle = self._folder((PRIVATE, self.tenant, APART))
        try:
            return Path(place_of(handle))
        finally:
            os.close(handle)

    def _opened(self) -> int:
        """The ledger's own handle: each change has another, so that they exclude one another."""
        handle = self._folder((PRIVATE, self.tenant))
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            return os.open(LEDGER, flags, 0o600, dir_fd=handle)
        finally:
            os.close(handle)

    def _folder(self, names: Sequence[str]) -> int:
        """A handle of the folder, made where it is missing; no link is followed to it."""
        handle = os.dup(self.root)
        try:
            for name in names:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=handle)
                below = self.resolver.open(handle, (name,), DIRECTORY)
                os.close(handle)
                handle = below
        except OSError:
            os.close(handle)
            raise
        return handle

    def _count(self) -> Usage:
        handle = self.resolver.open(self.root, (PRIVATE, self.tenant), DIRECTORY)
        try:
            areas = [name for name in os.listdir(handle) if AREA.fullmatch(name)]
        finally:
            os.close(handle)
        places = [(self.tenant,), *((PRIVATE, self.tenant, area) for area in areas)]
        counts = [Tree(self.root, place, self.resolver, "").count() for place in places]
        return Usage(sum(one.bytes for one in counts), sum(one.files for one in counts))


def _unheard(future: asyncio.Future[Any]) -> None:
    """Take note of how it ended, so that nobody logs it: the caller is gone."""
    if not future.cancelled():
        future.exception()


class TenantWorkspace:
    """
    One tenant's directory, made when something is first written; see the Workspace protocol.

    An area of it has paths without the `/workspace/` before them.
    """

    __slots__ = ("_home", "_shown", "_tree")

    def __init__(
        self, root: int, tenant: str, *, home: Home | None = None, tree: Tree | None = None
    ) -> None:
        self._home = home or Home(root, tenant)
        self._tree = tree or Tree(root, (tenant,), self._home.resolver, SHOWN_ROOT)
        self._shown = self._tree.shown or SHOWN_ROOT

    async def write(self, path: str, data: bytes, *, mkdirs: bool = True) -> str:
        """
        Write a whole file; nobody ever sees half of it, also after a crash.

        Answers the path as tools show it.
        """
        parts, tree = self._written(path), self._tree
        await self._home.change(
            lambda tally, stop: tree.write(parts, data, tally, stop, mkdirs=mkdirs)
        )
        return tree.shown + "/".join(parts)

    async def write_new(self, path: str, data: bytes) -> bool:
        """Write a whole file unless there is one; of all who try at once, one does."""
        parts, tree = self._written(path), self._tree

        def write(tally: Tally, stop: threading.Event) -> bool:
            # Every process that writes waits for the same lock.
            if tree.holds(parts):
                return False
            tree.write(parts, data, tally, stop, mkdirs=True)
            return True

        return await self._home.change(write)

    async def append(self, path: str, data: bytes, *, mkdirs: bool = True) -> int:
        """Add to a file by replacing it with a longer one; answers its size now."""
        parts, tree = self._written(path), self._tree
        return await self._home.change(
            lambda tally, stop: tree.write(parts, data, tally, stop, mkdirs=mkdirs, append=True)
        )

    async def edit(
        self, path: str, change: Callable[[bytes | None], bytes], *, limit: int
    ) -> Edited:
        """Replace a file by what *change* makes of it, while nobody else changes it."""
        parts, tree = self._written(path), self._tree
        size, is_new = await self._home.change(
            lambda tally, stop: tree.edit(parts, change, tally, stop, limit=limit)
        )
        return Edited(tree.shown + "/".join(parts), size, is_new)

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a file of at most *limit* bytes; ToolFailure when it is missing or larger."""
        parts = self._parts(path)
        head = await self._home.run(lambda _: self._tree.read(parts, limit))
        if head.size > limit:
            raise self._tree.too_large(parts, limit)
        return head.data

    async def head(self, path: str, *, limit: int) -> Head:
        """Read the first *limit* bytes of a file; ToolFailure when it is missing."""
        parts = self._parts(path)
        return await self._home.run(lambda _: self._tree.read(parts, limit))

    async def heads(self, paths: Sequence[str], *, limit: int) -> list[Head | None]:
        """The first *limit* bytes of each file that can be read."""

        def read(stop: threading.Event) -> list[Head | None]:
            found: list[Head | None] = []
            for path in paths:
                head = None
                with contextlib.suppress(ToolFailure):
                    head = self._tree.read(self._parts(path), limit)
                found.append(head)
                if stop.is_set():
                    raise Stopped
            return found

        return await self._home.run(read)

    async def files(self, *, limit: int) -> list[File]:
        """
        The plain files there are, sorted by path; at most *limit* of them.

        Links are not followed, and what is being written and what no tool could name are left out.
        """
        listing = await self._home.run(
            lambda _: self._tree.entries((), limit, recursive=True, files_only=True)
        )
        return [File(item.path, item.size, item.modified) for item in listing.items]

    async def entries(
        self, path: str = ".", *, recursive: bool = False, hidden: bool = True, limit: int
    ) -> Listing:
        """What is in a folder, sorted by path; ToolFailure when there is none."""
        parts = folder_of(path, self._shown)
        return await self._home.run(
            lambda _: self._tree.entries(parts, limit, recursive=recursive, hidden=hidden)
        )

    async def stat(self, path: str) -> Item:
        """What stands at a path; ToolFailure when nothing does."""
        parts = self._parts(path)
        return await self._home.run(lambda _: self._tree.status(parts))

    async def make_folder(self, path: str) -> str:
        """Make a folder, and those above it; answers its path as tools show it."""
        parts = self._written(path.removesuffix("/"))
        await self._home.change(lambda tally, _: self._tree.make(parts, tally))
        return self._tree.shown + "/".join(parts)

    async def delete(self, path: str, *, recursive: bool = False) -> bool:
        """Remove a file, or with *recursive* a folder; whether there was anything."""
        parts = folder_of(path, self._shown)
        if not parts:
            message = "The workspace itself cannot be deleted; name what is in it."
            raise ToolFailure("validation", message, field="path")
        return await self._home.change(
            lambda tally, _: self._tree.remove(parts, tally, recursive=recursive)
        )

    async def usage(self) -> Usage:
        """What the tenant keeps in all its directories, counted now."""
        return await self._home.run(self._home.ledger.counted)

    async def room(self) -> Usage:
        """How much more the tenant may keep, counted now; below zero where there is too much."""
        kept, quota = await self.usage(), self._home.ledger.quota
        return Usage(quota.bytes - kept.bytes, quota.files - kept.files)

    async def place(self) -> Path:
        """Where the directory really is, made if it is not there; for a confined program."""
        await self._home.change(lambda tally, _: self._tree.make((), tally))
        return Path(await self._home.run(lambda _: self._tree.place()))

    def area(self, name: str) -> "TenantWorkspace":
        """A directory of the tenant beside this one; ValueError unless *name* is lower-case."""
        if not AREA.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an area: a to z, at most 32")
        return self._within((PRIVATE, self._home.tenant, name), "", ())

    def folder(self, path: str, shown: str) -> "TenantWorkspace":
        """A folder of the workspace as one of its own, shown as *shown*."""
        return self._within((self._home.tenant,), shown, folder_of(path))

    async def apart(self, work: Callable[[Path, threading.Event], T]) -> T:
        """Do blocking work beside the workspace, on what can be made again."""
        return await self._home.run(lambda stop: work(self._home.apart(), stop))

    def _within(self, base: Parts, shown: str, folder: Parts) -> "TenantWorkspace":
        home = self._home
        tree = Tree(home.root, base, home.resolver, shown, folder=folder)
        return TenantWorkspace(home.root, home.tenant, home=home, tree=tree)

    def _parts(self, path: str) -> Parts:
        return parts_of(path, self._shown)

    def _written(self, path: str) -> Parts:
        return written_of(path, self._shown)
