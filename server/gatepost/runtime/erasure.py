"""Remove all data of a tenant, repeatedly until nothing is left."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records
from gatepost.storage.shared_store import SharedStore
from gatepost.tools.context.interfaces import WorkspaceUsage
from gatepost.workspace import removal
from gatepost.workspace.ownership import PRIVATE, adoption, is_foreign_folder
from gatepost.workspace.path import partial_name
from gatepost.workspace.resolver import DIRECTORY, resolver_of

PASSES = 5
"""Number of passes: a call that is being stopped may still write."""
PAUSE_S = 1.0
EMPTY_USAGE = WorkspaceUsage(0, 0)

ReportErased = Callable[[str], object]
"""Receives a line about each step."""


class TenantInventory(msgspec.Struct, frozen=True):
    """The data of a tenant: numbers of records by kind, and the usage of its files."""

    records: dict[str, int]
    files: WorkspaceUsage

    @property
    def is_nothing(self) -> bool:
        """Return whether there is no data."""
        return not self.records and not self.files.files

    def lines(self) -> list[str]:
        """Return a description for people."""
        lines = counted_records(self.records)
        if self.files.files:
            lines.append(f"{self.files.files} files and folders, {self.files.bytes} bytes")
        return lines


def counted_records(counts: Mapping[str, int]) -> list[str]:
    """Return how many records there are of each kind, for a person: `2 approval requests`."""
    return [f"{number} {kind.replace('_', ' ')}" for kind, number in sorted(counts.items())]


class Unfinished(Exception):
    """A process still writes for the tenant, although it is suspended."""


class TenantErasure:
    """
    The erasure of one tenant, which must already be suspended at every server.

    Each step can be repeated, so you can start an interrupted erasure again. *root* is the folder
    with the tenants' folders.
    """

    def __init__(
        self, tenant: str, records: Records, shared_store: SharedStore, root: Path
    ) -> None:
        self.tenant, self._records, self._shared_store, self._root = (
            tenant,
            records,
            shared_store,
            root,
        )

    async def inventory(self) -> TenantInventory:
        """Count the tenant's data; nothing is changed."""
        records = dict(await self._records.tenant_data.count(self.tenant))
        return TenantInventory(records, await asyncio.to_thread(self._counted))

    async def run(
        self, tell: ReportErased, pause: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        """Remove everything; raises Unfinished, StoreUnavailable and OSError."""
        for _ in range(PASSES):
            removed = await self._remove(tell)
            with suppress(StoreUnavailable):
                # Its contents expire within minutes.
                await self._shared_store.of(self.tenant).clear()
            if not removed:
                return
            await pause(PAUSE_S)
        if not (await self.inventory()).is_nothing:
            raise Unfinished

    async def _remove(self, tell: ReportErased) -> bool:
        """Do one pass; return whether it removed anything."""
        removed = 0
        while removed_rows := await self._records.tenant_data.clear(self.tenant):
            removed += removed_rows
            tell(f"removed {removed} records")
        if await asyncio.to_thread(self._is_foreign):
            tell(
                f"left the folder, which Gatepost did not make: {adoption(self._root, self.tenant)}"
            )
        files = await asyncio.to_thread(self._cleared)
        if files.files:
            tell(f"removed {files.files} files and folders, {files.bytes} bytes")
        return bool(removed or files.files)

    def _is_foreign(self) -> bool:
        """Return whether another program owns the folder, such as a user's below `/home`."""
        with suppress(FileNotFoundError), closing(_Folder.at(self._root)) as root:
            return is_foreign_folder(root.handle, self.tenant, resolver_of())
        return False

    def _counted(self) -> WorkspaceUsage:
        size = files = 0
        workspaces = [self._root / PRIVATE / self.tenant]
        if not self._is_foreign():
            workspaces.append(self._root / self.tenant)
        for workspace in workspaces:
            for folder, folders, names in os.walk(workspace):
                files += len(folders) + len(names)
                for name in names:
                    with suppress(OSError):
                        size += os.lstat(os.path.join(folder, name)).st_size
        return WorkspaceUsage(size, files)

    def _cleared(self) -> WorkspaceUsage:
        """
        Remove the tenant's two folders, without the one that another program owns.

        One folder is first moved into the other in one step, so that it never appears partly
        removed, and the next attempt finds the rest after an interruption.
        """
        size = files = 0
        foreign = self._is_foreign()
        with suppress(FileNotFoundError), closing(_Folder.at(self._root)) as root:
            root.make(PRIVATE)
            with closing(root.subfolder(PRIVATE)) as private:
                private.make(self.tenant)
                with closing(private.subfolder(self.tenant)) as home:
                    removed = EMPTY_USAGE if foreign else _moved_or_emptied(root, self.tenant, home)
                    size, files = size + removed.bytes, files + removed.files
                    removed = home.empty()
                    size, files = size + removed.bytes, files + removed.files
                private.remove(self.tenant)
        return WorkspaceUsage(size, files)


def _moved_or_emptied(root: "_Folder", name: str, to: "_Folder") -> WorkspaceUsage:
    try:
        root.move(name, to, f"erased{partial_name()}")
    except FileNotFoundError:
        return EMPTY_USAGE
    except OSError:
        # A mount point, which cannot be moved or removed.
        with closing(root.subfolder(name)) as folder:
            return folder.empty()
    return EMPTY_USAGE


class _Folder:
    """An open folder; below the root, no link leads into it or out of it."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    @classmethod
    def at(cls, root: Path) -> "_Folder":
        return cls(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def subfolder(self, name: str) -> "_Folder":
        return _Folder(os.open(name, DIRECTORY, dir_fd=self.handle))

    def make(self, name: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.handle)

    def empty(self) -> WorkspaceUsage:
        removed = [removal.clear(self.handle, name) for name in os.listdir(self.handle)]
        return WorkspaceUsage(
            sum(usage.bytes for usage in removed),
            sum(folder_usage.files for folder_usage in removed),
        )

    def move(self, name: str, to: "_Folder", as_name: str) -> None:
        os.rename(name, as_name, src_dir_fd=self.handle, dst_dir_fd=to.handle)

    def remove(self, name: str) -> None:
        # A call may have written there meanwhile; the next pass removes it.
        with suppress(OSError):
            os.rmdir(name, dir_fd=self.handle)

    def close(self) -> None:
        os.close(self.handle)
