"""What waits for a person, in this process's memory."""

from collections.abc import Iterator

import msgspec

from gatepost.stores.approvals import ApprovalRecord, GrantRecord, Whose
from gatepost.stores.memory.notices import MemoryNotices
from gatepost.stores.notices import Notice

OPEN = ("waiting", "approved")


def meant(whose: Whose, record: ApprovalRecord | GrantRecord) -> bool:
    """Whether the record is of one of these callers."""
    wanted = msgspec.structs.asdict(whose)
    return all(value in (None, getattr(record, name)) for name, value in wanted.items())


class MemoryApprovals:
    """See `Approvals`."""

    def __init__(self, notices: MemoryNotices) -> None:
        self.held: dict[str, ApprovalRecord] = {}
        self._notices = notices

    async def open(
        self, record: ApprovalRecord, notice: Notice | None = None
    ) -> ApprovalRecord | None:
        """See `Approvals`."""
        if record.meets is not None and (kept := await self.met(record.meets)) is not None:
            return kept
        self.held[record.id] = record
        if notice is not None:
            await self._notices.add(notice)
        return None

    async def get(self, approval_id: str) -> ApprovalRecord | None:
        """See `Approvals`."""
        return self.held.get(approval_id)

    async def met(self, binding: bytes) -> ApprovalRecord | None:
        """See `Approvals`."""
        return next((one for one in self.held.values() if one.meets == binding), None)

    async def replace(self, record: ApprovalRecord, notice: Notice | None = None) -> bool:
        """See `Approvals`."""
        kept = self.held.get(record.id)
        if kept is None or kept.revision != record.revision:
            return False
        self.held[record.id] = msgspec.structs.replace(record, revision=record.revision + 1)
        if notice is not None:
            await self._notices.add(notice)
        return True

    async def waiting(self, most: int) -> list[ApprovalRecord]:
        """See `Approvals`."""
        return sorted(self._waiting(), key=lambda one: (one.created_at, one.id))[:most]

    async def past(self, before: tuple[float, str] | None, most: int) -> list[ApprovalRecord]:
        """See `Approvals`."""
        past = [one for one in self.held.values() if one.state != "waiting"]
        past = [one for one in past if before is None or (one.changed_at, one.id) < before]
        return sorted(past, key=lambda one: (one.changed_at, one.id), reverse=True)[:most]

    async def count(self, caller: Whose | None = None) -> int:
        """See `Approvals`."""
        return sum(meant(caller or Whose(), one) for one in self._waiting())

    async def undecided(self, whose: Whose) -> list[ApprovalRecord]:
        """See `Approvals`."""
        return [one for one in self.held.values() if one.state in OPEN and meant(whose, one)]

    def overdue(self, now: float) -> list[str]:
        """Ids of open requests whose time is over."""
        return [one.id for one in self.held.values() if one.state in OPEN and one.until <= now]

    def _waiting(self) -> Iterator[ApprovalRecord]:
        return (one for one in self.held.values() if one.state == "waiting")


class MemoryGrants:
    """See `Grants`."""

    def __init__(self) -> None:
        self.held: dict[str, GrantRecord] = {}

    async def add(self, grant: GrantRecord) -> None:
        """See `Grants`."""
        self.held[grant.id] = grant

    async def all(self, now: float) -> list[GrantRecord]:
        """See `Grants`."""
        found = [one for one in self.held.values() if _holds(one, now)]
        return sorted(found, key=lambda one: (one.created_at, one.id))

    async def of(self, tool: str, issuer: str, subject: str, now: float) -> list[GrantRecord]:
        """See `Grants`."""
        whom = (tool, issuer, subject)
        return [one for one in await self.all(now) if (one.tool, one.issuer, one.subject) == whom]

    async def spend(self, grant_id: str, now: float) -> bool:
        """See `Grants`."""
        grant = self.held.get(grant_id)
        if grant is None or not _holds(grant, now):
            return False
        if grant.remaining is not None:
            self.held[grant_id] = msgspec.structs.replace(grant, remaining=grant.remaining - 1)
        return True

    async def revoke(self, grant_id: str) -> bool:
        """See `Grants`."""
        return self.held.pop(grant_id, None) is not None

    async def revoke_of(self, whose: Whose) -> int:
        """See `Grants`."""
        gone = [one.id for one in self.held.values() if meant(whose, one)]
        for grant_id in gone:
            del self.held[grant_id]
        return len(gone)


def _holds(grant: GrantRecord, now: float) -> bool:
    return grant.expires_at > now and (grant.remaining is None or grant.remaining > 0)
