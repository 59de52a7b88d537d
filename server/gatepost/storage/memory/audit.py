"""The audit records, in this process's memory."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence

from gatepost.storage.audit import (
    CHECKPOINTS,
    AuditQuery,
    AuditRow,
    ChainHead,
    ChainKey,
    Checkpoint,
    Count,
    Link,
    NewAuditRecord,
    RecordsByChain,
    Segment,
    Sign,
)
from gatepost.storage.audit_search import matching, newest
from gatepost.storage.audit_segments import (
    erased,
    remainder,
    rows_after,
)
from gatepost.storage.audit_sums import KEPT_MS, Sums, sliced, sums_of

RECORDS_PER_CHAIN = 20_000
"""
The number of records of one chain that are kept, because a server on a laptop may run for weeks.
"""


class MemoryChain:
    """
    A `TenantChain` in memory, which forgets the oldest of more than `RECORDS_PER_CHAIN` records.
    """

    def __init__(self, key: ChainKey) -> None:
        self.key = key
        self.end: ChainHead | None = None
        self.stored_segments: deque[Segment] = deque()
        """The segments in their order."""

    async def rows(self, after: int, limit: int) -> list[AuditRow]:
        """Return up to *limit* records after that number, in order."""
        rows: list[AuditRow] = []
        for segment in self.stored_segments:
            if len(rows) >= limit:
                break
            if segment.last > after:
                rows += rows_after([segment], after)
        return rows[:limit]

    async def segments(self, start: int, limit: int) -> list[Segment]:
        """Return up to *limit* segments as they are stored, whatever they contain."""
        return [segment for segment in self.stored_segments if segment.first >= start][:limit]

    async def erase(
        self, numbers: Sequence[int], new_records: Sequence[NewAuditRecord], link: Link
    ) -> None:
        """Remove the details of these records and add the new records, both or neither, durably."""
        to_erase = frozenset(numbers)
        self.stored_segments = deque(erased(segment, to_erase) for segment in self.stored_segments)
        self.take(*link(self.key, self.end, new_records))

    def take(self, segments: Sequence[Segment], head: ChainHead) -> None:
        """Add records to the chain."""
        self.end = head
        self.stored_segments += segments
        while (
            self.stored_segments and head.number - self.stored_segments[0].last >= RECORDS_PER_CHAIN
        ):
            self.stored_segments.popleft()


class MemoryTenantAuditLog:
    """The `TenantAuditLog` of one tenant, in memory."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.chains: dict[int, MemoryChain] = {}
        self.signed: dict[int, Checkpoint] = {}
        self.sums: Sums = Counter()

    def chain(self, writer: int) -> MemoryChain:
        """Return the records of one writer."""
        if writer not in self.chains:
            self.chains[writer] = MemoryChain((self.tenant, writer))
        return self.chains[writer]

    def ends(self) -> list[ChainHead]:
        """Return the heads of its chains, sorted by writer."""
        ends = (self.chains[writer].end for writer in sorted(self.chains))
        return [end for end in ends if end is not None]

    async def heads(self) -> list[ChainHead]:
        """Return the heads of its chains, with that of its checkpoints, sorted by writer."""
        return self.ends()

    async def writers(self) -> list[int]:
        """Return every writer that has a head or a record, sorted; not that of checkpoints."""
        return [end.writer for end in self.ends() if end.writer != CHECKPOINTS]

    async def find(self, query: AuditQuery) -> list[AuditRow]:
        """Return the matching records of all chains by position, the newest first."""
        rows: list[AuditRow] = []
        for segment in sorted(self._segments(), key=lambda segment: segment.until, reverse=True):
            # The records of later segments end by this time.
            if sum(row.at > segment.until for row in rows) >= query.limit:
                break
            rows += matching([segment], query)
        return newest(rows, query.limit)

    async def horizon(self, before: int | None, segments: int) -> int | None:
        """Return the time by which all but the newest segments ended; None if none is left."""
        ends = [
            segment.until
            for segment in self._segments()
            if before is None or segment.until <= before
        ]
        return sorted(ends, reverse=True)[segments] if len(ends) > segments else None

    async def count(self, since: int, slice_ms: int) -> list[Count]:
        """Count the calls, refusals and refused tokens since a time, slice by slice."""
        return sliced({key: self.sums[key] for key in self.sums if key[0] >= since}, slice_ms)

    async def forget_counts(self) -> None:
        """Remove all sums that `count` reads; the records stay."""
        self.sums.clear()

    def add(self, segments: Sequence[Segment]) -> None:
        """Add records to the sums, and remove those that are too old."""
        sums = sums_of(segments)
        if new := sums.keys() - self.sums.keys():
            begin = max(key[0] for key in new) - KEPT_MS
            for key in [key for key in self.sums if key[0] < begin]:
                del self.sums[key]
        self.sums.update(sums)

    async def checkpoints(self) -> list[Checkpoint]:
        """Return its checkpoints, in order."""
        return [self.signed[number] for number in sorted(self.signed)]

    async def check(self, sign: Sign) -> Checkpoint | None:
        """Add a checkpoint of the heads, durably; return None if none is needed."""
        heads = self.ends()
        newest = self.signed[max(self.signed)] if self.signed else None
        signed = sign(heads, newest) if heads else None
        if signed is None:
            return None
        checkpoint, self.chain(CHECKPOINTS).end = signed
        self.signed[checkpoint.number] = checkpoint
        return checkpoint

    async def prune(
        self,
        through: Mapping[int, int],
        new_records: Mapping[int, Sequence[NewAuditRecord]],
        link: Link,
    ) -> bool:
        """Remove the records of each writer up to a number, and checkpoints before a number."""
        base, checkpoint_end = through[CHECKPOINTS], self.chain(CHECKPOINTS).end
        if checkpoint_end is not None and checkpoint_end.pruned >= base:
            return False
        if base not in self.signed:
            raise LookupError(base)
        for writer in through.keys() - {CHECKPOINTS}:
            chain = self.chain(writer)
            chain.stored_segments = deque(
                remaining
                for segment in chain.stored_segments
                for remaining in remainder(segment, through[writer])
            )
        self.signed = {
            number: checkpoint for number, checkpoint in self.signed.items() if number >= base
        }
        for writer, added in new_records.items():
            chain = self.chain(writer)
            chain.take(*link(chain.key, chain.end, added))
        return True

    def _segments(self) -> Iterator[Segment]:
        for chain in self.chains.values():
            yield from chain.stored_segments


class MemoryAuditStore:
    """The `AuditStore` of a process, in memory."""

    is_failing = False

    def __init__(self) -> None:
        self._tenant_logs: dict[str, MemoryTenantAuditLog] = {}

    def tenant_log(self, tenant: str) -> MemoryTenantAuditLog:
        """Return the audit log of one tenant."""
        if tenant not in self._tenant_logs:
            self._tenant_logs[tenant] = MemoryTenantAuditLog(tenant)
        return self._tenant_logs[tenant]

    async def link_pending(self) -> None:
        """Do nothing: no records wait to be linked."""

    async def write(self, batch: RecordsByChain, link: Link) -> None:
        """Add a batch to its chains, all or nothing, durably; raises StoreUnavailable."""
        chains = {key: self.tenant_log(key[0]).chain(key[1]) for key in batch}
        linked = {key: link(key, chains[key].end, batch[key]) for key in batch}
        for key, (segments, head) in linked.items():
            chains[key].take(segments, head)
            self.tenant_log(key[0]).add(segments)

    async def sign(self, tenants: Sequence[str], sign: Sign) -> dict[str, Checkpoint]:
        """Add a checkpoint of each tenant for which *sign* returns one, all or none, durably."""
        checkpoints = {tenant: await self.tenant_log(tenant).check(sign) for tenant in tenants}
        return {
            tenant: checkpoint
            for tenant, checkpoint in checkpoints.items()
            if checkpoint is not None
        }

    async def heads(
        self, after: str, limit: int, *, unsigned: str | None = None
    ) -> dict[str, list[ChainHead]]:
        """Return the heads of up to *limit* tenants, by name after *after*."""
        heads_by_tenant = {
            tenant: ends
            for tenant in sorted(self._tenant_logs)
            if tenant > after
            and (ends := self._tenant_logs[tenant].ends())
            and (unsigned is None or _is_unsigned(ends, unsigned))
        }
        return dict([*heads_by_tenant.items()][:limit])

    async def tenants(self) -> list[str]:
        """Return every tenant that has a head, a record or a checkpoint."""
        return sorted(name for name, log in self._tenant_logs.items() if log.ends())


def _is_unsigned(heads: Sequence[ChainHead], key: str) -> bool:
    grown = sum(-head.number if head.writer == CHECKPOINTS else head.number for head in heads)
    return grown != 0 or not all(head.proof.startswith(f"{key}.") for head in heads)
