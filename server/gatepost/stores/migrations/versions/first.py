"""Tasks, retry keys and sessions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the first three tables."""
    op.create_table(
        "tasks",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("owner", sa.LargeBinary, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("call", sa.LargeBinary, nullable=False),
        sa.Column("status_message", sa.Text),
        sa.Column("requests", sa.LargeBinary),
        sa.Column("answers", sa.LargeBinary),
        sa.Column("result", sa.LargeBinary),
        sa.Column("error", sa.LargeBinary),
        sa.Column("cancelled", sa.Boolean, nullable=False),
        sa.Column("runner", sa.Text, nullable=False),
        sa.Column("leased_until", sa.Double, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
    )
    op.create_table(
        "claims",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("key", sa.LargeBinary, primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("leased_until", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("outcome", sa.LargeBinary),
    )
    op.create_table(
        "sessions",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("key", sa.LargeBinary, primary_key=True),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("ended", sa.Boolean, nullable=False),
        sa.Column("log_level", sa.Text),
        sa.Column("subscriptions", sa.LargeBinary, nullable=False),
        sa.Column("listener", sa.Text, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
    )
    for table in ("tasks", "claims", "sessions"):
        op.create_index(op.f(f"{table}_expires_at"), table, ["expires_at"])
    op.create_index(op.f("tasks_tenant_owner_status"), "tasks", ["tenant", "owner", "status"])
    op.create_index(op.f("tasks_status_leased_until"), "tasks", ["status", "leased_until"])
