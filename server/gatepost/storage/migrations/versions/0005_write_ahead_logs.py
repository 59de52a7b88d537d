"""Remove the table of batches: they are in write-ahead logs beside the SQLite file."""

import sqlalchemy as sa
from alembic import op

from gatepost.storage.errors import StoreRefused

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Remove the table, and the ends of its batches."""
    if op.get_bind().execute(sa.text("SELECT count(*) FROM audit_batches")).scalar():
        # A server that is stopped and not killed leaves no batches.
        raise StoreRefused(
            "the database has audit records that its server did not move into their tables: start "
            "the version that wrote them once more, and stop it"
        )
    op.drop_table("audit_batches")
    op.execute("DELETE FROM audit_heads WHERE tenant = ''")
