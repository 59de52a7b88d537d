"""The record of what happened, and the proofs that it is whole."""

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make its tables."""
