"""What a tool may use beside its arguments: the tenant's files and secrets, HTTP, its settings."""

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict, TypeVar, Unpack

import msgspec

T = TypeVar("T")

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
    stamp: tuple[int, ...] = ()
    """Differs once it was changed or replaced, unless twice within one tick of the clock."""


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


class Edited(msgspec.Struct, frozen=True):
    """A file after a change."""

    path: str
    """As tools show it."""
    size: int
    """In bytes."""
    is_new: bool


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

    async def write_new(self, path: str, data: bytes) -> bool:
        """Write a whole file unless there is one; whether it did, at one of all replicas."""

    async def append(self, path: str, data: bytes, *, mkdirs: bool = True) -> int:
        """Add to the end of a file, or begin one, atomically; answers its size now."""

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a file of at most *limit* bytes."""

    async def head(self, path: str, *, limit: int) -> Head:
        """Read the first *limit* bytes of a file."""

    async def files(self, *, limit: int) -> list[File]:
        """The files there are, sorted by path; at most *limit* of them."""

    async def heads(self, paths: Sequence[str], *, limit: int) -> list[Head | None]:
        """The same of many files at once; None for what cannot be read."""

    async def edit(
        self, path: str, change: Callable[[bytes | None], bytes], *, limit: int
    ) -> Edited:
        """
        Replace a file by what *change* makes of it (of None: there is none), or begin one.

        Nobody else changes it meanwhile. *change* runs in a thread, and may raise ToolFailure;
        a file of more than *limit* bytes is not taken.
        """

    async def entries(
        self,
        path: str = ".",
        *,
        recursive: bool = False,
        hidden: bool = True,
        limit: int,
    ) -> Listing:
        """
        What is in a folder; with *recursive* also in all below it, without *hidden* nothing whose
        name begins with a dot.
        """

    async def stat(self, path: str) -> Item:
        """What stands at a path."""

    async def make_folder(self, path: str) -> str:
        """Make a folder, and those above it; fine when it is there."""

    async def delete(self, path: str, *, recursive: bool = False) -> bool:
        """Remove a file, or with *recursive* a folder as a whole; whether there was anything."""

    async def usage(self) -> Usage:
        """What the tenant keeps, counted now."""

    async def room(self) -> Usage:
        """How much more the tenant may keep, counted now; below zero where there is too much."""

    async def place(self) -> Path:
        """
        Where the directory really is, for a program that is confined to it and gets a path.

        Everything else goes through the methods above, which follow no link.
        """

    def area(self, name: str) -> "Workspace":
        """
        A directory of the tenant beside its workspace, for what a pack keeps.

        No path of the workspace leads there; the quota is one for all. *name* is the pack's own.
        """

    def folder(self, path: str, shown: str) -> "Workspace":
        """
        A folder of the workspace as one of its own: no path leads out of it, and tools show its
        paths behind *shown* (`/name/`), which they may also be written with.
        """

    async def apart(self, work: Callable[[Path, threading.Event], T]) -> T:
        """
        Do blocking *work* in a thread, in a directory where no path of a tool leads and that does
        not count: for what can be made again from the files, and may be gone at any time.

        The event is set when nobody waits any more.
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


class Sealed(Protocol):
    """
    What a pack keeps of the tenant's that nobody may read: sealed at rest, and kept out of every
    answer and log from now on, like the tenant's secrets; agents cannot name it.

    Names are 1 to 200 of a-z, 0-9 and _, and begin with a letter and the pack's name.
    """

    async def put(self, name: str, value: str) -> None:
        """Keep a value, at most 64 KiB, durably; ToolFailure when it cannot be kept."""

    async def get(self, name: str) -> str | None:
        """The value; ToolFailure when it is there and cannot be opened."""

    async def delete(self, name: str) -> bool:
        """Forget it; whether there was one."""


class Upload(msgspec.Struct, frozen=True):
    """One file of a multipart form."""

    name: str
    """Of the form's field."""
    filename: str
    data: bytes
    content_type: str = "application/octet-stream"


class Reply(msgspec.Struct, frozen=True):
    """What another server answered, as far as it was read."""

    status: int
    headers: Mapping[str, str]
    """By lower-case names."""
    body: bytes
    """Decompressed."""
    truncated: bool
    """Whether there was more than *max_bytes*."""
    url: str
    """Where it came from in the end, after redirects."""


class Sending(TypedDict, total=False):
    """What a request may carry beside method and URL; one of json, form, uploads or content."""

    params: Mapping[str, Any]
    headers: Mapping[str, str]
    json: Any
    form: Mapping[str, Any]
    uploads: Sequence[Upload]
    """With *form*: one multipart form."""
    content: bytes
    timeout_s: float
    """For all of it, redirects included; default 30."""
    max_bytes: int
    """Where the body is cut; default 1,000,000."""
    redirects: int
    """
    How many are followed; default 0. What is secret stays with the host it was meant for; a
    redirect that would take it elsewhere, or from https to http, is answered as it is.
    """
    before: Callable[[str], Awaitable[None]]
    """Awaited with the URL of each hop before it is asked; what it raises ends the call."""
    confidential: bool
    """Whether URL or parameters hold a secret, as headers and bodies are taken to: never by http
    to a public host."""


class Outbound(Protocol):
    """
    HTTP to others: only to public addresses and to hosts that `[network] allow_hosts` names.

    Every answer is a Reply, whatever its status. Where there is none ToolFailure says why, written
    for a model: "denied" for an address or URL that is not allowed, "upstream_unavailable" for a
    server that cannot be reached, "timeout".
    """

    async def send(self, method: str, url: str, **options: Unpack[Sending]) -> Reply:
        """Send one request, with the call's correlation id, and read its answer."""

    async def addresses(self, scheme: str, host: str, port: int) -> Sequence[str]:
        """
        Where a program may connect to that speaks to *host* by itself, by `https`, `http`, `ssh`
        or `smtp`.

        The program must be told to use these and to ask nobody; ToolFailure as for `send`.
        """
