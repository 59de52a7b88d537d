"""What another system is still to be told."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Make its table."""
    op.create_table(
        "notices",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("about", sa.Text, nullable=False),
        sa.Column("place", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("made_at", sa.Double, nullable=False),
        sa.Column("due_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
    )
    op.create_index(op.f("notices_tenant_about"), "notices", ["tenant", "about"])
    op.create_index(op.f("notices_due_at"), "notices", ["due_at"])
    op.create_index(op.f("notices_expires_at"), "notices", ["expires_at"])
