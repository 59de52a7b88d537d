"""Who may not call any more, whatever token it shows."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the table of cut-offs."""
    op.create_table(
        "cutoffs",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("issuer", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("client", sa.Text, nullable=False),
        sa.Column("suspends", sa.Boolean, nullable=False),
        sa.Column("before", sa.Double, nullable=False),
        sa.Column("undated_until", sa.Double, nullable=False),
        sa.Column("blocked_until", sa.Double, nullable=False),
        sa.Column("made_at", sa.Double, nullable=False),
        sa.Column("made_by", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Double),
    )
    op.create_index(op.f("cutoffs_expires_at"), "cutoffs", ["expires_at"])
