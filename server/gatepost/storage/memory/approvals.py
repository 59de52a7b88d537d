"""Approval requests and grants, in memory."""

from collections.abc import Iterator

import msgspec

from gatepost.storage.approvals import ApprovalRecord, GrantRecord, WaitingCount
from gatepost.storage.memory.outbox import MemoryOutbox
from gatepost.storage.outbox import OutboxMessage

OPEN_STATES = ("waiting", "approved")


class MemoryApprovals:
    """The `ApprovalStore` of one tenant, in memory."""

    def __init__(self, outbox: MemoryOutbox) -> None:
        self.held: dict[str, ApprovalRecord] = {}
        self._outbox = outbox

    async def open(
        self, record: ApprovalRecord, message: OutboxMessage | None = None
    ) -> ApprovalRecord | None:
        """Store a new request durably and return None, or return the request with its binding."""
        if record.binding is not None and (kept := await self.find(record.binding)) is not None:
            return kept
        self.held[record.id] = record
        if message is not None:
            await self._outbox.add(message)
        return None

    async def get(self, approval_id: str) -> ApprovalRecord | None:
        """Return the request, in any state."""
        return self.held.get(approval_id)

    async def find(self, binding: bytes) -> ApprovalRecord | None:
        """Return the request of calls with this binding."""
        return next((one for one in self.held.values() if one.binding == binding), None)

    async def replace(self, record: ApprovalRecord, message: OutboxMessage | None = None) -> bool:
        """Replace the record with the same id and ``revision`` durably, and raise the revision."""
        kept = self.held.get(record.id)
        if kept is None or kept.revision != record.revision:
            return False
        self.held[record.id] = msgspec.structs.replace(record, revision=record.revision + 1)
        if message is not None:
            await self._outbox.add(message)
        return True

    async def waiting(
        self, most: int, after: tuple[float, str] | None = None
    ) -> list[ApprovalRecord]:
        """Return requests in the state `waiting`, the oldest first."""
        found = sorted(self._waiting(), key=lambda one: (one.created_at, one.id))
        return [one for one in found if after is None or (one.created_at, one.id) > after][:most]

    async def past(self, before: tuple[float, str] | None, most: int) -> list[ApprovalRecord]:
        """Return requests in other states, the last changed first."""
        past = [one for one in self.held.values() if one.state != "waiting"]
        past = [one for one in past if before is None or (one.changed_at, one.id) < before]
        return sorted(past, key=lambda one: (one.changed_at, one.id), reverse=True)[:most]

    async def count(self, issuer: str, subject: str, subject_kind: str) -> WaitingCount:
        """Count waiting requests of a caller, with any client and actor, and of the tenant."""
        callers = [(one.issuer, one.subject, one.subject_kind) for one in self._waiting()]
        return WaitingCount(callers.count((issuer, subject, subject_kind)), len(callers))

    async def undecided(self) -> list[str]:
        """Return the ids of all requests that wait, or are approved and not used."""
        return [one.id for one in self.held.values() if one.state in OPEN_STATES]

    def overdue(self, now: float) -> list[str]:
        """Return the ids of open requests whose time is over."""
        return [
            one.id for one in self.held.values() if one.state in OPEN_STATES and one.until <= now
        ]

    def _waiting(self) -> Iterator[ApprovalRecord]:
        return (one for one in self.held.values() if one.state == "waiting")


class MemoryGrants:
    """The `GrantStore` of one tenant, in memory."""

    def __init__(self) -> None:
        self.held: dict[str, GrantRecord] = {}

    async def add(self, grant: GrantRecord) -> None:
        """Store a new grant durably."""
        self.held[grant.id] = grant

    async def all(self, now: float) -> list[GrantRecord]:
        """Return all valid grants, the oldest first."""
        found = [one for one in self.held.values() if _holds(one, now)]
        return sorted(found, key=lambda one: (one.created_at, one.id))

    async def of(self, tool: str, issuer: str, subject: str, now: float) -> list[GrantRecord]:
        """Return the valid grants of one caller and tool, the oldest first."""
        whom = (tool, issuer, subject)
        return [one for one in await self.all(now) if (one.tool, one.issuer, one.subject) == whom]

    async def spend(self, grant_id: str, now: float) -> bool:
        """Use up one call durably; return False if none is left or the grant has ended."""
        grant = self.held.get(grant_id)
        if grant is None or not _holds(grant, now):
            return False
        if grant.remaining is not None:
            self.held[grant_id] = msgspec.structs.replace(grant, remaining=grant.remaining - 1)
        return True

    async def revoke(self, grant_id: str) -> bool:
        """End a grant durably; return whether it existed."""
        return self.held.pop(grant_id, None) is not None

    async def page(self, after: str, most: int) -> list[GrantRecord]:
        """Return the next grants by id, valid or not; "" is before the first."""
        return [self.held[one] for one in sorted(self.held) if one > after][:most]


def _holds(grant: GrantRecord, now: float) -> bool:
    return grant.expires_at > now and (grant.remaining is None or grant.remaining > 0)
