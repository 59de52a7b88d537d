"""Records to keep; what a test is about it says itself."""

from typing import Any

from gatepost.stores.api import Claim, TaskRecord

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


def claim(**settings: Any) -> Claim:
    """A claim that runs."""
    return Claim(
        **{
            "key": b"k1",
            "digest": b"d1",
            "holder": "h1",
            "leased_until": 1_030.0,
            "expires_at": 1_000.0 + HOUR,
            **settings,
        }
    )
