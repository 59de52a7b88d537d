"""Records to keep; what a test is about it says itself."""

from typing import Any

from gatepost.storage.approvals import ApprovalRecord, GrantRecord
from gatepost.storage.idempotency import IdempotencyRecord
from gatepost.storage.outbox import OutboxMessage
from gatepost.storage.tasks import TaskRecord

HOUR = 3600.0


def task(**settings: Any) -> TaskRecord:
    """A task that works."""
    return TaskRecord(
        **{
            "id": "t1",
            "owner": b"alice",
            "tool": "count",
            "status": "working",
            "created_at": 1_000.25,
            "updated_at": 1_000.25,
            "expires_at": 1_000.25 + HOUR,
            "call": b'{"n":1}',
            "leased_until": 1_030.0,
            **settings,
        }
    )


def idempotency_record(**settings: Any) -> IdempotencyRecord:
    """A record that runs."""
    return IdempotencyRecord(
        **{
            "key": b"k1",
            "digest": b"d1",
            "holder": "h1",
            "leased_until": 1_030.0,
            "expires_at": 1_000.0 + HOUR,
            **settings,
        }
    )


def approval(**settings: Any) -> ApprovalRecord:
    """A request that waits."""
    return ApprovalRecord(
        **{
            "id": "a1",
            "binding": b"b1",
            "state": "waiting",
            "tool": "pay",
            "issuer": "https://id.example.com",
            "subject": "alice",
            "subject_kind": "user",
            "client_id": "claude",
            "created_at": 1_000.25,
            "until": 1_300.25,
            "changed_at": 1_000.25,
            "expires_at": 1_000.25 + HOUR,
            "details": b"\x00{}",
            "sealed": "k.x",
            **settings,
        }
    )


def grant(**settings: Any) -> GrantRecord:
    """A grant of three calls."""
    return GrantRecord(
        **{
            "id": "g1",
            "tool": "pay",
            "issuer": "https://id.example.com",
            "subject": "alice",
            "subject_kind": "user",
            "client_id": None,
            "remaining": 3,
            "created_at": 1_000.25,
            "expires_at": 1_000.25 + HOUR,
            "details": b"\x00{}",
            **settings,
        }
    )


def outbox_message(**settings: Any) -> OutboxMessage:
    """A message that is due and nobody has taken."""
    return OutboxMessage(
        **{
            "id": "msg_a1_requested",
            "ordering_key": "a1",
            "sequence": 0,
            "body": b"\x00{}",
            "created_at": 1_000.25,
            "due_at": 1_000.25,
            "expires_at": 1_000.25 + HOUR,
            **settings,
        }
    )
