"""What waits for a person, as it is kept: requests, and the calls that were granted beforehand."""

from typing import Literal, Protocol

import msgspec

from gatepost.stores.notices import Notice

State = Literal["waiting", "approved", "rejected", "expired", "withdrawn", "used"]
"""
`waiting` becomes one of the next four; `approved` becomes `used`, once, `expired` or `withdrawn`.
"""


class Whose(msgspec.Struct, frozen=True, kw_only=True):
    """Which callers of a tenant are meant: those with all that is set; nothing set: everybody."""

    issuer: str | None = None
    subject: str | None = None
    client_id: str | None = None


EVERYBODY = Whose()


class ApprovalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    One request for an approval.

    Times are seconds since the epoch; ``revision`` grows with every change. The fields of type
    bytes are opaque here.
    """

    id: str
    meets: bytes | None
    """The binding of the call, while the same call meets this request; of one only at a time."""
    state: State
    tool: str
    issuer: str
    subject: str
    subject_kind: str
    client_id: str | None
    created_at: float
    until: float
    """Until when it can be decided, or used."""
    changed_at: float
    expires_at: float
    """When it is forgotten."""
    details: bytes
    """What people are shown; no secret is in it."""
    sealed: str | None
    """The arguments, for the key ring; None once nothing can be done with them any more."""
    revision: int = 0


class Approvals(Protocol):
    """The requests of one tenant."""

    async def open(
        self, record: ApprovalRecord, notice: Notice | None = None
    ) -> ApprovalRecord | None:
        """
        Keep a new request; None when it was kept, durably, else the one that its call meets.

        Of several at once with one binding, in any process, exactly one is kept. Its *notice* is
        kept with it, or neither.
        """

    async def get(self, approval_id: str) -> ApprovalRecord | None:
        """The request, in whatever state."""

    async def met(self, binding: bytes) -> ApprovalRecord | None:
        """The request that a call of this binding meets."""

    async def replace(self, record: ApprovalRecord, notice: Notice | None = None) -> bool:
        """
        Put *record* in the place of the one with the same id and ``revision``, durably; it is kept
        with the next revision. False when somebody changed or removed that one meanwhile. The
        *notice* of the change is kept with it, or neither.
        """

    async def waiting(self, most: int) -> list[ApprovalRecord]:
        """Requests in the state `waiting`, the oldest first."""

    async def past(self, before: tuple[float, str] | None, most: int) -> list[ApprovalRecord]:
        """
        Requests in any other state, the last changed first; *before* is `changed_at` and id of the
        last one of the page before.
        """

    async def count(self, caller: Whose | None = None) -> int:
        """How many are in the state `waiting`: of a caller, or of all."""

    async def undecided(self, whose: Whose) -> list[ApprovalRecord]:
        """Requests of these callers that are waiting, or approved and not used."""


class GrantRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one caller that were approved beforehand; as ApprovalRecord otherwise."""

    id: str
    tool: str
    issuer: str
    subject: str
    subject_kind: str
    client_id: str | None
    remaining: int | None
    """How many calls are left; None: any number."""
    created_at: float
    expires_at: float
    """When it ends."""
    details: bytes


class Grants(Protocol):
    """The grants of one tenant."""

    async def add(self, grant: GrantRecord) -> None:
        """Keep a new grant, durably."""

    async def all(self, now: float) -> list[GrantRecord]:
        """Every grant that is in force, the oldest first."""

    async def of(self, tool: str, issuer: str, subject: str, now: float) -> list[GrantRecord]:
        """Those of one caller and tool that are in force, the oldest first."""

    async def spend(self, grant_id: str, now: float) -> bool:
        """Take one call from it, durably; False when it has none left, ended or was revoked."""

    async def revoke(self, grant_id: str) -> bool:
        """End a grant, durably; whether there was one."""

    async def revoke_of(self, whose: Whose) -> int:
        """End the grants of these callers; how many there were."""
