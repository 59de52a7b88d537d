"""The record of what happened, in this process's memory."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import msgspec

from gatepost.stores.audit import (
    Batch,
    Checkpoint,
    Count,
    Draft,
    Head,
    Link,
    Question,
    Row,
    Sign,
)

MOST = 20_000
"""Records of one tenant that are remembered: a server on a laptop may run for weeks."""


class MemoryTrail:
    """See `TenantTrail`; of more than `MOST` records the oldest are forgotten."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.end: Head | None = None
        self.held: dict[int, Row] = {}
        self.signed: dict[int, Checkpoint] = {}

    async def head(self) -> Head | None:
        """See `TenantTrail`."""
        return self.end

    async def rows(self, after: int, limit: int) -> list[Row]:
        """See `TenantTrail`."""
        behind = (self.held[number] for number in sorted(self.held) if number > after)
        return [*islice(behind, limit)]

    async def find(self, question: Question) -> list[Row]:
        """See `TenantTrail`."""
        newest = (self.held[number] for number in sorted(self.held, reverse=True))
        return [*islice((row for row in newest if _answers(row, question)), question.limit)]

    async def count(self, since: int, slice_ms: int) -> list[Count]:
        """See `TenantTrail`."""
        found = Counter(
            (row.at // slice_ms * slice_ms, row.kind, row.tool, row.outcome)
            for row in self.held.values()
            if row.at >= since
        )
        return [Count(*key, found[key]) for key in sorted(found)]

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
        for number in numbers:
            self.held[number] = msgspec.structs.replace(self.held[number], side=None, subject=None)
        self.take(*link(self.tenant, self.end, drafts))

    async def prune(self, through: int, drafts: Sequence[Draft], link: Link) -> None:
        """See `TenantTrail`."""
        if self.end is None or through not in self.signed:
            raise LookupError(through)
        self.held = {number: row for number, row in self.held.items() if number > through}
        self.signed = {number: one for number, one in self.signed.items() if number >= through}
        self.take(*link(self.tenant, self.end, drafts))

    def take(self, rows: Sequence[Row], head: Head) -> None:
        """Add records to the chain."""
        self.end = head
        self.held |= {row.number: row for row in rows}
        while len(self.held) > MOST:
            del self.held[next(iter(self.held))]


class MemoryScribe:
    """See `Scribe`."""

    def __init__(self, trail_of: Callable[[str], MemoryTrail]) -> None:
        self._trail_of = trail_of
        self._trails: dict[str, MemoryTrail] = {}

    async def write(self, make: Callable[[], Batch], link: Link) -> dict[str, list[Row]]:
        """See `Scribe`."""
        batch: Mapping[str, Sequence[Draft]] = make()
        trails = {tenant: self._trail_of(tenant) for tenant in batch}
        made = {tenant: link(tenant, trails[tenant].end, batch[tenant]) for tenant in batch}
        self._trails |= trails
        for tenant, (rows, head) in made.items():
            trails[tenant].take(rows, head)
        return {tenant: rows for tenant, (rows, _) in made.items()}

    async def heads(self) -> list[Head]:
        """See `Scribe`."""
        return [trail.end for trail in self._trails.values() if trail.end is not None]

    async def tenants(self) -> list[str]:
        """See `Scribe`."""
        return sorted(self._trails)


def _answers(row: Row, question: Question) -> bool:
    if question.text is not None:
        wanted = msgspec.json.encode(question.text)[1:-1].decode().lower()
        if wanted not in row.body.lower() and wanted not in (row.side or "").lower():
            return False
    return (
        question.tool in (None, row.tool)
        and question.subject in (None, row.subject)
        and question.outcome in (None, row.outcome)
        and question.kind in (None, row.kind)
        and (question.since is None or row.at >= question.since)
        and (question.until is None or row.at < question.until)
        and (question.before is None or row.number < question.before)
    )
