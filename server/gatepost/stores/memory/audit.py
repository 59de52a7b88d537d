"""The record of what happened, in this process's memory."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from gatepost.stores.audit import (
    Batch,
    Checkpoint,
    Count,
    Draft,
    Head,
    Link,
    Question,
    Row,
    Segment,
    Sign,
)
from gatepost.stores.segment import Added, answers, behind, erased, listed, remainder, summed

MOST = 20_000
"""Records of one tenant that are remembered: a server on a laptop may run for weeks."""


class MemoryTrail:
    """See `TenantTrail`; of more than `MOST` records the oldest are forgotten."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.end: Head | None = None
        self.held: deque[Segment] = deque()
        """In their order."""
        self.signed: dict[int, Checkpoint] = {}

    async def head(self) -> Head | None:
        """See `TenantTrail`."""
        return self.end

    async def rows(self, after: int, limit: int) -> list[Row]:
        """See `TenantTrail`."""
        rows: list[Row] = []
        for one in self.held:
            if len(rows) >= limit:
                break
            if one.last > after:
                rows += behind([one], after)
        return rows[:limit]

    async def segments(self, start: int, limit: int) -> list[Segment]:
        """See `TenantTrail`."""
        return [one for one in self.held if one.first >= start][:limit]

    async def find(self, question: Question) -> list[Row]:
        """See `TenantTrail`."""
        return answers(reversed(self.held), question)

    async def count(self, since: int, slice_ms: int) -> list[Count]:
        """See `TenantTrail`."""
        wanted = [one for one in self.held if one.until >= since]
        return listed(summed(wanted, since, slice_ms))

    async def checkpoints(self) -> list[Checkpoint]:
        """See `TenantTrail`."""
        return [self.signed[number] for number in sorted(self.signed)]

    async def check(self, sign: Sign) -> Checkpoint | None:
        """See `TenantTrail`."""
        if self.end is None:
            return None
        made = sign(self.end)
        if made is None:
            return None
        checkpoint, self.end = made
        self.signed[checkpoint.number] = checkpoint
        return checkpoint

    async def erase(self, numbers: Sequence[int], drafts: Sequence[Draft], link: Link) -> None:
        """See `TenantTrail`."""
        wanted = frozenset(numbers)
        self.held = deque(erased(one, wanted) for one in self.held)
        self.take(*link(self.tenant, self.end, drafts))

    async def prune(self, through: int, drafts: Sequence[Draft], link: Link) -> None:
        """See `TenantTrail`."""
        if self.end is None or through not in self.signed:
            raise LookupError(through)
        self.held = deque(left for one in self.held for left in remainder(one, through))
        self.signed = {number: one for number, one in self.signed.items() if number >= through}
        self.take(*link(self.tenant, self.end, drafts))

    def take(self, made: Sequence[Segment], head: Head) -> None:
        """Add records to the chain."""
        self.end = head
        self.held += made
        while self.held and head.number - self.held[0].last >= MOST:
            self.held.popleft()


class MemoryScribe:
    """See `Scribe`."""

    def __init__(self, trail_of: Callable[[str], MemoryTrail]) -> None:
        self._trail_of = trail_of
        self._trails: dict[str, MemoryTrail] = {}

    async def write(self, make: Callable[[], Batch], link: Link) -> dict[str, Sequence[Row]]:
        """See `Scribe`."""
        batch: Mapping[str, Sequence[Draft]] = make()
        trails = {tenant: self._trail_of(tenant) for tenant in batch}
        made = {tenant: link(tenant, trails[tenant].end, batch[tenant]) for tenant in batch}
        self._trails |= trails
        for tenant, (segments, head) in made.items():
            trails[tenant].take(segments, head)
        return {tenant: Added(segments) for tenant, (segments, _) in made.items()}

    async def heads(self) -> list[Head]:
        """See `Scribe`."""
        return [trail.end for trail in self._trails.values() if trail.end is not None]

    async def tenants(self) -> list[str]:
        """See `Scribe`."""
        return sorted(self._trails)
