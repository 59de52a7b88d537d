"""The record of what happened, and the proofs that it is whole."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make its tables."""
    op.create_table(
        "audit_records",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("subject", sa.Text),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("side", sa.Text),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("audit_records_tenant_at"), "audit_records", ["tenant", "at"])
    op.create_table(
        "audit_heads",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("pruned", sa.BigInteger, nullable=False),
        sa.Column("checkpoint", sa.BigInteger, nullable=False),
        sa.Column("seal", sa.LargeBinary, nullable=False),
        sa.Column("proof", sa.Text, nullable=False),
    )
    op.create_table(
        "audit_checkpoints",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("statement", sa.Text, nullable=False),
        sa.Column("signature", sa.Text, nullable=False),
    )
