"""Create the table of batches of audit records that are not merged yet."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create the table; only SQLite has rows in it."""
    op.create_table(
        "audit_batches",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("writer", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("previous", sa.LargeBinary, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("batch", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
