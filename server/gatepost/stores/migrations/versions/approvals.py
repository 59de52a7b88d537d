"""What waits for a person, and what was decided."""

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make its tables."""
