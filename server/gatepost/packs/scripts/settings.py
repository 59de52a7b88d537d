"""What the pack `scripts` can be told."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from gatepost.packs.table import Fault, PackSettings

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
ALLOWED = re.compile(rf"({NAME.pattern})(?:@sha256:([0-9a-f]{{64}}))?", re.ASCII)
"""A name, or a name bound to the SHA-256 of a file's bytes, as `sha256sum` prints it."""

FOLDER = re.compile(r"[\w-]+(?:/[\w-]+){0,9}", re.ASCII)
LONGEST_S = 300.0
MOST_OUTPUT = 1_000_000
WORLD_WRITABLE = 0o002


class ScriptsSettings(PackSettings, frozen=True, kw_only=True):
    """`[packs.scripts]`."""

    folder: str = ""
    """A folder of `*.star` files for all tenants; tools never write to it. Its names come first."""
    workspace_folder: str = "scripts"
    """The folder of each tenant's workspace that holds its own scripts; empty: none."""
    allow: list[str] = []
    """
    Scripts that need no approval: `weather` means that file of `folder` whatever it holds,
    `weather@sha256:…` means exactly these bytes, wherever they lie.
    """
    exec: Literal["approved", "free", "off"] = "approved"
    """Whether `script_exec` runs code that an administrator approved, any code, or none."""
    timeout_s: float = 30.0
    """Seconds a script may take, the tools that it calls included."""
    cpu_s: int = 10
    """Seconds of processor time it may use."""
    memory_mb: int = 256
    """Megabytes it may use beside its interpreter."""
    max_steps: int = 100_000_000
    """Loop iterations and calls of functions, counted in thousands."""
    max_output_bytes: int = 200_000
    """What it may print, and how large its value may be."""
    max_code_bytes: int = 100_000
    """How large a script may be."""
    max_calls: int = 100
    """Calls of tools that it may make."""
    max_scripts: int = 200
    """How many scripts each folder may hold; more are not seen."""
    max_pending: int = 50
    """How many scripts of a tenant wait for an administrator; a newer one displaces the oldest."""
    workers: int = 4
    """Scripts that run at once in one process."""
    workers_per_tenant: int = 2
    """How many of them may be one tenant's."""
    queue_per_tenant: int = 8
    """How many calls of one tenant may wait for their turn; further ones are refused."""

    def faults(self) -> Iterator[Fault]:
        """See `PackSettings`."""
        if self.folder:
            yield from _folder(Path(self.folder))
        if self.workspace_folder and not FOLDER.fullmatch(self.workspace_folder):
            hint = 'write a path within the workspace, for example "scripts"'
            yield Fault("workspace_folder", f"{self.workspace_folder!r} is no such folder", hint)
        for at, entry in enumerate(self.allow):
            match = ALLOWED.fullmatch(entry)
            if match is None:
                hint = 'write "weather" or "weather@sha256:" and the 64 digits of sha256sum'
                yield Fault(f"allow[{at}]", f"{entry!r} names no script", hint)
            elif match[2] is None and not self.folder:
                hint = "set folder, or bind the name to its content: name@sha256:…"
                message = f"{entry!r} means a file of `folder`, which is not set"
                yield Fault(f"allow[{at}]", message, hint)
        for name, least, most in NUMBERS:
            if not least <= getattr(self, name) <= most:
                yield Fault(name, f"it must be from {least:g} to {most:g}")
        if self.workers_per_tenant >= self.workers:
            yield Fault(
                "workers_per_tenant",
                "one tenant could occupy all workers",
                "choose a number below workers",
            )


NUMBERS = (
    ("timeout_s", 0.1, LONGEST_S),
    ("cpu_s", 1, LONGEST_S),
    ("memory_mb", 16, 16_384),
    ("max_steps", 1_000, 1e12),
    ("max_output_bytes", 1_000, MOST_OUTPUT),
    ("max_code_bytes", 1, MOST_OUTPUT),
    ("max_calls", 0, 10_000),
    ("max_scripts", 1, 10_000),
    ("max_pending", 1, 1_000),
    ("workers", 2, 256),
    ("workers_per_tenant", 1, 255),
    ("queue_per_tenant", 0, 1_000),
)


def _folder(folder: Path) -> Iterator[Fault]:
    try:
        mode = folder.stat().st_mode if folder.is_dir() else None
    except OSError as error:
        yield Fault("folder", f"{folder} cannot be read: {error.strerror}")
        return
    if mode is None:
        yield Fault("folder", f"{folder} is no folder")
    elif mode & WORLD_WRITABLE:
        hint = "chmod o-w: what is allowed by name runs whoever wrote it"
        yield Fault("folder", f"everybody may write to {folder}", hint)
