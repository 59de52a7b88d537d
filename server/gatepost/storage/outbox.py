"""Messages to another system, stored until they are delivered."""

from typing import Protocol

import msgspec


class OutboxMessage(msgspec.Struct, frozen=True, kw_only=True):
    """
    One message that is not delivered yet.

    Times are seconds since the epoch. The body contains no secrets and names no people.
    """

    id: str
    """The id that the receiver sees; the same for each attempt."""
    ordering_key: str
    """
    The key of the message's subject. Messages with the same key are sent in the order of
    `sequence`.
    """
    sequence: int
    """The number of the step that the message reports, or microseconds since the epoch."""
    body: bytes
    created_at: float
    due_at: float
    """
    The time from which it may be leased. Until then its holder sends it, or waits between attempts.
    """
    expires_at: float
    """The time from which it is no longer delivered."""
    attempts: int = 0
    """How often it was leased."""
    holder: str = ""
    """The sender that leased it last."""


class OutboxStore(Protocol):
    """The undelivered messages of one tenant."""

    async def add(self, message: OutboxMessage) -> bool:
        """Store a message durably; return False if there is one with its id, which stays."""

    async def remove(self, message: OutboxMessage) -> bool:
        """Delete a message; return False, without a change, if another sender has leased it."""

    async def put_off(self, message: OutboxMessage, until: float) -> bool:
        """Let no sender lease the message until then; return False as `remove` does."""

    async def drop_excess(self, limit: int) -> list[str]:
        """Delete the oldest messages beyond the *limit* newest; return the ids of those deleted."""
