"""The settings of `[dashboard]`."""

from gatepost.config.settings_table import SettingsTable


class DashboardSettings(SettingsTable, frozen=True, kw_only=True):
    """The pages at `/dashboard`; the issuers' settings define who may sign in."""

    enabled: bool | None = None
    """Whether the dashboard is served; default: only if an issuer has a `dashboard` client."""
    session_s: float = 28_800.0
    """Maximum duration of a dashboard session, in seconds."""
    idle_s: float = 1_800.0
    """Seconds without a request after which a dashboard session ends."""
