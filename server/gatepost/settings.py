"""Everything an operator can set, as frozen values; docs/settings.md has a heading for each."""

from typing import Literal

from gatepost.approvals.settings import ApprovalsSettings
from gatepost.audit.settings import AuditSettings
from gatepost.dashboard.settings import DashboardSettings
from gatepost.limits.settings import NamedToolAllowance, TenantAllowance, ToolAllowance
from gatepost.packs.settings import Packs
from gatepost.table import Table
from gatepost.telemetry.address import Address, read_address
from gatepost.telemetry.logs import LogFormat, LogLevel
from gatepost.telemetry.settings import TelemetrySettings
from gatepost_authz.config import Issuer, Network

Mode = Literal["production", "development"]

METRICS = "127.0.0.1:9464"

STDIO = "stdio"
"""
The issuer of the caller of `gatepost stdio`: no URL, so no issuer of tokens can have this name and
nobody meets this caller's state.
"""


class Listen(Table, frozen=True, kw_only=True):
    """Where the server listens and whom it believes."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = 8000
    """The port to listen on."""
    workers: int = 1
    """How many processes serve; they share the socket and need a key ring."""
    tls_certificate: str = ""
    """
    A PEM file with the certificate chain; with `tls_key` the server speaks TLS itself. After
    `SIGHUP` whoever connects is shown the one that is there then.
    """
    tls_key: str = ""
    """A PEM file with the certificate's private key."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks (CIDR) of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` count."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call, exactly as browsers send them."""
    metrics: str | None = None
    """
    The address (`HOST:PORT`) of `/metrics`, without any gate: whoever reaches it reads. `""` turns
    it off. Default: `127.0.0.1:9464`; in development it is off.
    """
    drain_s: int = 30
    """How many seconds running calls may take to finish after SIGTERM."""


class Keys(Table, frozen=True, kw_only=True):
    """The secrets that sign what this server hands out, and seal what it keeps."""

    ring: str = ""
    """
    The key ring, as `file:PATH`; `gatepost keyring new` makes one. Production needs it, and
    whoever keeps tenants' secrets: it seals them.
    """


class TenancySettings(Table, frozen=True, kw_only=True):
    """Which tenants there are."""

    create_on_first_use: bool | None = None
    """Whether a tenant that no setting names is accepted; default: in development only."""
    tenants: tuple[str, ...] = ()
    """Tenant ids that exist, beside those the issuers' tables and values name."""
    suspended: tuple[str, ...] = ()
    """Tenant ids whose callers are refused although their tokens are good."""


class ChallengeSettings(Table, frozen=True, kw_only=True):
    """What a refused client is told."""

    error_without_credentials: bool = True
    """Whether the challenge says `error="invalid_token"` also when no token was sent."""


class ScopesSettings(Table, frozen=True, kw_only=True):
    """What the scopes of a token mean here."""

    baseline: tuple[str, ...] = ()
    """Scopes that any request needs; named in every challenge and in the metadata."""
    obtainable: tuple[str, ...] | None = None
    """Scopes a caller may ask its issuer for; default: all that the enabled tools declare."""
    implied: dict[str, tuple[str, ...]] = {}
    """Scope = the scopes that come with it."""


class StorageSettings(Table, frozen=True, kw_only=True):
    """Where the server keeps what outlives a request."""

    database: str = "sqlite:///gatepost.db"
    """
    `sqlite:///PATH`, `postgresql://…`, or `memory:`, which forgets everything at the end. Or where
    that stands, as `env:NAME` or `file:PATH`: production accepts no password in this file.
    """
    shared: str = ""
    """
    `redis://…` of a Valkey or Redis (from 7) that connects several processes, or where that stands,
    as `env:NAME` or `file:PATH`; one process needs none.
    """


class WorkspaceSettings(Table, frozen=True, kw_only=True):
    """Where tools keep files."""

    root: str = "workspaces"
    """The folder that holds one folder per tenant."""
    quota_bytes: int = 1_000_000_000
    """What the files of one tenant may weigh together; tools may delete where it is used up."""
    quota_files: int = 100_000
    """How many files and folders one tenant may have."""


class ToolsSettings(Table, frozen=True, kw_only=True):
    """Which tools are served and how long they may take."""

    load: tuple[str, ...] = ()
    """Files (`./invoices.py`) or modules (`acme.tools`) that hold packs."""
    packs: tuple[str, ...] = ()
    """Built-in packs to enable."""
    timeout_s: float = 30.0
    """Seconds a tool may run when it declares no limit of its own."""
    max_result_bytes: int = 4_000_000
    """The size at which an outcome is cut, saying so."""


class TasksSettings(Table, frozen=True, kw_only=True):
    """What calls get that go on as tasks (`task_support` of a tool)."""

    ttl_s: float = 3600.0
    """Seconds that a task can be looked at, beyond the time its tool may run."""
    poll_interval_s: float = 1.0
    """Seconds that a client is asked to wait between two looks at a task."""
    max_per_caller: int = 32
    """Tasks of one caller that may be under way."""
    lease_s: float = 20.0
    """Seconds after which another process takes up the task of one that says nothing."""


class RetentionSettings(Table, frozen=True, kw_only=True):
    """How long what is over is kept, where no other table says it."""

    once_s: float = 86_400.0
    """
    Seconds that the outcome of a call with an `Idempotency-Key` is answered again; after them the
    same key is another call.
    """


class McpSettings(Table, frozen=True, kw_only=True):
    """What the MCP endpoint does its own way."""

    page_size: int = 500
    """How many tools, resources or prompts one page of a list holds."""


class LimitsSettings(Table, frozen=True, kw_only=True):
    """How often a caller may call, what a request may weigh, and how often a peer may fail."""

    requests_per_second: float = 10.0
    """Calls a second that one caller may keep up, tools, resources and prompts together; 0: any."""
    burst: int = 20
    """Calls that a caller may make at once after a pause."""
    concurrency: int = 1000
    """Calls that run at once in one process; beyond it they wait by turns; 0: any number."""
    queue: int = 100
    """Calls of one tenant that may wait for that; beyond it they are refused."""
    queue_s: float = 5.0
    """Seconds that a call waits for that before it is refused."""
    failures_per_second: float = 20.0
    """Failed authentications per peer address before it has to wait; 0 turns this off."""
    max_body_bytes: int = 4_000_000
    """The largest request body."""
    max_header_bytes: int = 32_768
    """The largest sum of header names and values, the Authorization header aside."""
    header_timeout_s: float = 10.0
    """
    Seconds from the connection, or an answer, until a request's headers are complete; where the
    server speaks TLS itself, as many before that for the handshake.
    """
    body_timeout_s: float = 30.0
    """Seconds until a request's body is complete."""
    listen_streams: int = 20_000
    """Streams of changes that one process holds open; beyond it, listening is refused."""
    listen_streams_per_caller: int = 50
    """Streams of changes that one caller may hold open at one process; with them count answers
    that an older revision gets as a stream."""
    questions_per_caller: int = 20
    """Questions to people and clients (older revisions) that may wait for one caller's answer."""
    question_timeout_s: float = 300.0
    """Seconds that such a question waits; the tool's own time stands still meanwhile."""
    tenant: TenantAllowance = TenantAllowance()
    tool: ToolAllowance = ToolAllowance()
    tools: dict[str, NamedToolAllowance] = {}
    """Tool = what is different for it, one `[limits.tools.NAME]` table each."""


class LogSettings(Table, frozen=True, kw_only=True):
    """What is logged, and how; the log goes to standard error."""

    level: LogLevel = "info"
    """
    The least important event that is logged; requests are `info`. `debug` adds each MCP request's
    method, id, tool, duration and outcome, and each call's.
    """
    format: LogFormat = "json"
    """`json` for machines, `console` for a person."""

    @property
    def requests(self) -> bool:
        """Whether there is a line for each request."""
        return self.level in {"debug", "info"}


class StdioSettings(Table, frozen=True, kw_only=True):
    """Whose calls `gatepost stdio` serves: there is no token, so the operator says it here."""

    tenant: str = ""
    """The caller's tenant; there is no default."""
    subject: str = ""
    """Who the caller is within its tenant."""
    scopes: tuple[str, ...] = ()
    """What the caller may do; scopes that these imply come with them."""
    roles: tuple[str, ...] = ()
    """The caller's roles."""


class Config(Table, frozen=True, kw_only=True):
    """The whole configuration."""

    resource: str
    """The URL clients call; also the audience that tokens must name. May hold `{tenant}`."""
    mode: Mode = "production"
    """`development` allows plain http on loopback, and nothing else."""
    listen: Listen = Listen()
    keys: Keys = Keys()
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
        """Whether plain http on loopback is allowed."""
        return self.mode == "development"

    @property
    def metrics_address(self) -> Address | None:
        """Where `/metrics` is served; None: nowhere. Raises ValueError where it is no address."""
        written = self.listen.metrics
        if written is None:
            written = "" if self.development else METRICS
        return read_address(written) if written else None

    @property
    def creates_tenants(self) -> bool:
        """Whether a tenant nobody named is accepted."""
        chosen = self.tenancy.create_on_first_use
        return self.development if chosen is None else chosen
