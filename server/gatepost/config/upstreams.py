"""The settings of `[[upstreams]]`, `[upstreams_file]` and `[[agents]]`."""

from typing import Literal

from gatepost.config.settings_table import SettingsTable

EVERY_TENANT = "*"
"""Stands for every tenant in a list of tenants."""


class UpstreamSettings(SettingsTable, frozen=True, kw_only=True):
    """An MCP server behind this gate; one `[[upstreams]]` table each."""

    name: str
    """The server's name, unique for each tenant; its tools are `mcp_NAME__TOOL`."""
    tenants: tuple[str, ...] = ()
    """The tenants that have the server; `["*"]` means every tenant. There is no default."""
    url: str = ""
    """The server's endpoint (Streamable HTTP), https or a host of `network.allow_hosts`."""
    command: str = ""
    """Instead of `url`: the program of a stdio server, a path or a name in the server's PATH."""
    args: tuple[str, ...] = ()
    """The program's arguments. Other users of the machine can see them, so no secrets."""
    env: dict[str, str] = {}
    """The program's environment: variable = text, or `secret:NAME` of the tenant."""
    reads: tuple[str, ...] = ()
    """Folders and files that the program can read, beside those of the system."""
    writes: tuple[str, ...] = ()
    """Folders that the program can read and write."""
    network: bool = False
    """Whether the program can connect to other machines."""
    per: Literal["tenant", "person"] = "tenant"
    """Whether each tenant or each caller has a process of its own."""
    memory_bytes: int = 1_000_000_000
    """Memory that each process of the program can use."""
    processes: int = 64
    """Processes that the program can have. The kernel bounds them unless Gatepost runs as root."""
    description: str = ""
    """The purpose of the server; people see it, agents do not."""
    api_key: str = ""
    """
    A reference (`secret:NAME` of the tenant, `env:NAME` or `file:PATH`) to a key that is sent as
    `Authorization: Bearer`.
    """
    headers: dict[str, str] = {}
    """Header = a reference to its value, as in `api_key`; sent with every request."""
    credential: str = ""
    """The `[credentials.NAME]` table to sign in with, instead of `api_key`."""
    list_credential: str = ""
    """The credential with which the catalogue is fetched; default: `credential`."""
    scopes: dict[str, tuple[str, ...]] = {}
    """
    Pattern of the server's own tool names = the scopes that callers need. The scopes of all
    patterns that match a tool count. A tool without one needs `mcp:NAME`.
    """
    tools: tuple[str, ...] = ()
    """
    Patterns of the tools that are offered: `get_*`; `!get_secret` excludes. Default: all tools.
    """
    renames: dict[str, str] = {}
    """The server's own tool name = the name after `mcp_NAME__`."""
    trusted: bool = False
    """
    Whether Gatepost trusts the server's annotations, such as `readOnlyHint`. Otherwise every tool
    counts as destructive.
    """
    pin: Literal["off", "first", "review"] = "first"
    """
    The rule for definitions: `first` serves those seen first and holds back changed ones, `review`
    also holds back new ones, `off` serves all definitions of the server. An administrator accepts
    definitions that are held back.
    """
    allow: tuple[Literal["elicitation", "sampling", "roots", "logging"], ...] = ("elicitation",)
    """The requests that the server can send to the caller's client."""
    catalogue: Literal["shared", "person"] = "shared"
    """`person` if the server shows each person other tools."""
    stateful: bool = False
    """Whether the server's sessions keep state, so that each caller gets a session of its own."""
    timeout_s: float = 60.0
    """Seconds that a call can take in all."""
    idle_s: float = 30.0
    """Seconds without a message from the server, progress included, after which a call ends."""
    program_idle_s: float = 300.0
    """Seconds without a call after which the program of a stdio server ends."""
    concurrency: int = 32
    """Requests that one process sends to the server at once; others wait."""
    status: Literal["active", "disabled"] = "active"
    """`disabled` hides the server and its tools."""


class UpstreamsFile(SettingsTable, frozen=True, kw_only=True):
    """An `mcpServers` file whose servers are upstreams too."""

    path: str = ""
    """
    A JSON file as Claude Desktop, Cursor (`mcpServers`) and VS Code (`servers`) write it.
    `${env:X}` means `env:X`, and `${input:x}` the tenant's secret `secret:X`.
    """
    tenants: tuple[str, ...] = ()
    """The tenants that have these servers; `["*"]` means every tenant. There is no default."""


class AgentSettings(SettingsTable, frozen=True, kw_only=True):
    """Which tools the clients with one client id see; one `[[agents]]` table each."""

    name: str
    """The agent's name, unique for each tenant."""
    tenants: tuple[str, ...] = ()
    """The tenants that have the agent; `["*"]` means every tenant. There is no default."""
    client_id: str = ""
    """The OAuth client id of the agent, as tokens name it; empty: the agent limits no client."""
    capabilities: tuple[str, ...] = ()
    """
    The tools that the agent sees: `mcp:NAME` (or the server's id) for an upstream, `pack:NAME`.
    """
    mode: Literal["list", "search"] = "list"
    """`search` lists `find_tools` and `call_tool` instead of all tools."""
    description: str = ""
    """The purpose of the agent."""
    icon: str = ""
    """The name of an icon, for user interfaces."""
    category: str = ""
    """A category, for user interfaces."""
