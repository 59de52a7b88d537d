"""The sessions of older protocol revisions, as they are stored."""

from typing import Protocol

import msgspec


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a session of an older revision remembers beyond its signed id."""

    ended: bool = False
    log_level: str | None = None
    subscriptions: tuple[str, ...] = ()
    """URIs of resources whose changes its client wants to hear of."""
    listener: str = ""
    """The GET stream that gets what belongs to no request: the newest one, at any replica."""
    revision: int = 0


class SessionStore(Protocol):
    """The sessions of one tenant, by key; one that nobody kept is a fresh SessionRecord."""

    async def get(self, key: bytes) -> SessionRecord:
        """What is remembered of the session."""

    async def replace(self, key: bytes, record: SessionRecord, *, expires_at: float) -> bool:
        """
        Keep *record* in the place of the one with the same ``revision`` (0: none yet), durably.
        False when somebody changed it meanwhile.
        """
