"""Create the index of waiting approval requests."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the index by which pages of them are read."""
    op.create_index(
        "approval_requests_tenant_state_created_at_id",
        "approval_requests",
        ["tenant", "state", "created_at", "id"],
    )
