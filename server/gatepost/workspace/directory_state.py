"""Run the work on a tenant's directories in threads, and count what they contain."""

import asyncio
import contextlib
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from gatepost.execution.threads import settle
from gatepost.tools.context.interfaces import WorkspaceUsage
from gatepost.workspace.ownership import PRIVATE, USAGE_FILE, FolderOwnership
from gatepost.workspace.resolver import DIRECTORY, Resolver, place_of, resolver_of
from gatepost.workspace.tree import Tree
from gatepost.workspace.usage import DEFAULT_QUOTA, Quota, UsageChange, UsageFile, WorkAbandoned

T = TypeVar("T")

DERIVED_AREA = ".made"
"""The area for data that packs can recreate; it is not counted."""

AREA_NAME = re.compile(r"[a-z]{1,32}", re.ASCII)

THREADS_PER_TENANT = 4
"""The maximum number of threads that one tenant uses at once."""


class DirectoryState:
    """The state that a tenant's directories share: the usage, and the turns at the threads."""

    def __init__(
        self,
        root: int,
        tenant: str,
        quota: Quota = DEFAULT_QUOTA,
        resolver: Resolver | None = None,
        threads: Executor | None = None,
        running: set[threading.Event] | None = None,
    ) -> None:
        self.root = root
        self.tenant = tenant
        self.resolver = resolver or resolver_of()
        self.usage_file = UsageFile(self._opened, self._count, quota)
        self.running = set() if running is None else running
        """The work of all tenants that is running; each is stopped by its event."""
        self._owned = FolderOwnership(root, tenant, self.resolver)
        self._threads = threads or ThreadPoolExecutor(THREADS_PER_TENANT, "workspace")
        self._running_threads = asyncio.Semaphore(THREADS_PER_TENANT)
        self._changes = asyncio.Lock()

    async def run(self, work: Callable[[threading.Event], T]) -> T:
        """
        Run blocking work in a thread; it gets an event that is set when the caller stops waiting.
        """
        loop = asyncio.get_running_loop()
        async with self._running_threads:
            stop = threading.Event()
            self.running.add(stop)
            # Not the future of `run_in_executor`: if its wait is cancelled, so is the work, while
            # its thread continues and its result is lost.
            answer: asyncio.Future[T] = loop.create_future()
            try:
                ended = self._threads.submit(self._check_owner_and_run, work, stop)
            except RuntimeError:  # no thread can be started, but the work may be queued
                stop.set()
                self.running.discard(stop)
                raise
            ended.add_done_callback(partial(self._report_end, loop, stop, answer))
            try:
                return await answer
            except asyncio.CancelledError:
                stop.set()
                raise

    def _report_end(
        self,
        loop: asyncio.AbstractEventLoop,
        stop: threading.Event,
        answer: asyncio.Future[T],
        ended: Future[T],
    ) -> None:
        """Hand the end of work to the event loop; called in any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(self._settle, stop, answer, ended)

    def _settle(self, stop: threading.Event, answer: asyncio.Future[T], ended: Future[T]) -> None:
        self.running.discard(stop)
        if ended.cancelled():
            answer.cancel()
            return
        error = ended.exception()
        settle(answer, ended.result() if error is None else None, error)

    async def change(self, work: Callable[[UsageChange, threading.Event], T]) -> T:
        """Run blocking work that changes files: one change at a time, counted."""

        def counted(stop: threading.Event) -> T:
            with self.usage_file.changing(stop) as delta:
                return work(delta, stop)

        async with self._changes:
            return await self.run(counted)

    def _check_owner_and_run(
        self, work: Callable[[threading.Event], T], stop: threading.Event
    ) -> T:
        if stop.is_set():
            raise WorkAbandoned
        self._owned.check()
        return work(stop)

    def cache_path(self) -> Path:
        """Return the path of the area for data that packs can recreate."""
        handle = self._folder((PRIVATE, self.tenant, DERIVED_AREA))
        try:
            return Path(place_of(handle))
        finally:
            os.close(handle)

    def _opened(self) -> int:
        """Open the usage file; each change has its own handle, so that they exclude one another."""
        handle = self._folder((PRIVATE, self.tenant))
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            return os.open(USAGE_FILE, flags, 0o600, dir_fd=handle)
        finally:
            os.close(handle)

    def _folder(self, names: Sequence[str]) -> int:
        """Return a handle of the folder; create it if it is missing, without following links."""
        handle = os.dup(self.root)
        try:
            for name in names:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=handle)
                subfolder = self.resolver.open(handle, (name,), DIRECTORY)
                os.close(handle)
                handle = subfolder
        except OSError:
            os.close(handle)
            raise
        return handle

    def _count(self) -> WorkspaceUsage:
        handle = self.resolver.open(self.root, (PRIVATE, self.tenant), DIRECTORY)
        try:
            areas = [name for name in os.listdir(handle) if AREA_NAME.fullmatch(name)]
        finally:
            os.close(handle)
        folders = [(self.tenant,), *((PRIVATE, self.tenant, area) for area in areas)]
        counts = [Tree(self.root, folder, self.resolver, "").count() for folder in folders]
        return WorkspaceUsage(
            sum(count.bytes for count in counts), sum(count.files for count in counts)
        )
