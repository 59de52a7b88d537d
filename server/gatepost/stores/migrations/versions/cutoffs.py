"""Who may not call any more, whatever token it shows."""

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make its tables."""
