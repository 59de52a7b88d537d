"""What an operator settles about the dashboard."""

from gatepost.table import Table


class DashboardSettings(Table, frozen=True, kw_only=True):
    """The pages at `/dashboard`, beside the endpoint; who may sign in, the issuers say."""

    enabled: bool | None = None
    """Whether there is a dashboard; default: where an issuer has a `dashboard` client."""
    session_s: float = 28_800.0
    """Seconds after which a visitor signs in again, whatever they did meanwhile."""
    idle_s: float = 1_800.0
    """Seconds without a page after which a visitor signs in again."""
