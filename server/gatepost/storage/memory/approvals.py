"""Approval requests and grants, in memory."""

from collections.abc import Iterator

import msgspec

from gatepost.storage.approvals import (
    ApprovalMatches,
    ApprovalQuery,
    ApprovalRecord,
    GrantCount,
    GrantQuota,
    GrantRecord,
    WaitingCount,
)
from gatepost.storage.memory.outbox import MemoryOutbox
from gatepost.storage.outbox import OutboxMessage

OPEN_STATES = ("waiting", "approved")


class MemoryGrants:
    """The `GrantStore` of one tenant, in memory."""

    def __init__(self) -> None:
        self.records: dict[str, GrantRecord] = {}

    async def add(self, grant: GrantRecord, quota: GrantQuota) -> GrantCount | None:
        """Store a new grant durably and return None, or return the counts that reach the quota."""
        count = await self.count(*_owner(grant), now=grant.created_at)
        if count.exceeds(quota):
            return count
        self.records[grant.id] = grant
        return None

    async def count(
        self, tool: str, issuer: str, subject: str, subject_kind: str, now: float
    ) -> GrantCount:
        """Count the valid grants of a caller, with any client and actor, and of the tenant."""
        owners = [_owner(grant) for grant in await self.all(now)]
        return GrantCount(owners.count((tool, issuer, subject, subject_kind)), len(owners))

    async def all(self, now: float) -> list[GrantRecord]:
        """Return all valid grants, the oldest first."""
        grants = [grant for grant in self.records.values() if _is_active(grant, now)]
        return sorted(grants, key=lambda grant: (grant.created_at, grant.id))

    async def valid_page(
        self, now: float, limit: int, after: tuple[float, str] | None = None
    ) -> list[GrantRecord]:
        """Return a page of the valid grants, the oldest first."""
        grants = await self.all(now)
        return [grant for grant in grants if after is None or (grant.created_at, grant.id) > after][
            :limit
        ]

    async def get(self, grant_id: str, now: float) -> GrantRecord | None:
        """Return a valid grant."""
        grant = self.records.get(grant_id)
        return grant if grant is not None and _is_active(grant, now) else None

    async def spend(self, grant_id: str, now: float) -> bool:
        """Use up one call durably; return False if none is left or the grant has ended."""
        grant = await self.get(grant_id, now)
        if grant is None:
            return False
        if grant.remaining is not None:
            self.records[grant_id] = msgspec.structs.replace(grant, remaining=grant.remaining - 1)
        return True

    async def revoke(self, grant_id: str) -> bool:
        """End a grant durably; return whether it existed."""
        return self.records.pop(grant_id, None) is not None

    async def page(self, after: str, limit: int) -> list[GrantRecord]:
        """Return the next grants by id, valid or not; "" is before the first."""
        return [self.records[grant_id] for grant_id in sorted(self.records) if grant_id > after][
            :limit
        ]


class MemoryApprovals:
    """The `ApprovalStore` of one tenant, in memory."""

    def __init__(self, outbox: MemoryOutbox, grants: MemoryGrants) -> None:
        self.records: dict[str, ApprovalRecord] = {}
        self._outbox, self._grants = outbox, grants

    async def open(
        self, record: ApprovalRecord, message: OutboxMessage | None = None
    ) -> ApprovalRecord | None:
        """Store a new request durably and return None, or return the request with its binding."""
        if record.binding is not None and (stored := await self.find(record.binding)) is not None:
            return stored
        self.records[record.id] = record
        if message is not None:
            await self._outbox.add(message)
        return None

    async def get(self, approval_id: str) -> ApprovalRecord | None:
        """Return the request, in any state."""
        return self.records.get(approval_id)

    async def find(self, binding: bytes) -> ApprovalRecord | None:
        """Return the request of calls with this binding."""
        return next((record for record in self.records.values() if record.binding == binding), None)

    async def match(self, query: ApprovalQuery) -> ApprovalMatches:
        """Return the grants for a call, else its request, else the numbers of waiting requests."""
        owner = (query.tool, query.issuer, query.subject, query.subject_kind)
        grants = [grant for grant in await self._grants.all(query.now) if _owner(grant) == owner]
        if grants:
            return ApprovalMatches(grants)
        if (stored := await self.find(query.binding)) is not None:
            return ApprovalMatches([], stored)
        count = await self.count(query.issuer, query.subject, query.subject_kind)
        return ApprovalMatches([], None, count)

    async def replace(self, record: ApprovalRecord, message: OutboxMessage | None = None) -> bool:
        """Replace the record with the same id and ``revision`` durably, and raise the revision."""
        stored = self.records.get(record.id)
        if stored is None or stored.revision != record.revision:
            return False
        self.records[record.id] = msgspec.structs.replace(record, revision=record.revision + 1)
        if message is not None:
            await self._outbox.add(message)
        return True

    async def waiting(
        self, limit: int, after: tuple[float, str] | None = None
    ) -> list[ApprovalRecord]:
        """Return requests in the state `waiting`, the oldest first."""
        waiting = sorted(self._waiting(), key=lambda record: (record.created_at, record.id))
        return [
            record for record in waiting if after is None or (record.created_at, record.id) > after
        ][:limit]

    async def ended(self, before: tuple[float, str] | None, limit: int) -> list[ApprovalRecord]:
        """Return requests in other states, the last changed first."""
        past = [record for record in self.records.values() if record.state != "waiting"]
        past = [
            record for record in past if before is None or (record.changed_at, record.id) < before
        ]
        return sorted(past, key=lambda record: (record.changed_at, record.id), reverse=True)[:limit]

    async def count(self, issuer: str, subject: str, subject_kind: str) -> WaitingCount:
        """Count waiting requests of a caller, with any client and actor, and of the tenant."""
        callers = [
            (record.issuer, record.subject, record.subject_kind) for record in self._waiting()
        ]
        return WaitingCount(callers.count((issuer, subject, subject_kind)), len(callers))

    async def undecided(self) -> list[str]:
        """Return the ids of all requests that wait, or are approved and not used."""
        return [record.id for record in self.records.values() if record.state in OPEN_STATES]

    def overdue(self, now: float) -> list[str]:
        """Return the ids of open requests whose time is over."""
        return [
            record.id
            for record in self.records.values()
            if record.state in OPEN_STATES and record.until <= now
        ]

    def is_waiting(self, approval_id: str) -> bool:
        """Return whether there is such a request, and it waits."""
        record = self.records.get(approval_id)
        return record is not None and record.state == "waiting"

    def _waiting(self) -> Iterator[ApprovalRecord]:
        return (record for record in self.records.values() if record.state == "waiting")


def _owner(grant: GrantRecord) -> tuple[str, str, str, str]:
    return grant.tool, grant.issuer, grant.subject, grant.subject_kind


def _is_active(grant: GrantRecord, now: float) -> bool:
    return grant.expires_at > now and (grant.remaining is None or grant.remaining > 0)
