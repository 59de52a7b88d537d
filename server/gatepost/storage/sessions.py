"""The stored sessions of older protocol revisions."""

from typing import Protocol

import msgspec


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a session of an older revision, besides its signed id."""

    ended: bool = False
    log_level: str | None = None
    subscriptions: tuple[str, ...] = ()
    """The URIs of resources that its client subscribed to."""
    listener: str = ""
    """The newest GET stream of the session, which gets messages that belong to no request."""
    revision: int = 0


class SessionStore(Protocol):
    """The sessions of one tenant by key; an unknown key has an empty SessionRecord."""

    async def get(self, key: bytes) -> SessionRecord:
        """Return the state of a session."""

    async def replace(self, key: bytes, record: SessionRecord, *, expires_at: float) -> bool:
        """
        Replace the record that has the same ``revision`` (0: there is none), durably.

        Return False if it was changed in the meantime.
        """
