"""What waits for a person, and what was decided."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make its tables."""
    op.create_table(
        "approvals",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("meets", sa.LargeBinary),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("issuer", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("subject_kind", sa.Text, nullable=False),
        sa.Column("client_id", sa.Text),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("until", sa.Double, nullable=False),
        sa.Column("changed_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("details", sa.LargeBinary, nullable=False),
        sa.Column("sealed", sa.Text),
        sa.Column("revision", sa.Integer, nullable=False),
    )
    op.create_index(op.f("approvals_tenant_meets"), "approvals", ["tenant", "meets"], unique=True)
    op.create_index(
        op.f("approvals_tenant_state_changed_at"), "approvals", ["tenant", "state", "changed_at"]
    )
    op.create_index(op.f("approvals_state_until"), "approvals", ["state", "until"])
    op.create_table(
        "grants",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("issuer", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("subject_kind", sa.Text, nullable=False),
        sa.Column("client_id", sa.Text),
        sa.Column("remaining", sa.Integer),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("details", sa.LargeBinary, nullable=False),
    )
    op.create_index(
        op.f("grants_tenant_tool_issuer_subject"), "grants", ["tenant", "tool", "issuer", "subject"]
    )
    for table in ("approvals", "grants"):
        op.create_index(op.f(f"{table}_expires_at"), table, ["expires_at"])
