"""Batches of records on their way into the hash chains, and the attempts to write them."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256

import msgspec

from gatepost.audit.chain import (
    HeadProofs,
    first,
    proven,
    split_rows,
    tampering_reason,
    writer_member,
)
from gatepost.audit.record import AuditEntry, BuiltRecord
from gatepost.audit.record_builder import log_record
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import (
    AuditRow,
    AuditStore,
    ChainHead,
    ChainKey,
    NewAuditRecord,
    Segment,
)
from gatepost.storage.audit_segments import Damaged, element, rows_of, segments
from gatepost.storage.commit import CommitFuture
from gatepost.storage.errors import StoreUnavailable

MAX_WAITING = 10_000
"""Records that are kept in memory during an outage of the database."""
QUICK_S = 1.0
"""A first failure of a batch that is faster than this is retried at once."""
LATE_AT_ONCE = 1_000
"""Delayed records per commit after an outage: all at once could exceed the time limit."""

log = logging.getLogger(__name__)

Listener = Callable[[str, Sequence[AuditRow]], object]
"""Receives durable records of a tenant."""


class AlreadyWritten(Exception):
    """An earlier attempt has written the batch; only the answer to its commit was lost."""

    def __init__(self, attempt: "WriteAttempt") -> None:
        super().__init__("the batch is written")
        self.attempt = attempt


class WriteAttempt(msgspec.Struct, eq=False):
    """
    One attempt to add a batch of records to chains of their tenants.

    A head that no server can have written is not extended silently, because the next proof would
    hide the removal of records. A `break` record is written instead.

    The store moves the end of a chain only if the end is the one that the attempt has read.
    Attempts to write the same batch name the same chains, so at most one of them counts. If two
    attempts have read the same end, only the first one is written. If they have read different
    ends, the earlier attempt can no longer be written.
    """

    keyring: KeyRing
    last_heads: Mapping[ChainKey, ChainHead] = {}
    """The last head of each chain that this process has written."""
    earlier: Sequence["WriteAttempt"] = ()
    """Attempts to write the same batch whose result is unknown."""
    heads: dict[ChainKey, ChainHead] = {}
    """The heads after the batch, by chain."""
    segments: dict[ChainKey, list[Segment]] = {}
    """The records of the batch, by chain."""
    break_reasons: dict[ChainKey, str] = {}
    """The reasons for `break` records that a store has given, by chain."""
    other_rows: list[tuple[str, list[AuditRow]]] = []
    """Records of this process that another process has linked, with their tenants."""
    reported_elsewhere: dict[ChainKey, Counter[bytes]] = {}
    """The bodies of the new records that another process reports, by chain."""
    after: Callable[["WriteAttempt"], object] | None = None
    """The function that `committed` calls."""
    broken: dict[ChainKey, tuple[int, str]] = {}
    """The last record before the `break` record and its reason, of each chain that gets one."""

    def link(
        self, chain: ChainKey, stored_head: ChainHead | None, new_records: Sequence[NewAuditRecord]
    ) -> tuple[list[Segment], ChainHead]:
        """
        Return the next segments of a chain and its new head; implements `Link`.

        Raises AlreadyWritten, and StoreUnavailable if the chain must be read to decide that.
        """
        for attempt in self.earlier:
            if attempt._led_to(chain, stored_head):
                raise AlreadyWritten(attempt)
        (tenant, writer), last_head = chain, self.last_heads.get(chain)
        head = stored_head or first(chain)
        if self.broken:
            self.broken.pop(chain, None)
        reason = self.break_reasons.get(chain, "") if self.break_reasons else ""
        if not reason and stored_head is not last_head and stored_head != last_head:
            reason = tampering_reason(stored_head, last_head, self.keyring)
        if reason:
            self.broken[chain] = head.number, reason
            at = new_records[0].at if new_records else int(time.time() * 1000)
            new_records = [log_record("break", tenant, "broken", at, reason=reason), *new_records]
        number, previous, elements = head.number, head.hash, list[bytes]()
        named = writer_member(writer)
        for record in new_records:
            number += 1
            body = b'{"number":%d%b%b' % (number, named, record.body)
            previous = sha256(previous + body).digest()
            elements.append(element(body, record.side, previous))
        times, sorts = (
            [record.at for record in new_records],
            [record.sort for record in new_records],
        )
        new_segments = segments(writer, head.number + 1, elements, times, sorts)
        self.segments[chain] = new_segments
        head = ChainHead(tenant, writer, number, previous, head.pruned, "")
        head = self.heads[chain] = proven(head, self.keyring)
        return new_segments, head

    def add_break(self, chain: ChainKey, reason: str) -> None:
        """Implement `Extension`."""
        self.break_reasons[chain] = reason

    def note_linked_elsewhere(
        self, head: ChainHead, rows: Sequence[AuditRow], new_records: Sequence[NewAuditRecord]
    ) -> None:
        """Implement `Extension`."""
        own_rows, _ = split_rows(rows, Counter([record.body for record in new_records]))
        self.heads[head.key] = head
        self.other_rows.append((head.tenant, own_rows))

    def note_reported_elsewhere(
        self, chain: ChainKey, new_records: Sequence[NewAuditRecord]
    ) -> None:
        """Implement `Extension`."""
        self.reported_elsewhere.setdefault(chain, Counter()).update(
            [record.body for record in new_records]
        )

    def reported(self, chain: ChainKey) -> list[AuditRow]:
        """Return the records of a chain that this process has linked and reports itself."""
        segments, elsewhere = self.segments[chain], self.reported_elsewhere.get(chain)
        if elsewhere is not None and elsewhere.total() == sum(
            segment.last + 1 - segment.first for segment in segments
        ):
            return []  # nearly always: a chain has one writer
        rows = [row for segment in segments for row in rows_of(segment)]
        return rows if elsewhere is None else split_rows(rows, elsewhere)[1]

    def committed(self) -> None:
        """Implement `Extension`."""
        if self.after is not None:
            self.after(self)

    def report(self) -> None:
        """
        Log the chains that were broken, once the batch is durable.

        Not before: a store may show an end that another write has moved meanwhile, which is no
        break, and then shows the right one.
        """
        for (tenant, writer), (number, reason) in self.broken.items():
            log.error(
                "audit_chain_broken",
                extra={"tenant": tenant, "writer": writer, "number": number, "reason": reason},
            )

    def _led_to(self, chain: ChainKey, stored_head: ChainHead | None) -> bool:
        """Return whether this attempt has written the end of the chain; raises StoreUnavailable."""
        head = self.heads.get(chain)
        if head is None or stored_head is None or stored_head.number < head.number:
            return False
        if stored_head.number > head.number:
            raise StoreUnavailable("other records were written meanwhile")  # `is_written` tells
        return stored_head.hash == head.hash

    async def is_written(self, audit_store: AuditStore) -> bool | None:
        """Return whether its records are in the chain; None if the chain is shorter."""
        # All chains of a batch grow together, so checking one of them is enough.
        for (tenant, writer), head in list(self.heads.items())[:1]:
            try:
                last_rows = (
                    await audit_store.tenant_log(tenant).chain(writer).rows(head.number - 1, 1)
                )
            except Damaged:
                return False
            if last_rows:
                return last_rows[0].number == head.number and last_rows[0].hash == head.hash
            return None
        return False


class RingLinker(HeadProofs, eq=False):
    """Implement `Linker`; *listener* receives all records of this process in *loop*."""

    listener: Listener | None = None
    loop: asyncio.AbstractEventLoop | None = None
    last_heads: dict[ChainKey, ChainHead] = {}
    """The last head of each chain that this process has written."""

    def begin(self) -> WriteAttempt:
        """Implement `Linker`."""
        return WriteAttempt(self.keyring, self.last_heads, after=self.committed)

    def committed(self, attempt: WriteAttempt) -> None:
        """Report a durable attempt, in any thread."""
        self.last_heads |= attempt.heads
        attempt.report()
        if self.listener is not None and self.loop is not None:
            with suppress(RuntimeError):  # it is closed
                self.loop.call_soon_threadsafe(self._notify, attempt, self.listener)

    def _notify(self, attempt: WriteAttempt, listener: Listener) -> None:
        linked = ((chain[0], attempt.reported(chain)) for chain in attempt.segments)
        for tenant, rows in (*attempt.other_rows, *linked):
            if rows:
                listener(tenant, rows)


class Batch(msgspec.Struct, eq=False):
    """Records that are written together, once, and the commit that their calls wait for."""

    entries: Sequence[AuditEntry]
    commit: CommitFuture
    new_records: Mapping[ChainKey, Sequence[NewAuditRecord]] = {}
    """The entries by chain, once their records are built."""
    failed: bool = False
    """Whether an attempt has failed."""
    attempts: list[WriteAttempt] = []
    """Attempts whose result is unknown."""

    def fails(self, took_s: float) -> bool:
        """Note a failed attempt; return whether it is the first one, and was quick."""
        is_first, self.failed = not self.failed, True
        return is_first and took_s < QUICK_S

    def report_outage(self, reason: str, *, is_refusing: bool) -> None:
        """Log that the batch is not written, and whether calls are refused until it is."""
        records = len(self.entries)
        log.error(
            "audit_not_written",
            extra={"records": records, "reason": reason, "refusing": is_refusing},
        )

    async def written(self, audit_store: AuditStore) -> WriteAttempt | None:
        """
        Return the attempt that has written the batch, if the chain contains one.

        Forgets those that have not and cannot any more. Raises StoreUnavailable.
        """
        for attempt in tuple(self.attempts):
            is_written = await attempt.is_written(audit_store)
            if is_written:
                return attempt
            if is_written is False:
                self.attempts.remove(attempt)
        return None


class DelayedRecords(msgspec.Struct, eq=False):
    """Records from the time of an outage, which wait in memory; those that do not fit are lost."""

    entries: list[AuditEntry] = []
    lost_counts: Counter[str] = msgspec.field(default_factory=Counter)
    """The number of lost records by tenant; a `gap` record says it."""

    def add(self, built: Mapping[str, Sequence[NewAuditRecord]], reserved: int) -> None:
        """Add built records behind the *reserved* records of a batch, as many as fit."""
        new_entries = [
            BuiltRecord(tenant, record) for tenant, new in built.items() for record in new
        ]
        free_entries = max(MAX_WAITING - len(self.entries) - reserved, 0)
        self.entries += new_entries[:free_entries]
        self.lost_counts.update(entry.tenant for entry in new_entries[free_entries:])
        if new_entries[free_entries:]:
            log.error("audit_records_lost", extra={"records": len(new_entries[free_entries:])})

    def take(self, now: float) -> list[AuditEntry]:
        """Remove and return the entries of the next batch; *now* is in seconds since the epoch."""
        taken_entries, self.entries = self.entries[:LATE_AT_ONCE], self.entries[LATE_AT_ONCE:]
        lost_counts, self.lost_counts = self.lost_counts, Counter()
        gaps: list[AuditEntry] = [
            BuiltRecord(
                tenant, log_record("gap", tenant, "lost", int(now * 1000), records=str(number))
            )
            for tenant, number in lost_counts.items()
        ]
        return [*gaps, *taken_entries]
