"""Counts the storage of a tenant: one change at a time, recounted after a crash."""

import fcntl
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from gatepost.execution.failure import ToolFailure
from gatepost.tools.context.interfaces import WorkspaceUsage

WRITTEN_USAGE = re.compile(rb"(\d{1,18}) (\d{1,18})\n")

LOCK_S = 20.0
"""How long a change waits for changes of other processes, in seconds."""
LOCK_EVERY_S = 0.01
RECOUNT_S = 60.0
"""The minimum interval in seconds between recounts of a full workspace."""


class Quota(msgspec.Struct, frozen=True):
    """The storage quota of a tenant."""

    bytes: int = 1_000_000_000
    """The maximum sum of file sizes."""
    files: int = 100_000
    """The maximum number of files and folders."""


DEFAULT_QUOTA = Quota()


class WorkAbandoned(Exception):
    """Raised when the caller no longer waits for the work."""


class UsageChange:
    """The usage during a change; only the change itself updates it."""

    def __init__(
        self, usage: WorkspaceUsage, quota: Quota, recount: Callable[[], WorkspaceUsage | None]
    ) -> None:
        self.bytes, self.files = usage.bytes, usage.files
        self._quota = quota
        self._recount = recount

    def require(self, *, bytes: int, files: int) -> None:
        """
        Raise ToolFailure if the quota does not allow the addition.

        What makes the workspace smaller is always possible, also where it is too large.
        """
        if self._fits(bytes, files):
            return
        # Other programs may have removed files, so count again before a refusal.
        counted = self._recount()
        if counted is not None:
            self.bytes, self.files = counted.bytes, counted.files
        if not self._fits(bytes, files):
            message = (
                f"The workspace is full: it holds {self.bytes} of {self._quota.bytes} bytes and "
                f"{self.files} of {self._quota.files} files and folders, and this would add "
                f"{max(bytes, 0)} bytes and {max(files, 0)} files. Delete something first."
            )
            raise ToolFailure("denied", message)

    def add(self, *, bytes: int, files: int) -> None:
        """Add to the usage; negative values reduce it."""
        self.bytes = max(self.bytes + bytes, 0)
        self.files = max(self.files + files, 0)

    def _fits(self, size: int, files: int) -> bool:
        return (size <= 0 or self.bytes + size <= self._quota.bytes) and (
            files <= 0 or self.files + files <= self._quota.files
        )


class UsageFile:
    """
    The usage of one tenant in a file, which is also the lock of all processes.

    While a change goes on the file is empty. A process that finds it empty after a crash, or opens
    it for the first time, counts the files. *count* walks the tenant's files and removes incomplete
    files of a crash. Under the lock, no running change owns any of these.
    """

    def __init__(
        self, opened: Callable[[], int], count: Callable[[], WorkspaceUsage], quota: Quota
    ) -> None:
        self._opened = opened
        self._count = count
        self.quota = quota
        self._counted_at: float | None = None

    @contextmanager
    def changing(self, stop: threading.Event) -> Iterator[UsageChange]:
        """Lock the usage for a change; raise ToolFailure if the lock takes too long, or Stopped."""
        handle = self._opened()
        try:
            _lock(handle, stop)
            usage = self._read(handle)
            os.ftruncate(handle, 0)
            delta = UsageChange(usage or self._walk(), self.quota, self._recount)
            try:
                yield delta
            finally:
                os.pwrite(handle, b"%d %d\n" % (delta.bytes, delta.files), 0)
        finally:
            os.close(handle)  # closing also ends the lock

    def counted(self, stop: threading.Event) -> WorkspaceUsage:
        """Count the usage by walking the files."""
        self._counted_at = None
        with self.changing(stop) as delta:
            return WorkspaceUsage(delta.bytes, delta.files)

    def _read(self, handle: int) -> WorkspaceUsage | None:
        match = WRITTEN_USAGE.fullmatch(os.pread(handle, 64, 0))
        if match is None or self._counted_at is None:
            return None
        return WorkspaceUsage(int(match[1]), int(match[2]))

    def _recount(self) -> WorkspaceUsage | None:
        if self._counted_at is not None and time.monotonic() < self._counted_at + RECOUNT_S:
            return None
        return self._walk()

    def _walk(self) -> WorkspaceUsage:
        self._counted_at = time.monotonic()
        return self._count()


def _lock(handle: int, stop: threading.Event) -> None:
    until = time.monotonic() + LOCK_S
    while True:
        if stop.is_set():
            raise WorkAbandoned
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stop.wait(LOCK_EVERY_S)
            if time.monotonic() > until:
                message = "The workspace is busy with other changes. Try again."
                raise ToolFailure("upstream_unavailable", message, retry_after=1.0) from None
        else:
            return
