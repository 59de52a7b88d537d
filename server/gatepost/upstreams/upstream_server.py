"""Describe a registered MCP server, as an operator or an administrator has entered it."""

from collections.abc import Mapping
from typing import Literal

import msgspec

Transport = Literal["http", "stdio"]
Status = Literal["active", "disabled"]
Pin = Literal["off", "first", "review"]
Allowed = Literal["elicitation", "sampling", "roots", "logging"]

MAX_NAME = 255
MAX_DESCRIPTION = 10_240
MAX_URL = 2_048
MAX_HEADERS = 100


class StdioProgram(msgspec.Struct, frozen=True, kw_only=True):
    """The program of a stdio server; only the operator's configuration has one."""

    command: str
    """An absolute path, or a name that is looked up in the server's PATH."""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    """The environment; a value is literal text or `secret:NAME` of the tenant."""
    reads: tuple[str, ...] = ()
    """Folders and files that it may read beside those of the system."""
    writes: tuple[str, ...] = ()
    """Folders that it may also write."""
    network: bool = False
    """Whether it may connect to other machines."""
    per: Literal["tenant", "person"] = "tenant"
    """Whether each tenant or each caller has a process of its own."""
    memory_bytes: int = 1_000_000_000
    processes: int = 64
    idle_s: float = 300.0
    """Seconds without a call after which the process ends."""


class UpstreamServer(msgspec.Struct, frozen=True, kw_only=True):
    """One MCP server of one tenant, as it is registered; it holds no secret."""

    id: str
    """A UUID, also for servers of the configuration (then made from tenant and name)."""
    tenant: str
    name: str
    description: str = ""
    transport: Transport = "http"
    url: str = ""
    status: Status = "active"
    api_key_set: bool = False
    """Whether it has an API key, which is stored encrypted."""
    header_names: tuple[str, ...] = ()
    """Names of its own headers, whose values are stored encrypted."""
    credential: str = ""
    """The name of a `[credentials.NAME]` table, instead of an API key."""
    list_credential: str = ""
    """The credential with which the catalogue is fetched; empty: the same."""
    catalogue: Literal["shared", "person"] = "shared"
    """Whether it shows each person different tools."""
    scopes: Mapping[str, tuple[str, ...]] = {}
    """Pattern of its own tool names = the scopes that these need; unmatched: `mcp:{name}`."""
    tools: tuple[str, ...] = ()
    """Patterns of the tools that are offered, `!` excludes; empty: all of them."""
    renames: Mapping[str, str] = {}
    """Its own tool name = the name behind `mcp_{server}__`."""
    trusted: bool = False
    """Whether its annotations are trusted."""
    pin: Pin = "first"
    """
    The rule for new definitions: `first` pins those seen first, `review` asks before any is
    offered.
    """
    allow: tuple[Allowed, ...] = ("elicitation",)
    """The requests that it may send to the caller's client."""
    stateful: bool = False
    """Whether its sessions keep state, so that each caller has one of its own."""
    timeout_s: float = 60.0
    """The seconds that a call may take in total."""
    idle_s: float = 30.0
    """The seconds without a message from it, progress included, after which a call ends."""
    concurrency: int = 32
    """The number of requests that run at once at this server, in one process."""
    program: StdioProgram | None = None
    source: Literal["configuration", "api"] = "api"
    created_at: float = 0.0
    updated_at: float = 0.0
    revision: int = 1
    """Grows with each change."""


def capability(server_id: str) -> str:
    """Return the capability with which an agent gets a server's tools."""
    return f"mcp:{server_id}"
