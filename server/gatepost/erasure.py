"""Removes what a tenant keeps, wherever it is: again and again, until nothing comes back."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from gatepost.stores.api import Records, Relay, StoreUnavailable
from gatepost.tools.surroundings import Usage
from gatepost.workspace import clearing
from gatepost.workspace.path import partial_name
from gatepost.workspace.resolver import DIRECTORY
from gatepost.workspace.tenant import PRIVATE

PASSES = 5
"""How often everything is looked for: a call that is being stopped may still write."""
PAUSE_S = 1.0
NOTHING = Usage(0, 0)

Tell = Callable[[str], object]
"""Takes a line about what was done."""


class Found(msgspec.Struct, frozen=True):
    """What a tenant keeps: records by kind, and its files with those that stand beside them."""

    records: dict[str, int]
    files: Usage

    @property
    def is_nothing(self) -> bool:
        """Whether there is none of it."""
        return not self.records and not self.files.files

    def lines(self) -> list[str]:
        """What there is, for a person."""
        told = [f"{number} {kind}" for kind, number in sorted(self.records.items())]
        if self.files.files:
            told.append(f"{self.files.files} files and folders, {self.files.bytes} bytes")
        return told


class Unfinished(Exception):
    """Something still writes for the tenant, although it is shut."""


class Erasure:
    """
    One tenant's erasure; the tenant must be shut by now, at every server.

    Each step can be done again, so one that was interrupted is begun anew. *root* is where the
    tenants' folders are.
    """

    def __init__(self, tenant: str, records: Records, relay: Relay, root: Path) -> None:
        self.tenant, self._records, self._relay, self._root = tenant, records, relay, root

    async def found(self) -> Found:
        """What there is, counted now; nothing is changed."""
        records = dict(await self._records.estate.count(self.tenant))
        return Found(records, await asyncio.to_thread(self._counted))

    async def run(
        self, tell: Tell, pause: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        """Remove everything; raises Unfinished, StoreUnavailable and OSError."""
        for _ in range(PASSES):
            removed = await self._remove(tell)
            with suppress(StoreUnavailable):
                # What it holds is over within minutes anyhow.
                await self._relay.of(self.tenant).clear()
            if not removed:
                return
            await pause(PAUSE_S)
        if not (await self.found()).is_nothing:
            raise Unfinished

    async def _remove(self, tell: Tell) -> bool:
        """One pass; whether there was anything."""
        gone = 0
        while some := await self._records.estate.clear(self.tenant):
            gone += some
            tell(f"removed {gone} records")
        files = await asyncio.to_thread(self._cleared)
        if files.files:
            tell(f"removed {files.files} files and folders, {files.bytes} bytes")
        return bool(gone or files.files)

    def _counted(self) -> Usage:
        size = files = 0
        for place in (self._root / self.tenant, self._root / PRIVATE / self.tenant):
            for folder, folders, names in os.walk(place):
                files += len(folders) + len(names)
                for name in names:
                    with suppress(OSError):
                        size += os.lstat(os.path.join(folder, name)).st_size
        return Usage(size, files)

    def _cleared(self) -> Usage:
        """
        Remove the tenant's two folders.

        The one goes into the other first, at once and whole: nobody sees half of it, and what an
        interruption leaves behind is found there by the next attempt.
        """
        size = files = 0
        with suppress(FileNotFoundError), closing(_Folder.at(self._root)) as root:
            root.make(PRIVATE)
            with closing(root.below(PRIVATE)) as private:
                private.make(self.tenant)
                with closing(private.below(self.tenant)) as home:
                    gone = _moved_or_emptied(root, self.tenant, home)
                    size, files = size + gone.bytes, files + gone.files
                    gone = home.empty()
                    size, files = size + gone.bytes, files + gone.files
                private.remove(self.tenant)
        return Usage(size, files)


def _moved_or_emptied(root: "_Folder", name: str, to: "_Folder") -> Usage:
    try:
        root.move(name, to, f"erased{partial_name()}")
    except FileNotFoundError:
        return NOTHING
    except OSError:
        # A file system of its own, which stays where it is.
        with closing(root.below(name)) as folder:
            return folder.empty()
    return NOTHING


class _Folder:
    """An open folder; below the root, no link leads into it or out of it."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    @classmethod
    def at(cls, root: Path) -> "_Folder":
        return cls(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def below(self, name: str) -> "_Folder":
        return _Folder(os.open(name, DIRECTORY, dir_fd=self.handle))

    def make(self, name: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.handle)

    def empty(self) -> Usage:
        gone = [clearing.clear(self.handle, name) for name in os.listdir(self.handle)]
        return Usage(sum(one.bytes for one in gone), sum(one.files for one in gone))

    def move(self, name: str, to: "_Folder", as_name: str) -> None:
        os.rename(name, as_name, src_dir_fd=self.handle, dst_dir_fd=to.handle)

    def remove(self, name: str) -> None:
        # Somebody may have written there meanwhile: the next pass comes for it.
        with suppress(OSError):
            os.rmdir(name, dir_fd=self.handle)

    def close(self) -> None:
        os.close(self.handle)
