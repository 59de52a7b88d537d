"""What a tool may use beside its arguments: the tenant's files, and word to whoever watches."""

from typing import Literal, Protocol

import msgspec

Listed = Literal["tools", "resources", "prompts"]
"""The lists that clients read and may be told about."""

ItemType = Literal["file", "folder", "link", "other"]
"""What a name in a folder is; links are shown and never followed."""


class File(msgspec.Struct, frozen=True):
    """One file of a workspace."""

    path: str
    """Relative to the workspace."""
    size: int
    """In bytes."""
    modified: float
    """Seconds since the epoch."""


class Item(msgspec.Struct, frozen=True):
    """One name in a workspace."""

    path: str
    """Relative to the workspace."""
    type: ItemType
    size: int
    """In bytes; 0 for what is no file."""
    modified: float
    """Seconds since the epoch."""


class Listing(msgspec.Struct, frozen=True):
    """What is in a folder, sorted by path."""

    items: list[Item]
    cut: bool
    """Whether there is more than was asked for."""


class Head(msgspec.Struct, frozen=True):
    """The beginning of a file."""

    data: bytes
    size: int
    """Of the whole file, in bytes."""


class Usage(msgspec.Struct, frozen=True):
    """What a tenant keeps, in all its places."""

    bytes: int
    files: int
    """Files and folders."""


class Workspace(Protocol):
    """
    A tenant's own directory, as tools may use it; every path is relative to it.

    Everything raises ToolFailure, written for a model, when a path is not one inside the workspace,
    when something else stands there, and ("denied") when the tenant's quota is used up.
    """

    async def write(self, path: str, data: bytes, *, mkdirs: bool = True) -> str:
        """Write a whole file atomically, making folders; answers the path as tools show it."""

    async def append(self, path: str, data: bytes, *, mkdirs: bool = True) -> int:
        """Add to the end of a file, or begin one, atomically; answers its size now."""

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a file of at most *limit* bytes."""

    async def head(self, path: str, *, limit: int) -> Head:
        """Read the first *limit* bytes of a file."""

    async def files(self, *, limit: int) -> list[File]:
        """The files there are, sorted by path; at most *limit* of them."""

    async def entries(self, path: str = ".", *, recursive: bool = False, limit: int) -> Listing:
        """What is in a folder; with *recursive* also in all below it."""

    async def stat(self, path: str) -> Item:
        """What stands at a path."""

    async def make_folder(self, path: str) -> str:
        """Make a folder, and those above it; fine when it is there."""

    async def delete(self, path: str, *, recursive: bool = False) -> bool:
        """Remove a file, or with *recursive* a folder as a whole; whether there was anything."""

    async def usage(self) -> Usage:
        """What the tenant keeps, counted now."""

    def area(self, name: str) -> "Workspace":
        """
        A directory of the tenant beside its workspace, for what a pack keeps.

        No path of the workspace leads there; the quota is one for all. *name* is the pack's own.
        """


class Changes(Protocol):
    """Tells the tenant's clients, at every replica, that something they may have read changed."""

    async def listed(self, what: Listed) -> None:
        """A list looks different now."""

    async def updated(self, uri: str) -> None:
        """The content of a resource is different now."""


class Unheard:
    """Changes where nobody can watch."""

    async def listed(self, what: Listed) -> None:
        """Nobody watches."""

    async def updated(self, uri: str) -> None:
        """Nobody watches."""


UNHEARD = Unheard()
