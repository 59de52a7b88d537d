"""Find scripts in the operator's and the tenant's folder, and the changes since a reload."""

import asyncio
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from gatepost import Entries, FoundScripts, Script, ToolFailure, Workspace
from gatepost_packs.scripts.settings import ALLOWED_SCRIPT, NAME, ScriptsSettings

EXEC = re.compile(r"exec-[0-9a-f]{16}", re.ASCII)
"""The names of code without a file; no file may have one."""


def is_name(name: str) -> bool:
    """Return whether a file may have this name."""
    return NAME.fullmatch(name) is not None and EXEC.fullmatch(name) is None


def from_code(code: bytes) -> Script:
    """Return code without a file as a script, whose name is made of its content."""
    return Script(f"exec-{hashlib.sha256(code).hexdigest()[:16]}", code, "code")


def is_allowed(script: Script, settings: ScriptsSettings) -> bool:
    """Return whether the configuration lets the script run without an approval."""
    if script.place == "code":
        return settings.exec == "free"
    for entry in settings.allow:
        match = ALLOWED_SCRIPT.fullmatch(entry)
        if match is None or match[1] != script.name:
            continue
        if match[2] is None:
            # A name alone must not allow code of a caller that can write to a workspace.
            if script.place == "server":
                return True
        elif match[2] == hashlib.sha256(script.content).hexdigest():
            return True
    return False


SUFFIX = ".star"


class ScriptFolders:
    """
    The scripts of one tenant.

    Every lookup reads the files, so that all replicas see the same. Each file is read once, and the
    bytes that were read are checked and run.
    """

    def __init__(self, settings: ScriptsSettings, workspace: Workspace) -> None:
        self._settings = settings
        self._workspace = workspace

    async def find(self, name: str) -> Script | None:
        """Return the script of that name; ToolFailure if it is too large or not a plain file."""
        if not is_name(name):
            return None
        if self._settings.folder:
            content = await asyncio.to_thread(self._read, name)
            if content is not None:
                return Script(name, self._bounded(name, content), "server")
        if not self._settings.workspace_folder:
            return None
        try:
            head = await self._workspace.head(self._path(name), limit=self._max_read)
        except ToolFailure as missing:
            if missing.failure.kind == "not_found":
                return None
            raise
        return Script(name, self._bounded(name, head.data), "workspace")

    async def all(self) -> FoundScripts:
        """Return all scripts by name, without those that cannot be read."""
        names: set[str] = set()
        cut = False
        limit = self._settings.max_scripts
        if self._settings.folder:
            of_workspace = await asyncio.to_thread(self._names)
            cut = len(of_workspace) > limit
            names.update(sorted(of_workspace)[:limit])
        if self._settings.workspace_folder:
            of_tenant = await self._of_tenant()
            cut = cut or len(of_tenant) > limit
            names.update(sorted(of_tenant)[:limit])
        return FoundScripts(tuple(await self._read_all(sorted(names))), cut)

    def allowed_by(self, script: Script) -> str | None:
        """Return the setting that lets a script run without an approval, if one does."""
        return "packs.scripts.allow" if is_allowed(script, self._settings) else None

    @property
    def _max_read(self) -> int:
        return self._settings.max_code_bytes + 1

    def _path(self, name: str) -> str:
        return f"{self._settings.workspace_folder}/{name}{SUFFIX}"

    async def _read_all(self, names: Sequence[str]) -> list[Script]:
        """Return the scripts of these names that can be read."""
        contents: dict[str, bytes] = {}
        if self._settings.folder:
            contents = await asyncio.to_thread(self._read_each, names)
        scripts = {name: Script(name, content, "server") for name, content in contents.items()}
        others = [name for name in names if name not in scripts]
        if self._settings.workspace_folder and others:
            paths = [*map(self._path, others)]
            heads = await self._workspace.heads(paths, limit=self._max_read)
            for name, head in zip(others, heads, strict=True):
                if head is not None:
                    scripts[name] = Script(name, head.data, "workspace")
        return [
            scripts[name]
            for name in names
            if name in scripts and len(scripts[name].content) < self._max_read
        ]

    async def _of_tenant(self) -> list[str]:
        folder, limit = self._settings.workspace_folder, self._settings.max_scripts
        try:
            # The folder may have other files; beyond the limit, some files are not read.
            listing = await self._workspace.entries(folder, limit=10 * limit)
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
        # The operator may use links (Kubernetes mounts folders so); opening a pipe would hang.
        path = Path(self._settings.folder) / f"{name}{SUFFIX}"
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return None
            return file.read(self._max_read)

    def _read_each(self, names: Iterable[str]) -> dict[str, bytes]:
        contents = ((name, self._read(name)) for name in names)
        return {name: content for name, content in contents if content is not None}

    def _bounded(self, name: str, content: bytes) -> bytes:
        if len(content) == self._max_read:
            message = (
                f"Script '{name}{SUFFIX}' is larger than the {self._max_read - 1} bytes allowed "
                "(packs.scripts.max_code_bytes). Split it up."
            )
            raise ToolFailure("validation", message, field="name")
        return content


def _names(files: Iterable[str]) -> Iterator[str]:
    for file in files:
        name = file.removesuffix(SUFFIX)
        if name != file and is_name(name):
            yield name


SEEN, KEY = "scripts_seen", "seen"
"""Where a tenant's scripts are stored as the last reload found them."""
ATTEMPTS = 3


class CatalogChange(msgspec.Struct, frozen=True):
    """The differences, by name."""

    new: list[str]
    changed: list[str]
    gone: list[str]


async def changes_since_reload(entries: Entries, scripts: Iterable[Script]) -> CatalogChange:
    """Store these as the current scripts; return the differences from the previous ones."""
    current = {script.name: script.digest for script in scripts}
    for _ in range(ATTEMPTS):
        entry = await entries.get(KEY)
        before = {} if entry is None else msgspec.json.decode(entry.value, type=dict[str, str])
        revision = 0 if entry is None else entry.revision
        value = msgspec.json.encode(current)
        if await entries.put(KEY, value, now=time.time(), revision=revision):
            break
    return CatalogChange(
        new=sorted(current.keys() - before.keys()),
        changed=sorted(n for n in current.keys() & before.keys() if current[n] != before[n]),
        gone=sorted(before.keys() - current.keys()),
    )
