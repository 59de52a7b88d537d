"""The stored revocations, suspensions and holds."""

from typing import Protocol

import msgspec

SUBJECT = "revocations"
"""The subject of their change counter (`Records.changes`), which grows with every change."""
HOLD_PREFIX = "hold-"
"""The prefix of a hold's id."""
NEVER_EXPIRES = 253_402_300_799.0
"""The end of the year 9999."""


class RevocationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    A revocation, suspension or hold.

    It applies to a caller that matches all selectors that are not empty. It refuses tokens issued
    up to ``before``, tokens without an issue time until ``undated_until``, and all tokens until
    ``blocked_until``. A suspension applies until it is deleted. A hold refuses calls, not tokens,
    until it expires. Times are seconds since the epoch.
    """

    id: str
    tenant: str = ""
    """The tenant; empty for all tenants."""
    issuer: str = ""
    subject: str = ""
    """The subject of a token, or its actor."""
    client: str = ""
    suspends: bool = False
    before: float = 0.0
    undated_until: float = 0.0
    blocked_until: float = 0.0
    created_at: float
    created_by: str
    reason: str = ""
    expires_at: float | None = None
    """When it ends; None: it stays until it is deleted."""

    @property
    def is_hold(self) -> bool:
        """Return whether it is a hold, which refuses calls but not tokens."""
        return self.id.startswith(HOLD_PREFIX)


class RevocationStore(Protocol):
    """The revocations of all tenants."""

    async def all(self) -> list[RevocationRecord]:
        """Return all revocations, the oldest first, including expired ones."""

    async def put(self, record: RevocationRecord) -> bool:
        """Store a revocation durably; return False if its tenant has one with this id already."""

    async def delete(self, tenant: str, revocation_id: str) -> bool:
        """Delete a revocation durably; return whether there was one."""
