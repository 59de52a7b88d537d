"""Sample records, and every backend of each store by the name that a failing test shows."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.storage.approvals import ApprovalRecord, GrantRecord
from gatepost.storage.backends import open_records, open_shared_store
from gatepost.storage.idempotency import IdempotencyRecord
from gatepost.storage.outbox import OutboxMessage
from gatepost.storage.records import Records
from gatepost.storage.shared_store import SharedStore
from gatepost.storage.tasks import TaskRecord
from tests.support.stores import POOLED, Postgres, a_sql_url

HOUR = 3600.0


def task(**settings: Any) -> TaskRecord:
    """Return a running task."""
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
    """Return the idempotency record of a running call."""
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
    """Return a pending approval request."""
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
    """Return a grant of three calls."""
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
    """Return a message that is due and that no process has leased."""
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


@pytest.fixture(params=["memory", "sqlite", "postgresql", POOLED])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new database, once for each backend."""
    return "memory:" if request.param == "memory" else a_sql_url(request, tmp_path)


@pytest.fixture(params=["sqlite", "postgresql", POOLED])
def sql_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new database that several processes share, once for each backend."""
    return a_sql_url(request, tmp_path)


@pytest.fixture
async def records(database_url: str) -> AsyncIterator[Records]:
    opened = await open_records(database_url)
    yield opened
    await opened.aclose()


@pytest.fixture(params=["memory", "valkey"])
def shared_store_url(request: pytest.FixtureRequest) -> str:
    """What connects processes, once for each backend."""
    if request.param == "memory":
        return ""
    url: str = request.getfixturevalue("valkey")
    return url


@pytest.fixture
async def shared_store(shared_store_url: str) -> AsyncIterator[SharedStore]:
    opened = await open_shared_store(shared_store_url)
    yield opened
    await opened.aclose()


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A server that this test may stop."""
    with Postgres.running() as server:
        yield server
