"""Idempotency keys and the outcomes of their calls, as they are stored."""

from typing import Protocol

import msgspec


class IdempotencyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    One use of an idempotency key.

    Without an ``outcome`` the call runs until ``leased_until``; after that its outcome is unknown.
    """

    key: bytes
    digest: bytes
    """Digest of the tool and its arguments."""
    holder: str
    """The call that runs."""
    leased_until: float
    expires_at: float
    outcome: bytes | None = None
    owner: bytes | None = None
    """Digest of the principal whose quota it counts against; None: no quota applies."""


class IdempotencyStore(Protocol):
    """The idempotency keys of one tenant."""

    async def begin(self, record: IdempotencyRecord, *, now: float) -> IdempotencyRecord | None:
        """
        Store a record durably and return None, or return the record that already holds the key.

        An expired record (``expires_at``) is replaced. Of simultaneous attempts, in any process,
        exactly one gets None.
        """

    async def get(self, key: bytes) -> IdempotencyRecord | None:
        """Return the record that holds this key."""

    async def renew(self, key: bytes, holder: str, leased_until: float) -> bool:
        """Extend the lease of a running call; return False if *holder* no longer has the record."""

    async def finish(self, key: bytes, holder: str, outcome: bytes, expires_at: float) -> bool:
        """Store the outcome durably; return False if *holder* no longer has the record."""

    async def release(self, key: bytes, holder: str) -> None:
        """Delete the record of a call that did nothing."""

    async def take_over(self, record: IdempotencyRecord, *, expected: IdempotencyRecord) -> bool:
        """Replace *expected*, whose holder is gone; return False if it has changed meanwhile."""
