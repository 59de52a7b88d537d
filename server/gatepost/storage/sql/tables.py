"""The tables, as `migrations` creates them; every primary key begins with the tenant."""

import importlib
import re
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TextClause,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

REVISION = "0002"
"""The newest migration; these tables are equal to its result."""


def insert_into(table: Table, dialect: str) -> Any:
    """Return an INSERT of the dialect, with support for ON CONFLICT."""
    # Imported by name, so that a start need not wait for the dialect of the other database.
    return importlib.import_module(f"sqlalchemy.dialects.{dialect}").insert(table)


NOT_TEXT = "\0"
"""
The text that is read for a value that is no text. SQLite accepts any value in any column; no id has
this text.
"""


class Exact(TypeDecorator[str]):
    """
    Text that is read exactly as it was written, whatever its content.

    Ids come from callers. PostgreSQL refuses a NUL, and no database accepts half a surrogate pair.
    An id that cannot exist must be an unknown id, not an outage.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Escape what does not fit; nothing else looks like an escape."""
        return None if value is None else escaped(value)

    def process_result_value(self, value: object, dialect: Dialect) -> str | None:
        """Undo it; return `NOT_TEXT` for a value that is none."""
        if not isinstance(value, str):
            return None if value is None else NOT_TEXT
        if "\\" not in value:
            return value
        return _ESCAPE.sub(_meant, value)


def escaped(value: str) -> str:
    """Encode a text for such a column."""
    if value.isascii() and "\\" not in value and "\0" not in value:
        return value
    doubled = value.replace("\\", "\\\\").replace("\0", "\\0")
    return doubled.encode("utf-8", "backslashreplace").decode()


_ESCAPE = re.compile(r"\\(?:([\\0])|u([0-9a-f]{4}))")


def _meant(escape: re.Match[str]) -> str:
    if escape[2]:
        return chr(int(escape[2], 16))
    return "\0" if escape[1] == "0" else "\\"


METADATA = MetaData(
    naming_convention={"pk": "%(table_name)s_pkey", "ix": "%(table_name)s_%(column_0_N_name)s"}
)

TASKS = Table(
    "tasks",
    METADATA,
    Column("tenant", Exact, primary_key=True),
    Column("id", Exact, primary_key=True),
    Column("owner", LargeBinary, nullable=False),
    Column("tool", Exact, nullable=False),
    Column("status", Exact, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("call", LargeBinary, nullable=False),
    Column("status_message", Exact),
    Column("requests", LargeBinary),
    Column("answers", LargeBinary),
    Column("result", LargeBinary),
    Column("error", LargeBinary),
    Column("cancelled", Boolean, nullable=False),
    Column("runner", Exact, nullable=False),
    Column("leased_until", Double, nullable=False),
    Column("revision", Integer, nullable=False),
    # The size that counts against its quota.
    Column("bytes", BigInteger),
    Index(None, "expires_at"),
    Index(None, "tenant", "owner", "status"),
    Index("tasks_usage", "tenant", "owner", "expires_at", "bytes"),
    Index(None, "status", "leased_until"),
)

IDEMPOTENCY_RECORDS = Table(
    "idempotency_records",
    METADATA,
    Column("tenant", Exact, primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("holder", Exact, nullable=False),
    Column("leased_until", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("outcome", LargeBinary),
    Column("owner", LargeBinary),
    Column("bytes", BigInteger),
    Index(None, "expires_at"),
    # The columns that the query for a caller's usage reads.
    Index("idempotency_records_usage", "tenant", "owner", "expires_at", "bytes"),
)

SESSIONS = Table(
    "sessions",
    METADATA,
    Column("tenant", Exact, primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("expires_at", Double, nullable=False),
    Column("ended", Boolean, nullable=False),
    Column("log_level", Exact),
    Column("subscriptions", LargeBinary, nullable=False),
    Column("listener", Exact, nullable=False),
    Column("revision", Integer, nullable=False),
    Index(None, "expires_at"),
)

ENTRIES = Table(
    "entries",
    METADATA,
    Column("tenant", Exact, primary_key=True),
    Column("subject", Exact, primary_key=True),
    Column("key", Exact, primary_key=True),
    # A deleted entry keeps only its revision.
    Column("value", LargeBinary),
    Column("revision", Integer, nullable=False),
    Column("updated_at", Double, nullable=False),
    # An entry stays until it is deleted. A deleted one is removed after a while.
    Column("expires_at", Double),
    Index(None, "expires_at"),
)

# The conditions of partial indexes. A query that contains the same text can use the index; one with
# a parameter in place of the state cannot.
WAITING_REQUESTS = text("state = 'waiting'")
PAST_REQUESTS = text("state <> 'waiting'")
OPEN_REQUESTS = text("state IN ('waiting', 'approved')")


def _partial(name: str, condition: TextClause, *columns: str) -> Index:
    return Index(name, *columns, sqlite_where=condition, postgresql_where=condition)


APPROVAL_REQUESTS = Table(
    "approval_requests",
    METADATA,
    Column("tenant", Exact, primary_key=True),
    Column("id", Exact, primary_key=True),
    # The binding belongs to one request at a time. A request that no call finds any more has none.
    Column("binding", LargeBinary),
    Column("state", Exact, nullable=False),
    Column("tool", Exact, nullable=False),
    Column("issuer", Exact, nullable=False),
    Column("subject", Exact, nullable=False),
    Column("subject_kind", Exact, nullable=False),
    Column("client_id", Exact),
    Column("created_at", Double, nullable=False),
    Column("until", Double, nullable=False),
    Column("changed_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("details", LargeBinary, nullable=False),
    Column("sealed", Exact),
    Column("revision", Integer, nullable=False),
    Index(None, "tenant", "binding", unique=True),
    # The order in which waiting requests are listed, and the callers to count them by.
    _partial(
        "approval_requests_waiting",
        WAITING_REQUESTS,
        *("tenant", "created_at", "id", "issuer", "subject", "subject_kind", "state"),
    ),
    _partial("approval_requests_history", PAST_REQUESTS, "tenant", "changed_at", "id"),
    _partial("approval_requests_open", OPEN_REQUESTS, "tenant", "id", "state"),
    _partial("approval_requests_until", OPEN_REQUESTS, "until"),
    Index(None, "expires_at"),
)

GRANTS = Table(
    "grants",
    METADATA,
    Column("tenant", Exact, primary_key=True),
    Column("id", Exact, primary_key=True),
    Column("tool", Exact, nullable=False),
    Column("issuer", Exact, nullable=False),
    Column("subject", Exact, nullable=False),
    Column("subject_kind", Exact, nullable=False),
    Column("client_id", Exact),
    Column("remaining", Integer),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("details", LargeBinary, nullable=False),
    Index(None, "tenant", "tool", "issuer", "subject"),
    Index(None, "expires_at"),
)

OUTBOX_MESSAGES = Table(
    "outbox_messages",
    METADATA,
    Column("tenant", Exact, primary_key=True),
    Column("id", Exact, primary_key=True),
    Column("ordering_key", Exact, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("due_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("holder", Exact, nullable=False),
    Index(None, "tenant", "ordering_key"),
    Index(None, "due_at"),
    Index(None, "expires_at"),
)

REVOCATIONS = Table(
    "revocations",
    METADATA,
    # Empty: the revocation applies to every tenant.
    Column("tenant", Exact, primary_key=True),
    Column("id", Exact, primary_key=True),
    Column("issuer", Exact, nullable=False),
    Column("subject", Exact, nullable=False),
    Column("client", Exact, nullable=False),
    Column("suspends", Boolean, nullable=False),
    Column("before", Double, nullable=False),
    Column("undated_until", Double, nullable=False),
    Column("blocked_until", Double, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("created_by", Exact, nullable=False),
    Column("reason", Exact, nullable=False),
    Column("expires_at", Double),
    Index(None, "expires_at"),
)

AUDIT_SEGMENTS = Table(
    "audit_segments",
    METADATA,
    Column("tenant", Exact, primary_key=True),
    Column("writer", BigInteger, primary_key=True, autoincrement=False),
    Column("first", BigInteger, primary_key=True, autoincrement=False),
    Column("last", BigInteger, nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("until", BigInteger, nullable=False),
    # JSON, which has no NUL and no half surrogate pair.
    Column("counts", Text, nullable=False),
    # The large columns are last: SQLite reads the others without overflow pages.
    Column("records", Text, nullable=False),
    # The order in which pages show the newest records of all writers.
    Index("audit_segments_order", "tenant", "until", "writer", "first"),
)

AUDIT_HEADS = Table(
    "audit_heads",
    METADATA,
    Column("tenant", Exact, primary_key=True),
    Column("writer", BigInteger, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("pruned", BigInteger, nullable=False),
    Column("proof", Text, nullable=False),
)

AUDIT_CHECKPOINTS = Table(
    "audit_checkpoints",
    METADATA,
    Column("tenant", Exact, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("statement", Text, nullable=False),
    Column("signature", Text, nullable=False),
)

AUDIT_SUMS = Table(
    "audit_sums",
    METADATA,
    Column("tenant", Exact, primary_key=True),
    # Milliseconds since the epoch.
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("writer", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Exact, primary_key=True),
    Column("tool", Exact, primary_key=True),
    Column("outcome", Exact, primary_key=True),
    # `limit` is a reserved word of SQL.
    Column("limited_by", Exact, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("expires_at", Double, nullable=False),
    Index(None, "expires_at"),
    # Without a row id, a sum is written to one page instead of two.
    sqlite_with_rowid=False,
)
