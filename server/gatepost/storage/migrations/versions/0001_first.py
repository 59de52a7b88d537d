"""Create all tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create every table with its indexes."""
    _create_tasks()
    _create_idempotency_records()
    _create_sessions()
    _create_entries()
    _create_approval_requests()
    _create_grants()
    _create_outbox_messages()
    _create_revocations()
    _create_audit_segments()
    _create_audit_heads()
    _create_audit_checkpoints()
    _create_audit_sums()


def _create_tasks() -> None:
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
        sa.Column("bytes", sa.BigInteger),
    )
    op.create_index("tasks_expires_at", "tasks", ["expires_at"])
    op.create_index("tasks_status_leased_until", "tasks", ["status", "leased_until"])
    op.create_index("tasks_tenant_owner_status", "tasks", ["tenant", "owner", "status"])
    op.create_index("tasks_usage", "tasks", ["tenant", "owner", "expires_at", "bytes"])


def _create_idempotency_records() -> None:
    op.create_table(
        "idempotency_records",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("key", sa.LargeBinary, primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("leased_until", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("outcome", sa.LargeBinary),
        sa.Column("owner", sa.LargeBinary),
        sa.Column("bytes", sa.BigInteger),
    )
    op.create_index("idempotency_records_expires_at", "idempotency_records", ["expires_at"])
    op.create_index(
        "idempotency_records_usage",
        "idempotency_records",
        ["tenant", "owner", "expires_at", "bytes"],
    )


def _create_sessions() -> None:
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
    op.create_index("sessions_expires_at", "sessions", ["expires_at"])


def _create_entries() -> None:
    op.create_table(
        "entries",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("subject", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.LargeBinary),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
    )
    op.create_index("entries_expires_at", "entries", ["expires_at"])


def _create_approval_requests() -> None:
    op.create_table(
        "approval_requests",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("binding", sa.LargeBinary),
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
    op.create_index("approval_requests_expires_at", "approval_requests", ["expires_at"])
    op.create_index("approval_requests_state_until", "approval_requests", ["state", "until"])
    op.create_index(
        "approval_requests_tenant_binding", "approval_requests", ["tenant", "binding"], unique=True
    )
    op.create_index(
        "approval_requests_tenant_state_changed_at",
        "approval_requests",
        ["tenant", "state", "changed_at"],
    )
    op.create_index(
        "approval_requests_tenant_state_created_at_id",
        "approval_requests",
        ["tenant", "state", "created_at", "id"],
    )


def _create_grants() -> None:
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
    op.create_index("grants_expires_at", "grants", ["expires_at"])
    op.create_index(
        "grants_tenant_tool_issuer_subject", "grants", ["tenant", "tool", "issuer", "subject"]
    )


def _create_outbox_messages() -> None:
    op.create_table(
        "outbox_messages",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("ordering_key", sa.Text, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("due_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
    )
    op.create_index("outbox_messages_due_at", "outbox_messages", ["due_at"])
    op.create_index("outbox_messages_expires_at", "outbox_messages", ["expires_at"])
    op.create_index(
        "outbox_messages_tenant_ordering_key", "outbox_messages", ["tenant", "ordering_key"]
    )


def _create_revocations() -> None:
    op.create_table(
        "revocations",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("issuer", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("client", sa.Text, nullable=False),
        sa.Column("suspends", sa.Boolean, nullable=False),
        sa.Column("before", sa.Double, nullable=False),
        sa.Column("undated_until", sa.Double, nullable=False),
        sa.Column("blocked_until", sa.Double, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Double),
    )
    op.create_index("revocations_expires_at", "revocations", ["expires_at"])


def _create_audit_segments() -> None:
    op.create_table(
        "audit_segments",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("writer", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("last", sa.BigInteger, nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.Column("counts", sa.Text, nullable=False),
        sa.Column("records", sa.Text, nullable=False),
    )
    op.create_index(
        "audit_segments_order", "audit_segments", ["tenant", "until", "writer", "first"]
    )


def _create_audit_heads() -> None:
    op.create_table(
        "audit_heads",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("writer", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("pruned", sa.BigInteger, nullable=False),
        sa.Column("proof", sa.Text, nullable=False),
    )


def _create_audit_checkpoints() -> None:
    op.create_table(
        "audit_checkpoints",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("statement", sa.Text, nullable=False),
        sa.Column("signature", sa.Text, nullable=False),
    )


def _create_audit_sums() -> None:
    op.create_table(
        "audit_sums",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("hour", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("writer", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("tool", sa.Text, primary_key=True),
        sa.Column("outcome", sa.Text, primary_key=True),
        sa.Column("limited_by", sa.Text, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("audit_sums_expires_at", "audit_sums", ["expires_at"])
