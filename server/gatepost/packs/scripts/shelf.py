"""Where scripts are found: the operator's folder, then the tenant's own."""

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gatepost.packs.scripts.script import Script, is_name
from gatepost.packs.scripts.settings import ScriptsSettings
from gatepost.tools.api import ToolFailure
from gatepost.tools.surroundings import Workspace

SUFFIX = ".star"


class Shelf:
    """
    The scripts of one tenant.

    Every look goes to the files, so that all replicas see the same; each file is read once, and
    what was read is what is judged and run.
    """

    def __init__(self, settings: ScriptsSettings, workspace: Workspace) -> None:
        self._settings = settings
        self._workspace = workspace

    async def find(self, name: str) -> Script | None:
        """The script of that name; ToolFailure when it is too large, or not a plain file."""
        if not is_name(name):
            return None
        if self._settings.folder:
            content = await asyncio.to_thread(self._read, name)
            if content is not None:
                return Script(name, self._bounded(name, content), "server")
        if not self._settings.workspace_folder:
            return None
        try:
            head = await self._workspace.head(self._path(name), limit=self._most)
        except ToolFailure as missing:
            if missing.failure.kind == "not_found":
                return None
            raise
        return Script(name, self._bounded(name, head.data), "workspace")

    async def all(self) -> "Found":
        """All scripts, by name, without those that cannot be read."""
        names: set[str] = set()
        cut = False
        most = self._settings.max_scripts
        if self._settings.folder:
            here = await asyncio.to_thread(self._names)
            cut = len(here) > most
            names.update(sorted(here)[:most])
        if self._settings.workspace_folder:
            theirs = await self._theirs()
            cut = cut or len(theirs) > most
            names.update(sorted(theirs)[:most])
        found = [script for name in sorted(names) if (script := await self._found(name))]
        return Found(tuple(found), cut)

    @property
    def _most(self) -> int:
        return self._settings.max_code_bytes + 1

    def _path(self, name: str) -> str:
        return f"{self._settings.workspace_folder}/{name}{SUFFIX}"

    async def _found(self, name: str) -> Script | None:
        try:
            return await self.find(name)
        except ToolFailure:
            return None

    async def _theirs(self) -> list[str]:
        folder, most = self._settings.workspace_folder, self._settings.max_scripts
        try:
            # Other files may lie among them; of very many some are not looked at.
            listing = await self._workspace.entries(folder, limit=10 * most)
        except ToolFailure as missing:
            if missing.failure.kind != "not_found":
                raise
            return []
        files = (item.path for item in listing.items if item.type == "file")
        return list(_names(path.rpartition("/")[2] for path in files))

    def _names(self) -> list[str]:
        try:
            return list(_names(os.listdir(self._settings.folder)))
        except OSError:
            return []

    def _read(self, name: str) -> bytes | None:
        # Links are the operator's to make (and how Kubernetes mounts a folder); a pipe would hang.
        path = Path(self._settings.folder) / f"{name}{SUFFIX}"
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return None
            return file.read(self._most)

    def _bounded(self, name: str, content: bytes) -> bytes:
        if len(content) == self._most:
            message = (
                f"Script '{name}{SUFFIX}' is larger than the {self._most - 1} bytes allowed "
                "(packs.scripts.max_code_bytes). Split it up."
            )
            raise ToolFailure("validation", message, field="name")
        return content


class Found(msgspec.Struct, frozen=True):
    """What is on a shelf."""

    scripts: tuple[Script, ...]
    cut: bool
    """Whether there are more than may be."""


def _names(files: "Iterator[str] | list[str]") -> Iterator[str]:
    for file in files:
        name = file.removesuffix(SUFFIX)
        if name != file and is_name(name):
            yield name
