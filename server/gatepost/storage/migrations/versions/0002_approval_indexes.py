"""Index the approval requests in the order in which they are listed."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

TABLE = "approval_requests"
WAITING, PAST = "state = 'waiting'", "state <> 'waiting'"
OPEN = "state IN ('waiting', 'approved')"


def upgrade() -> None:
    """Replace the indexes by state with partial ones."""
    waiting = ["tenant", "created_at", "id", "issuer", "subject", "subject_kind", "state"]
    _create_index("approval_requests_waiting", waiting, WAITING)
    _create_index("approval_requests_history", ["tenant", "changed_at", "id"], PAST)
    _create_index("approval_requests_open", ["tenant", "id", "state"], OPEN)
    _create_index("approval_requests_until", ["until"], OPEN)
    op.drop_index("approval_requests_tenant_state_changed_at", TABLE)
    op.drop_index("approval_requests_tenant_state_created_at_id", TABLE)
    op.drop_index("approval_requests_state_until", TABLE)


def _create_index(name: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, TABLE, columns, sqlite_where=where, postgresql_where=where)
