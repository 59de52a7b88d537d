"""Who may not call any more, whatever token they show: what is kept of it."""

from typing import Protocol

import msgspec

HOLD = "hold-"
"""How the id of a hold begins."""
FOR_EVER = 253_402_300_799.0
"""The end of the year 9999."""


class RevocationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    One decision to shut somebody out.

    It reaches a caller whom every selector names that is not empty. Tokens issued up to ``before``
    are refused, those that do not say when they were issued until ``undated_until``, and all of
    them until ``blocked_until``. A suspension shuts its tenant until somebody deletes it. A hold
    refuses no token; calls of its subject wait until it expires. Times are seconds since the epoch.
    """

    id: str
    tenant: str = ""
    """Empty: every tenant."""
    issuer: str = ""
    subject: str = ""
    """The stable id of a person or a program, or of who acts for one."""
    client: str = ""
    suspends: bool = False
    before: float = 0.0
    undated_until: float = 0.0
    blocked_until: float = 0.0
    created_at: float
    created_by: str
    reason: str = ""
    expires_at: float | None = None
    """When it reaches nobody any more; None: it stays."""

    @property
    def is_hold(self) -> bool:
        """Whether it holds calls back instead of refusing tokens."""
        return self.id.startswith(HOLD)


class RevocationStore(Protocol):
    """The cut-offs of all tenants."""

    async def changes(self) -> int:
        """A number that grows with every change, by any process; small enough to ask often."""

    async def all(self) -> list[RevocationRecord]:
        """Every cut-off, the oldest first; also those whose time is over and nobody swept yet."""

    async def put(self, cut: RevocationRecord) -> bool:
        """Keep one, durably; False when its tenant has one with that id, which stays."""

    async def delete(self, tenant: str, cut_id: str) -> bool:
        """Take one back, durably; whether there was one."""
