"""The settings of the pack `scripts`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from gatepost import PackSettings, SettingFault

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
ALLOWED_SCRIPT = re.compile(rf"({NAME.pattern})(?:@sha256:([0-9a-f]{{64}}))?", re.ASCII)
"""A name, or a name bound to the SHA-256 of a file's bytes, as `sha256sum` prints it."""

FOLDER = re.compile(r"[\w-]+(?:/[\w-]+){0,9}", re.ASCII)
LONGEST_S = 300.0
MAX_OUTPUT = 1_000_000
WORLD_WRITABLE = 0o002


class ScriptsSettings(PackSettings, frozen=True, kw_only=True):
    """`[packs.scripts]`."""

    folder: str = ""
    """
    A folder of `*.star` files for all tenants. Tools never write to it, and its names take
    precedence.
    """
    workspace_folder: str = "scripts"
    """The folder in each tenant's workspace for its own scripts; empty: none."""
    allow: list[str] = []
    """
    Scripts that need no approval: `weather` allows that file of `folder` with any content,
    `weather@sha256:…` allows exactly these bytes in either folder.
    """
    exec: Literal["approved", "free", "off"] = "approved"
    """Whether `script_exec` runs only approved code, any code, or none."""
    timeout_s: float = 30.0
    """Seconds that a script may take, called tools included."""
    cpu_s: int = 10
    """Seconds of processor time that a script may use."""
    memory_mb: int = 256
    """Megabytes of memory in addition to the interpreter."""
    max_steps: int = 100_000_000
    """Loop iterations and calls of functions, counted in thousands."""
    max_output_bytes: int = 200_000
    """Maximum number of bytes of the printed text, and of the value."""
    max_code_bytes: int = 100_000
    """Bytes of the largest script."""
    max_calls: int = 100
    """Maximum number of calls of tools by one script."""
    max_scripts: int = 200
    """Maximum number of scripts in each folder; further ones are ignored."""
    max_pending: int = 50
    """
    Maximum number of scripts of a tenant that wait for an administrator. Above it, the caller with
    the most waiting scripts loses its oldest.
    """
    workers: int = 4
    """Scripts that run at once in one process."""
    workers_per_tenant: int = 2
    """Scripts of one tenant that run at once in one process."""
    queue_per_tenant: int = 8
    """Maximum number of calls of one tenant in the queue; further ones are refused."""

    def faults(self) -> Iterator[SettingFault]:
        """Yield problems with the values, beyond their types."""
        if self.folder:
            yield from _folder(Path(self.folder))
        if self.workspace_folder and not FOLDER.fullmatch(self.workspace_folder):
            hint = 'write a path within the workspace, for example "scripts"'
            yield SettingFault(
                "workspace_folder",
                f"{self.workspace_folder!r} is not a folder of the workspace",
                hint,
            )
        for at, entry in enumerate(self.allow):
            match = ALLOWED_SCRIPT.fullmatch(entry)
            if match is None:
                hint = 'write "weather" or "weather@sha256:" and the 64 digits of sha256sum'
                yield SettingFault(f"allow[{at}]", f"{entry!r} is not a script", hint)
            elif match[2] is None and not self.folder:
                hint = "set folder, or bind the name to its content: name@sha256:…"
                message = f"{entry!r} means a file of `folder`, which is not set"
                yield SettingFault(f"allow[{at}]", message, hint)
        for name, minimum, maximum in NUMBERS:
            if not minimum <= getattr(self, name) <= maximum:
                yield SettingFault(name, f"it must be from {minimum:g} to {maximum:g}")
        if self.workers_per_tenant >= self.workers:
            yield SettingFault(
                "workers_per_tenant",
                "one tenant could occupy all workers",
                "choose a number below workers",
            )


NUMBERS = (
    ("timeout_s", 0.1, LONGEST_S),
    ("cpu_s", 1, LONGEST_S),
    ("memory_mb", 16, 16_384),
    ("max_steps", 1_000, 1e12),
    ("max_output_bytes", 1_000, MAX_OUTPUT),
    ("max_code_bytes", 1, MAX_OUTPUT),
    ("max_calls", 0, 10_000),
    ("max_scripts", 1, 10_000),
    ("max_pending", 1, 1_000),
    ("workers", 2, 256),
    ("workers_per_tenant", 1, 255),
    ("queue_per_tenant", 0, 1_000),
)


def _folder(folder: Path) -> Iterator[SettingFault]:
    try:
        mode = folder.stat().st_mode if folder.is_dir() else None
    except OSError as error:
        yield SettingFault("folder", f"{folder} cannot be read: {error.strerror}")
        return
    if mode is None:
        yield SettingFault("folder", f"{folder} is not a folder")
    elif mode & WORLD_WRITABLE:
        hint = "chmod o-w: a script that is allowed by name runs whatever the last writer put there"
        yield SettingFault("folder", f"every user of the machine may write to {folder}", hint)
