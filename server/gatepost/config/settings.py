"""All settings, as frozen values; docs/settings.md has a heading for each."""

from typing import Literal

from gatepost.config.approvals import ApprovalsSettings
from gatepost.config.audit import AuditSettings
from gatepost.config.credentials import CredentialSettings
from gatepost.config.dashboard import DashboardSettings
from gatepost.config.limits import LimitsSettings
from gatepost.config.metrics_address import Address, read_address
from gatepost.config.pack_registration import registrations
from gatepost.config.packs import Packs
from gatepost.config.settings_table import SettingsTable
from gatepost.config.telemetry import LogFormat, LogLevel, TelemetrySettings
from gatepost.config.upstreams import AgentSettings, UpstreamSettings, UpstreamsFile
from gatepost_authz.config import Issuer, Network

Mode = Literal["production", "development"]

METRICS = "127.0.0.1:9464"
LEAVE_S = 5.0

STDIO = "stdio"
"""
The issuer of the caller of `gatepost stdio`. It is not a URL, so no token issuer can have this name
and no other caller reaches this caller's state.
"""


class Listen(SettingsTable, frozen=True, kw_only=True):
    """Where the server listens, and which proxies and origins it trusts."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = 8000
    """The port to listen on."""
    workers: int = 1
    """Number of server processes; they share the socket and need a key ring."""
    tls_certificate: str = ""
    """
    A PEM file with the certificate chain; with `tls_key` the server terminates TLS itself. After
    `SIGHUP`, new connections get the certificate that the file holds then.
    """
    tls_key: str = ""
    """A PEM file with the certificate's private key."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks (CIDR) of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are trusted."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the server, exactly as browsers send them."""
    metrics: str | None = None
    """
    The address (`HOST:PORT`) of `/metrics`. It has no authentication: any client that reaches it
    can read it. `""` turns it off. Default: `127.0.0.1:9464`; in development it is off.
    """
    drain_s: int = 30
    """Seconds that running calls may take to finish after SIGTERM and `leave_s`."""
    leave_s: float | None = None
    """
    Seconds for which the server still accepts connections after SIGTERM while `/readyz` is 503, so
    that load balancers stop sending requests first. Default: 5; in development 0.
    """


class KeySettings(SettingsTable, frozen=True, kw_only=True):
    """The keys that sign and encrypt what the server issues and stores."""

    ring: str = ""
    """
    The key ring, as `file:PATH`; `gatepost keyring new` creates one. It is required in production
    and for storing tenants' secrets, which it encrypts. `env:NAME` reads the content of such a file
    from an environment variable; a rotated key ring then needs a restart.
    """
    group_read: bool = False
    """
    Whether the file's group may read the key ring, as in a Secret volume of Kubernetes with
    `fsGroup` and mode 0440. Every member of the group can then sign and decrypt as the server.
    """


class TenancySettings(SettingsTable, frozen=True, kw_only=True):
    """Which tenants exist."""

    create_on_first_use: bool | None = None
    """Whether tenants that no setting names are accepted; default: only in development."""
    tenants: tuple[str, ...] = ()
    """Tenant ids that exist in addition to those that the issuers' settings name."""
    suspended: tuple[str, ...] = ()
    """Ids of suspended tenants, whose callers are refused although their tokens are valid."""


class ChallengeSettings(SettingsTable, frozen=True, kw_only=True):
    """The challenge that a refused client gets."""

    error_without_credentials: bool = True
    """Whether the challenge has `error="invalid_token"` even if no token was sent."""


class ScopesSettings(SettingsTable, frozen=True, kw_only=True):
    """Which scopes requests need, and which scopes imply others."""

    baseline: tuple[str, ...] = ()
    """Scopes that every request needs; every challenge and the metadata name them."""
    request: tuple[str, ...] = ()
    """
    Scopes that clients are told to request but that tokens need not have, such as `openid`. Every
    challenge and the metadata name them.
    """
    obtainable: tuple[str, ...] | None = None
    """Scopes that a caller may request from its issuer; default: those of all enabled tools."""
    implied: dict[str, tuple[str, ...]] = {}
    """Scope = the scopes that it implies."""
    admin: str = ""
    """
    The scope for `/v1/mcp-servers`, `/v1/agents` and `/v1/capabilities`, such as `gatepost:admin`.
    Without it, these routes do not exist.
    """

    @property
    def named(self) -> tuple[str, ...]:
        """Return the scopes that every challenge names."""
        return tuple(dict.fromkeys((*self.baseline, *self.request)))


class StorageSettings(SettingsTable, frozen=True, kw_only=True):
    """The database and the shared store."""

    database: str = "sqlite:///gatepost.db"
    """
    `sqlite:///PATH`, `postgresql://…`, or `memory:`, which loses everything when the process ends.
    Or a reference to it (`env:NAME` or `file:PATH`): production accepts no password in this file.
    """
    shared: str = ""
    """
    `redis://…` of a Valkey or Redis (from 7) that connects several processes, or a reference to it
    (`env:NAME` or `file:PATH`). A single process needs none.
    """


class WorkspaceSettings(SettingsTable, frozen=True, kw_only=True):
    """Where tools store files."""

    root: str = "workspaces"
    """
    The folder that holds one folder per tenant. If no enabled pack stores files, it need not exist
    and need not be writable.
    """
    quota_bytes: int = 1_000_000_000
    """Maximum size of all files of one tenant; tools may still delete files when it is reached."""
    quota_files: int = 100_000
    """Maximum number of files and folders of one tenant."""


class ToolsSettings(SettingsTable, frozen=True, kw_only=True):
    """Which tools are served, and the limits of their time and results."""

    load: tuple[str, ...] = ()
    """Files (`./invoices.py`) or modules (`acme.tools`) that hold packs."""
    packs: tuple[str, ...] = ()
    """Built-in packs to enable, and packs that other installed distributions register."""
    timeout_s: float = 30.0
    """Seconds that a tool may run if it declares no timeout itself."""
    max_result_bytes: int = 4_000_000
    """
    Maximum size of a result in bytes. A longer result is truncated and says so. A text that MCP
    clients get twice, in `content` and as the `result` of `structuredContent`, counts once. A page
    of `resources/list` ends before it is longer, and the next page continues.
    """


class TasksSettings(SettingsTable, frozen=True, kw_only=True):
    """Calls that continue as tasks (`task_support` of a tool)."""

    ttl_s: float = 3600.0
    """Seconds that a task is kept, in addition to the time that its tool may run."""
    poll_interval_s: float = 1.0
    """Seconds that a client is asked to wait between two polls of a task."""
    max_per_caller: int = 32
    """Maximum number of running tasks of one caller."""
    lease_s: float = 20.0
    """Seconds without a renewal after which another process takes over a task."""


class RetentionSettings(SettingsTable, frozen=True, kw_only=True):
    """How long outcomes are kept."""

    once_s: float = 86_400.0
    """
    Seconds for which a retry with the same `Idempotency-Key` gets the stored outcome. After that,
    the same key starts a new call.
    """


class McpSettings(SettingsTable, frozen=True, kw_only=True):
    """Settings of the MCP endpoint."""

    page_size: int = 500
    """Number of tools, resources or prompts on one page of a list."""


class LogSettings(SettingsTable, frozen=True, kw_only=True):
    """Level and format of the log, which goes to standard error."""

    level: LogLevel = "info"
    """
    The lowest level that is logged; requests are `info`. `debug` adds an event for each MCP request
    and each call, with method, id, tool, duration and outcome.
    """
    format: LogFormat = "json"
    """`json` for machines, `console` for people."""

    @property
    def requests(self) -> bool:
        """Return whether each request is logged."""
        return self.level in {"debug", "info"}


class StdioSettings(SettingsTable, frozen=True, kw_only=True):
    """The caller of `gatepost stdio`: it has no token, so you define the caller here."""

    tenant: str = ""
    """The caller's tenant; there is no default."""
    subject: str = ""
    """The caller's subject within its tenant."""
    scopes: tuple[str, ...] = ()
    """The caller's scopes; implied scopes are added."""
    roles: tuple[str, ...] = ()
    """The caller's roles."""


class Config(SettingsTable, frozen=True, kw_only=True):
    """The whole configuration."""

    resource: str
    """The URL that clients call, and the tokens' audience. May contain `{tenant}`."""
    mode: Mode = "production"
    """`development` allows plain http on loopback, and nothing else."""
    listen: Listen = Listen()
    keys: KeySettings = KeySettings()
    network: Network = Network()
    issuers: tuple[Issuer, ...] = ()
    """The identity providers whose tokens are accepted, one `[[issuers]]` table each."""
    tenancy: TenancySettings = TenancySettings()
    challenge: ChallengeSettings = ChallengeSettings()
    scopes: ScopesSettings = ScopesSettings()
    storage: StorageSettings = StorageSettings()
    workspace: WorkspaceSettings = WorkspaceSettings()
    tools: ToolsSettings = ToolsSettings()
    packs: Packs = Packs()
    upstreams: tuple[UpstreamSettings, ...] = ()
    """MCP servers behind this gate, one `[[upstreams]]` table each."""
    upstreams_file: UpstreamsFile = UpstreamsFile()
    agents: tuple[AgentSettings, ...] = ()
    """The tools that the clients with one client id see, one `[[agents]]` table each."""
    credentials: dict[str, CredentialSettings] = {}
    """
    The credentials that Gatepost signs in with at other servers, one `[credentials.NAME]` table
    each.
    """
    mcp: McpSettings = McpSettings()
    tasks: TasksSettings = TasksSettings()
    retention: RetentionSettings = RetentionSettings()
    approvals: ApprovalsSettings = ApprovalsSettings()
    dashboard: DashboardSettings = DashboardSettings()
    limits: LimitsSettings = LimitsSettings()
    audit: AuditSettings = AuditSettings()
    log: LogSettings = LogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    stdio: StdioSettings = StdioSettings()

    @property
    def development(self) -> bool:
        """Return whether plain http on loopback is allowed."""
        return self.mode == "development"

    @property
    def stores_files(self) -> bool:
        """Return whether an enabled pack that is registered by name uses workspaces."""
        registered = registrations().packs
        return any(
            registered[name].registration.stores_files
            for name in self.tools.packs
            if name in registered
        )

    @property
    def has_upstreams(self) -> bool:
        """Return whether tenants can have MCP servers and agents."""
        in_file = self.upstreams or self.upstreams_file.path or self.agents
        return bool(in_file or self.scopes.admin)

    @property
    def metrics_address(self) -> Address | None:
        """Return the address of `/metrics`, None if it is off; ValueError if it is invalid."""
        written = self.listen.metrics
        if written is None:
            written = "" if self.development else METRICS
        return read_address(written) if written else None

    @property
    def leave_s(self) -> float:
        """Return for how many seconds the server accepts connections after SIGTERM."""
        chosen = self.listen.leave_s
        return (0.0 if self.development else LEAVE_S) if chosen is None else chosen

    @property
    def creates_tenants(self) -> bool:
        """Return whether tenants that no setting names are accepted."""
        chosen = self.tenancy.create_on_first_use
        return self.development if chosen is None else chosen
