"""What a tool function is given: its client, workspace, HTTP, secrets and other services."""

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict, TypeVar, Unpack

import msgspec

T = TypeVar("T")

ListName = Literal["tools", "resources", "prompts"]
"""The lists whose changes clients can be told of."""

ItemType = Literal["file", "folder", "link", "other"]
"""The type of an item in a folder; links are shown and never followed."""


class WorkspaceFile(msgspec.Struct, frozen=True):
    """One file of a workspace."""

    path: str
    """Relative to the workspace."""
    size: int
    """In bytes."""
    modified: float
    """Seconds since the epoch."""


class Item(msgspec.Struct, frozen=True):
    """One item in a workspace."""

    path: str
    """Relative to the workspace."""
    type: ItemType
    size: int
    """In bytes; 0 if it is not a file."""
    modified: float
    """Seconds since the epoch."""
    stamp: tuple[int, ...] = ()
    """Changes when the item is changed or replaced, except within one tick of the clock."""


class FolderListing(msgspec.Struct, frozen=True):
    """The items of a folder, sorted by path."""

    items: list[Item]
    cut: bool
    """Whether the folder has more items than the limit."""


class FileHead(msgspec.Struct, frozen=True):
    """The beginning of a file."""

    data: bytes
    size: int
    """Of the whole file, in bytes."""
    modified: float
    """Seconds since the epoch."""


class EditedFile(msgspec.Struct, frozen=True):
    """A file after a change."""

    path: str
    """The path as tools show it."""
    size: int
    """In bytes."""
    is_new: bool


class WorkspaceUsage(msgspec.Struct, frozen=True):
    """The storage that a tenant uses, in its workspace and all other areas."""

    bytes: int
    files: int
    """The number of files and folders."""


class Workspace(Protocol):
    """
    A tenant's own directory for its tools; every path is relative to it.

    All methods raise ToolFailure, with a message for the agent, if a path is not inside the
    workspace or has the wrong type, and ("denied") if the tenant's quota is used up.
    """

    async def write(self, path: str, data: bytes, *, mkdirs: bool = True) -> str:
        """Write a file atomically and create its folders; return the path as tools show it."""

    async def write_new(self, path: str, data: bytes) -> bool:
        """Write a file unless it exists; return whether this call of all replicas wrote it."""

    async def append(self, path: str, data: bytes, *, mkdirs: bool = True) -> int:
        """Append to a file atomically, or create it; return its new size."""

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a file of at most *limit* bytes."""

    async def head(self, path: str, *, limit: int) -> FileHead:
        """Read the first *limit* bytes of a file."""

    async def files(self, *, limit: int) -> list[WorkspaceFile]:
        """Return up to *limit* files, sorted by path."""

    async def heads(self, paths: Sequence[str], *, limit: int) -> list[FileHead | None]:
        """Read the first *limit* bytes of many files; None for a file that cannot be read."""

    async def edit(
        self, path: str, change: Callable[[bytes | None], bytes], *, limit: int
    ) -> EditedFile:
        """
        Replace a file by the result of *change*, or create it.

        *change* gets the content, or None if there is no file. The file is locked meanwhile.
        *change* runs in a thread and may raise ToolFailure. A file of more than *limit* bytes is
        refused.
        """

    async def entries(
        self,
        path: str = ".",
        *,
        recursive: bool = False,
        hidden: bool = True,
        limit: int,
    ) -> FolderListing:
        """
        List a folder.

        With *recursive*, list the folders below it too. Without *hidden*, omit names that begin
        with a dot.
        """

    async def stat(self, path: str) -> Item:
        """Return the item at a path."""

    async def make_folder(self, path: str) -> str:
        """Create a folder and its parents; an existing folder is no error."""

    async def delete(self, path: str, *, recursive: bool = False) -> bool:
        """Delete a file, or with *recursive* a folder; return whether it existed."""

    async def usage(self) -> WorkspaceUsage:
        """Return the storage that the tenant uses now."""

    async def room(self) -> WorkspaceUsage:
        """Return how much more the tenant may store; negative if it is above its quota."""

    async def real_path(self) -> Path:
        """
        Return the real path of the directory, for a program that is confined to it.

        Use the methods above for everything else; they follow no links.
        """

    def area(self, name: str) -> "Workspace":
        """
        Return a directory beside the tenant's workspace, for the files of a pack.

        No path of the workspace leads there. It shares the tenant's quota. *name* is the pack's.
        """

    def folder(self, path: str, shown_path: str) -> "Workspace":
        """
        Return a folder of the workspace as a workspace of its own.

        No path leads out of it. Tools show its paths with the prefix *shown_path* (`/name/`), and
        accept them with this prefix.
        """

    async def in_cache(self, work: Callable[[Path, threading.Event], T]) -> T:
        """
        Run blocking *work* in a thread, in a directory that no tool's path can reach.

        The directory does not count against the quota and may be deleted at any time. Use it for
        what can be made again from the files. The event is set when the call no longer waits.
        """


class ChangeNotifier(Protocol):
    """Publishes changes to the tenant's clients, on every replica."""

    async def listed(self, list_name: ListName) -> None:
        """Publish that a list changed."""

    async def updated(self, uri: str) -> None:
        """Publish that the content of a resource changed."""


class NoSubscribers:
    """Publishes nothing, for a server without subscriptions."""

    async def listed(self, list_name: ListName) -> None:
        """Do nothing."""

    async def updated(self, uri: str) -> None:
        """Do nothing."""


NO_SUBSCRIBERS = NoSubscribers()


class SealedStore(Protocol):
    """
    Confidential values that a pack stores for a tenant.

    They are encrypted at rest and redacted from every answer and log, like the tenant's secrets.
    Agents cannot refer to them. Names have 1 to 200 characters of a-z, 0-9 and _, start with a
    letter, and begin with the pack's name.
    """

    async def put(self, name: str, value: str) -> None:
        """Store a value of at most 64 KiB durably; raises ToolFailure if that fails."""

    async def get(self, name: str) -> str | None:
        """Return the value or None; raises ToolFailure if it cannot be decrypted."""

    async def delete(self, name: str) -> bool:
        """Delete the value; return whether it existed."""


class Upload(msgspec.Struct, frozen=True):
    """One file of a multipart form."""

    name: str
    """The name of the form's field."""
    filename: str
    data: bytes
    content_type: str = "application/octet-stream"


class OutboundReply(msgspec.Struct, frozen=True):
    """The answer of another server, as far as it was read."""

    status: int
    headers: Mapping[str, str]
    """By lower-case names."""
    body: bytes
    """Decompressed."""
    truncated: bool
    """Whether there was more than *max_bytes*."""
    url: str
    """The final URL, after redirects."""


class Sending(TypedDict, total=False):
    """The options of a request; use only one of json, content, or form with uploads."""

    params: Mapping[str, Any]
    headers: Mapping[str, str]
    json: Any
    form: Mapping[str, Any]
    uploads: Sequence[Upload]
    """With *form*: one multipart form."""
    content: bytes
    timeout_s: float
    """The time limit for the whole request, redirects included; default 30."""
    max_bytes: int
    """The number of bytes at which the body is cut; default 1,000,000."""
    redirects: int
    """
    How many redirects are followed; default 0. Secrets are sent only to the original host. A
    redirect that would take them to another one, or from https to http, is returned as the answer.
    """
    before: Callable[[str], Awaitable[None]]
    """Awaited with the URL of each hop before it is requested; an exception ends the request."""
    confidential: bool
    """Whether the URL or the parameters hold a secret; then http to a public host is refused.

    Headers and bodies always count as secret.
    """


class Outbound(Protocol):
    """
    HTTP to other servers: only public addresses and the hosts in `[network] allow_hosts`.

    Every answer is an OutboundReply, with any status. Without an answer, ToolFailure has a message
    for the agent: "denied" for an address or URL that is not allowed, "upstream_unavailable" for a
    server that cannot be reached, or "timeout".
    """

    async def send(self, method: str, url: str, **options: Unpack[Sending]) -> OutboundReply:
        """Send one request with the call's correlation id, and return the answer."""

    async def addresses(self, scheme: str, host: str, port: int) -> Sequence[str]:
        """
        Return the addresses of *host* for a program that connects by itself.

        *scheme* is `https`, `http`, `ssh` or `smtp`. The program must use these addresses and must
        not look the name up itself. Raises ToolFailure as `send` does.
        """


class SignedHeaders(msgspec.Struct, frozen=True):
    """The headers that sign a request in."""

    headers: Mapping[str, str]
    """By lower-case names; the values are secrets and are in the tenant's redaction set."""
    version: str = ""
    """Changes whenever the credential is renewed; connections and sessions are keyed by it."""

    def __repr__(self) -> str:
        return f"<SignedHeaders {', '.join(self.headers)}>"
