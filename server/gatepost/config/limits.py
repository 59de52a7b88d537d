"""The limits of tenants and tools: `[limits.tenant]`, `[limits.tool]`, `[limits.tools]`."""

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
