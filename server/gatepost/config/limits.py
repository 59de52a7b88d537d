"""The settings of `[limits]`, and of `[limits.tenant]`, `[limits.tool]` and `[limits.tools]`."""

from gatepost.config.settings_table import SettingsTable


class TenantLimitSettings(SettingsTable, frozen=True, kw_only=True):
    """Limits of one tenant, for all its callers together and over all replicas."""

    requests_per_second: float = 0.0
    """Requests per second of all callers of one tenant together; 0: unlimited."""
    burst: int = 0
    """Requests that they may send at once after a pause; 0: the requests of two seconds."""
    concurrency: int = 200
    """Calls of one tenant that may run at once, tasks included; 0: unlimited."""
    stored_bytes: int = 1_000_000_000
    """As `limits.stored_bytes`, for all callers of a tenant together; 0: unlimited."""
    audit_bytes_per_day: int = 10_000_000_000
    """As `limits.audit_bytes_per_day`, for all callers of a tenant together; 0: unlimited."""


class ToolLimitSettings(SettingsTable, frozen=True, kw_only=True):
    """Limits of one tenant's calls of one tool, for each tool."""

    requests_per_second: float = 0.0
    """Calls per second of one tool by one tenant; 0: unlimited."""
    burst: int = 0
    """Calls of the tool that the tenant may make at once after a pause; 0: those of two seconds."""
    concurrency: int = 0
    """Calls of the tool that may run at once for one tenant; 0: unlimited."""


class NamedToolLimitSettings(SettingsTable, frozen=True, kw_only=True):
    """Limits of one named tool, as in `[limits.tools.script_exec]`."""

    requests_per_second: float | None = None
    """As in `[limits.tool]`, for the named tool; default: the value of that table."""
    burst: int | None = None
    """As in `[limits.tool]`, for the named tool; default: the value of that table."""
    concurrency: int | None = None
    """As in `[limits.tool]`, for the named tool; default: the value of that table."""


class LimitsSettings(SettingsTable, frozen=True, kw_only=True):
    """Limits of requests, calls, sizes, connections and failed authentications."""

    requests_per_second: float = 10.0
    """Requests per second of one caller; calls, lists and polls count together; 0: unlimited."""
    burst: int = 20
    """Requests that a caller may send at once after a pause."""
    concurrency: int = 1000
    """Calls that run at once in one process; further calls wait in a queue; 0: unlimited."""
    queue: int = 100
    """Calls of one tenant that may wait in that queue; further calls are refused."""
    queue_s: float = 5.0
    """Seconds that a call waits in that queue before it is refused."""
    stored_bytes: int = 256_000_000
    """
    Bytes that the tasks of one caller and the outcomes of its calls with an idempotency key may
    take in the database; 0: unlimited.
    """
    audit_bytes_per_day: int = 1_000_000_000
    """
    Bytes of audit records that one caller may cause per day, and may save up during a pause. Beyond
    it, the caller's calls are refused before they run; 0: unlimited.
    """
    failures_per_second: float = 20.0
    """
    Failed authentications per second and peer address. Beyond it, new tokens from the address are
    refused for a while; tokens that were accepted before still pass; 0 turns this off.
    """
    cached_tokens: int = 20_000
    """
    Accepted tokens that one process remembers, so that it need not check their signatures again.
    Each takes about 2 kB of memory; 0: every request is checked.
    """
    max_body_bytes: int = 4_000_000
    """Maximum size of a request body, in bytes."""
    max_body_values: int = 40_000
    """Maximum number of values in a body: members and items of all its objects and lists."""
    max_header_bytes: int = 32_768
    """Maximum size of all header names and values, without the Authorization header."""
    header_timeout_s: float = 10.0
    """
    Seconds from the connection, or from the previous answer, until a request's headers are
    complete. If the server terminates TLS itself, the handshake gets the same time before that.
    """
    body_timeout_s: float = 30.0
    """Seconds until a request's body is complete."""
    unread_bytes: int = 256_000_000
    """
    Bytes of unread answers that one process keeps. Beyond it, the caller with the most unread bytes
    loses the connection that has waited longest; 0: unlimited.
    """
    unread_bytes_per_caller: int = 64_000_000
    """The same for one caller (for one address if there is no token); 0: unlimited."""
    read_bytes_per_second: int = 500
    """
    Bytes per second that a client has to read of an answer, on average over 30 seconds; otherwise
    its connection ends. 0: any speed, as long as the client keeps reading.
    """
    listen_streams: int = 20_000
    """Event streams that one process keeps open; further ones are refused."""
    listen_streams_per_caller: int = 50
    """Event streams that one caller may keep open at one process. Answers that a client of an older
    revision gets as a stream count too."""
    client_requests_per_caller: int = 20
    """Requests to one caller's clients and people (older revisions) that may be unanswered."""
    client_request_timeout_s: float = 300.0
    """Seconds that such a request waits; the tool's timeout is paused meanwhile."""
    tenant: TenantLimitSettings = TenantLimitSettings()
    tool: ToolLimitSettings = ToolLimitSettings()
    tools: dict[str, NamedToolLimitSettings] = {}
    """Tool = its own limits, one `[limits.tools.NAME]` table each."""
