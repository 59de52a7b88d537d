"""Approval requests and grants, as they are stored."""

from typing import Literal, Protocol

import msgspec

from gatepost.storage.outbox import OutboxMessage

State = Literal["waiting", "approved", "rejected", "expired", "withdrawn", "used"]
"""
`waiting` becomes one of the next four. `approved` becomes `used` (once), `expired` or `withdrawn`.
"""


class WaitingCount(msgspec.Struct, frozen=True):
    """The numbers of waiting requests: of one caller, and of its tenant."""

    of_caller: int
    of_tenant: int


class ApprovalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    One approval request.

    Times are seconds since the epoch; ``revision`` grows with every change. The fields of type
    bytes are opaque here.
    """

    id: str
    binding: bytes | None
    """
    The digest of the call. While it is set, the same call gets this request; unique in its tenant.
    """
    state: State
    tool: str
    issuer: str
    subject: str
    subject_kind: str
    client_id: str | None
    created_at: float
    until: float
    """The end of the time to decide, or to use an approval."""
    changed_at: float
    expires_at: float
    """When it is deleted."""
    details: bytes
    """The content that approvers see; it contains no secrets."""
    sealed: str | None
    """The arguments, encrypted with the key ring; None once they are no longer needed."""
    revision: int = 0


class GrantRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one caller that were approved in advance; fields as in `ApprovalRecord`."""

    id: str
    tool: str
    issuer: str
    subject: str
    subject_kind: str
    client_id: str | None
    remaining: int | None
    """The number of remaining calls; None: unlimited."""
    created_at: float
    expires_at: float
    """When it ends."""
    details: bytes


class GrantQuota(msgspec.Struct, frozen=True):
    """How many valid grants there may be: of one caller for one tool, and of a tenant."""

    per_caller_and_tool: int
    per_tenant: int


class GrantCount(msgspec.Struct, frozen=True):
    """The numbers of valid grants: of one caller for one tool, and of its tenant."""

    of_caller_and_tool: int
    of_tenant: int

    def exceeds(self, quota: GrantQuota) -> bool:
        """Return whether there is no room for one more grant."""
        is_full = self.of_caller_and_tool >= quota.per_caller_and_tool
        return is_full or self.of_tenant >= quota.per_tenant


class ApprovalQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A call for which approvals are looked up; fields as in `ApprovalRecord`."""

    binding: bytes
    tool: str
    issuer: str
    subject: str
    subject_kind: str
    now: float
    """Seconds since the epoch; grants that have ended by then do not count."""


class ApprovalMatches(msgspec.Struct, frozen=True):
    """The result of an `ApprovalQuery`."""

    grants: list[GrantRecord]
    """The valid grants of the caller and the tool, the oldest first."""
    request: ApprovalRecord | None = None
    """The request with the binding; not read if there are grants."""
    waiting: WaitingCount | None = None
    """The numbers of waiting requests; not read if there are grants or a request."""


class ApprovalStore(Protocol):
    """The approval requests of one tenant."""

    async def open(
        self, record: ApprovalRecord, message: OutboxMessage | None = None
    ) -> ApprovalRecord | None:
        """
        Store a new request durably and return None, or return the request with its binding.

        Of simultaneous requests with one binding, in any process, exactly one is stored. The
        *message* is stored in the same transaction.
        """

    async def get(self, approval_id: str) -> ApprovalRecord | None:
        """Return the request, in any state."""

    async def find(self, binding: bytes) -> ApprovalRecord | None:
        """Return the request of calls with this binding."""

    async def match(self, query: ApprovalQuery) -> ApprovalMatches:
        """Return the grants for a call, else its request, else the numbers of waiting requests."""

    async def replace(self, record: ApprovalRecord, message: OutboxMessage | None = None) -> bool:
        """
        Replace the record with the same id and ``revision`` durably, and raise the revision.

        Return False if that record was changed or removed meanwhile. The *message* of the change is
        stored in the same transaction.
        """

    async def waiting(
        self, limit: int, after: tuple[float, str] | None = None
    ) -> list[ApprovalRecord]:
        """
        Return requests in the state `waiting`, the oldest first.

        *after* is `created_at` and id of the last request of the previous page.
        """

    async def ended(self, before: tuple[float, str] | None, limit: int) -> list[ApprovalRecord]:
        """
        Return requests in other states, the last changed first.

        *before* is `changed_at` and id of the last request of the previous page.
        """

    async def count(self, issuer: str, subject: str, subject_kind: str) -> WaitingCount:
        """Count waiting requests of a caller, with any client and actor, and of the tenant."""

    async def undecided(self) -> list[str]:
        """
        Return the ids of all requests that wait, or are approved and not used.

        Only ids, because a tenant may have thousands of a few hundred kilobytes each.
        """


class GrantStore(Protocol):
    """The grants of one tenant."""

    async def add(self, grant: GrantRecord, quota: GrantQuota) -> GrantCount | None:
        """
        Store a new grant durably and return None, or return the counts that reach the quota.

        Processes that add at the same time do not exceed the quota together.
        """

    async def count(
        self, tool: str, issuer: str, subject: str, subject_kind: str, now: float
    ) -> GrantCount:
        """Count the valid grants of a caller, with any client and actor, and of the tenant."""

    async def all(self, now: float) -> list[GrantRecord]:
        """Return all valid grants, the oldest first."""

    async def valid_page(
        self, now: float, limit: int, after: tuple[float, str] | None = None
    ) -> list[GrantRecord]:
        """
        Return a page of the valid grants, the oldest first.

        *after* is `created_at` and id of the last grant of the previous page.
        """

    async def get(self, grant_id: str, now: float) -> GrantRecord | None:
        """Return a valid grant."""

    async def spend(self, grant_id: str, now: float) -> bool:
        """Use up one call durably; return False if none is left or the grant has ended."""

    async def revoke(self, grant_id: str) -> bool:
        """End a grant durably; return whether it existed."""

    async def page(self, after: str, limit: int) -> list[GrantRecord]:
        """Return the next grants by id, valid or not; "" is before the first."""
