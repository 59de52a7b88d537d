"""What a tool may use beside its arguments: the tenant's files, and word to whoever watches."""

from typing import Literal, Protocol

import msgspec

Listed = Literal["tools", "resources", "prompts"]
"""The lists that clients read and may be told about."""


class File(msgspec.Struct, frozen=True):
    """One file of a workspace."""

    path: str
    """Relative to the workspace."""
    size: int
    """In bytes."""
    modified: float
    """Seconds since the epoch."""


class Workspace(Protocol):
    """The tenant's own directory, as tools may use it; every path is relative to it."""

    async def write(self, path: str, data: bytes) -> str:
        """Write a whole file atomically, making folders; answers the path as tools show it."""

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a file of at most *limit* bytes."""

    async def files(self, *, limit: int) -> list[File]:
        """The files there are, sorted by path; at most *limit* of them."""


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
