"""The record of what happened, in this process's memory."""

from collections import deque
from collections.abc import Callable, Sequence

from gatepost.storage.audit import (
    AuditDraft,
    AuditQuery,
    AuditRow,
    Batch,
    ChainHead,
    Checkpoint,
    Count,
    Link,
    Segment,
    Sign,
)
from gatepost.storage.audit_segments import (
    answers,
    behind,
    erased,
    listed,
    remainder,
    summed,
)

MOST = 20_000
"""Records of one tenant that are remembered: a server on a laptop may run for weeks."""


class MemoryTrail:
    """See `TenantTrail`; of more than `MOST` records the oldest are forgotten."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.end: ChainHead | None = None
        self.held: deque[Segment] = deque()
        """In their order."""
        self.signed: dict[int, Checkpoint] = {}

    async def head(self) -> ChainHead | None:
        """Return the head of its chain, or None."""
        return self.end

    async def rows(self, after: int, limit: int) -> list[AuditRow]:
        """Return up to *limit* records after that number, in order."""
        rows: list[AuditRow] = []
        for one in self.held:
            if len(rows) >= limit:
                break
            if one.last > after:
                rows += behind([one], after)
        return rows[:limit]

    async def segments(self, start: int, limit: int) -> list[Segment]:
        """Return up to *limit* segments as they are stored, whatever they contain."""
        return [one for one in self.held if one.first >= start][:limit]

    async def find(self, question: AuditQuery) -> list[AuditRow]:
        """Return the matching records, the newest first."""
        return answers(reversed(self.held), question)

    async def count(self, since: int, slice_ms: int) -> list[Count]:
        """Count the records since a time, slice by slice."""
        wanted = [one for one in self.held if one.until >= since]
        return listed(summed(wanted, since, slice_ms))

    async def checkpoints(self) -> list[Checkpoint]:
        """Return its checkpoints, in order."""
        return [self.signed[number] for number in sorted(self.signed)]

    async def check(self, sign: Sign) -> Checkpoint | None:
        """Add a checkpoint of the head, durably; return None if none is needed."""
        if self.end is None:
            return None
        made = sign(self.end)
        if made is None:
            return None
        checkpoint, self.end = made
        self.signed[checkpoint.number] = checkpoint
        return checkpoint

    async def erase(self, numbers: Sequence[int], drafts: Sequence[AuditDraft], link: Link) -> None:
        """Remove the details of these records and add the drafts, both or neither, durably."""
        wanted = frozenset(numbers)
        self.held = deque(erased(one, wanted) for one in self.held)
        self.take(*link(self.tenant, self.end, drafts))

    async def prune(self, through: int, drafts: Sequence[AuditDraft], link: Link) -> None:
        """Remove the records up to a number and older checkpoints, and add the drafts."""
        if self.end is None or through not in self.signed:
            raise LookupError(through)
        self.held = deque(left for one in self.held for left in remainder(one, through))
        self.signed = {number: one for number, one in self.signed.items() if number >= through}
        self.take(*link(self.tenant, self.end, drafts))

    def take(self, made: Sequence[Segment], head: ChainHead) -> None:
        """Add records to the chain."""
        self.end = head
        self.held += made
        while self.held and head.number - self.held[0].last >= MOST:
            self.held.popleft()


class MemoryAuditStore:
    """See `AuditStore`."""

    def __init__(self, trail_of: Callable[[str], MemoryTrail]) -> None:
        self._trail_of = trail_of
        self._trails: dict[str, MemoryTrail] = {}

    async def write(self, batch: Batch, link: Link) -> None:
        """Add a batch to the chains, all or nothing, durably; raises StoreUnavailable."""
        trails = {tenant: self._trail_of(tenant) for tenant in batch}
        made = {tenant: link(tenant, trails[tenant].end, batch[tenant]) for tenant in batch}
        self._trails |= trails
        for tenant, (segments, head) in made.items():
            trails[tenant].take(segments, head)

    async def sign(self, tenants: Sequence[str], sign: Sign) -> dict[str, Checkpoint]:
        """Add a checkpoint of each head for which *sign* returns one, all or none, durably."""
        made = {tenant: await self._trail_of(tenant).check(sign) for tenant in tenants}
        return {tenant: one for tenant, one in made.items() if one is not None}

    async def heads(
        self, after: str, limit: int, *, unsigned: str | None = None
    ) -> list[ChainHead]:
        """Return the heads of up to *limit* tenants, by name after *after*."""
        ends = (self._trails[tenant].end for tenant in sorted(self._trails) if tenant > after)
        found = [
            head
            for head in ends
            if head is not None
            and (
                unsigned is None
                or head.number != head.checkpoint
                or not head.proof.startswith(f"{unsigned}.")
            )
        ]
        return found[:limit]

    async def tenants(self) -> list[str]:
        """Return every tenant that has a head, a record or a checkpoint."""
        return sorted(self._trails)
