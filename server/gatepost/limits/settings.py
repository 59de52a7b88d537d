"""What tenants and tools may do: a part of `[limits]`."""

from gatepost.table import Table


class TenantAllowance(Table, frozen=True, kw_only=True):
    """What one tenant may do, all its callers together and over all replicas."""

    requests_per_second: float = 0.0
    """Calls a second that all callers of one tenant may keep up together; 0: any."""
    burst: int = 0
    """Calls that they may make at once after a pause; 0: what two seconds bring."""
    concurrency: int = 200
    """Calls of one tenant that may run at once, tasks included; 0: any number."""


class ToolAllowance(Table, frozen=True, kw_only=True):
    """What one tenant may do with one tool, for each tool."""

    requests_per_second: float = 0.0
    """Calls a second of one tool that one tenant may keep up; 0: any."""
    burst: int = 0
    """Calls of it that the tenant may make at once after a pause; 0: what two seconds bring."""
    concurrency: int = 0
    """Calls of it that may run at once for one tenant; 0: any number."""


class NamedToolAllowance(Table, frozen=True, kw_only=True):
    """The same for one tool by its name, as in `[limits.tools.script_exec]`."""

    requests_per_second: float | None = None
    """As in `[limits.tool]`, for the tool of that name; default: what that table says."""
    burst: int | None = None
    """As in `[limits.tool]`, for the tool of that name; default: what that table says."""
    concurrency: int | None = None
    """As in `[limits.tool]`, for the tool of that name; default: what that table says."""
