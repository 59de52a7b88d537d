"""
Audit records as stores keep them: segments of chains, their heads, and checkpoints.

Each writer, which is a process, has a hash chain of its own in each tenant.

`gatepost.audit` makes and verifies records, proofs and signatures. A store keeps them in order, all
or nothing, and searches them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Protocol

import msgspec

Sort = tuple[str, str, str] | tuple[str, str, str, str, int]
"""
The kind, tool and outcome by which records are counted.

If a record names a limit or counts several refusals, also the limit and their number.
"""

ChainKey = tuple[str, int]
"""A chain: its tenant, and the number of its writer."""
Position = tuple[int, int, int]
"""The ``at``, writer and number of a record, by which the records of a tenant are ordered."""

FIRST_WRITER = 1
"""The writer of a single process. Records do not name it, so they need only their number."""
CHECKPOINTS = 0
"""
The writer of the chain that a tenant's checkpoints form.

The number of its head is how many records of all chains the last checkpoint covers, and the hash is
the digest of that checkpoint.
"""

EVERY_TENANT = "-"
"""The tenant of records that concern no single tenant; no tenant has this id."""

RECORD_BYTES = 120
"""
The approximate bytes of a record beside its body and its details: its hash, and its share of a row.
"""


StoredInteger = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
"""The largest number that a database can store; a changed batch may contain any number."""


class NewAuditRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A record without a number."""

    body: bytes
    """Its canonical body, from the comma after the number to the end."""
    at: int
    """Milliseconds since the epoch."""
    sort: Sort
    side: bytes | None
    """The details that the body commits to, as a JSON object; None: it has none."""


class AuditRow(msgspec.Struct, frozen=True, gc=False):
    """
    One record as it is read.

    ``body`` is the hashed part. ``at``, ``kind``, ``tool`` and ``outcome`` repeat parts of it for
    queries, and ``subject`` repeats a part of ``side``: the details that the body commits to, or
    None after they were erased.
    """

    number: int
    """From 1, without gaps."""
    at: int
    kind: str
    tool: str
    outcome: str
    subject: str | None
    body: str
    side: str | None
    hash: bytes
    """SHA-256 of the previous record's hash and the body."""
    writer: int = FIRST_WRITER
    """Part of the body: the writer of the chain."""
    limit: str = ""
    """Part of the body: the limit that has refused."""
    times: int = 1
    """Part of the body: the number of refusals that this record counts."""

    @property
    def position(self) -> Position:
        """Return where it is among the records of its tenant."""
        return self.at, self.writer, self.number

    @property
    def sort(self) -> Sort:
        """Return how it is counted."""
        usual = (self.kind, self.tool, self.outcome)
        return (*usual, self.limit, self.times) if self.limit or self.times != 1 else usual


class Segment(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """
    Consecutive records of one chain that were added together, as they are stored.

    ``records`` contains the records; the other fields repeat parts of it for queries.
    """

    writer: StoredInteger
    first: StoredInteger
    """The number of its first record."""
    last: StoredInteger
    since: StoredInteger
    """The earliest ``at`` of its records."""
    until: StoredInteger
    """The latest."""
    counts: str
    """JSON in the format of `gatepost.storage.audit_counts`."""
    records: str
    """JSON in the format of `gatepost.storage.audit_segments`."""


class ChainHead(msgspec.Struct, frozen=True):
    """The end of a chain, and its proof by the key ring."""

    tenant: str
    writer: int
    number: int
    """The number of the last record; 0: there is none."""
    hash: bytes
    pruned: int
    """The last record that was removed because its retention time was over; 0: none was."""
    proof: str

    @property
    def key(self) -> ChainKey:
        """Return which chain it is the end of."""
        return self.tenant, self.writer


class Checkpoint(msgspec.Struct, frozen=True):
    """A signed statement of the ends of all chains of a tenant."""

    number: int
    """How many records it covers, with those that were removed."""
    statement: str
    signature: str


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A search for records of a tenant; None matches all. Times are in milliseconds (epoch)."""

    text: str | None = None
    """A part of the record, in upper or lower case."""
    tool: str | None = None
    subject: str | None = None
    outcome: str | None = None
    kind: str | None = None
    since: int | None = None
    until: int | None = None
    """Before this time."""
    before: Position | None = None
    """Only records with a lower position: the page after the one that ended at this position."""
    limit: int = 50


class Count(msgspec.Struct, frozen=True):
    """
    The number of records of one tool and outcome within one slice of time.

    If they name a limit, it is the number of calls that the limit refused: one record can count
    many.
    """

    at: int
    """The beginning of the slice, in milliseconds since the epoch."""
    kind: str
    tool: str
    outcome: str
    number: int
    limit: str = ""
    """The limit that refused; records without one count once each."""


RecordsByChain = Mapping[ChainKey, Sequence[NewAuditRecord]]
"""New records by chain."""
Link = Callable[
    [ChainKey, ChainHead | None, Sequence[NewAuditRecord]], tuple[list[Segment], ChainHead]
]
"""Return the next segments of a chain, and the head that they lead to."""
Sign = Callable[[Sequence[ChainHead], Checkpoint | None], tuple[Checkpoint, ChainHead] | None]
"""
Return a checkpoint of a tenant's heads, and the head of the chain of checkpoints that it leads to;
None if none is needed. The heads are sorted by writer, and include that of the checkpoints. The
second argument is the tenant's stored checkpoint with the highest number, if there is any.
"""


class Extension(Protocol):
    """One transaction that adds records to chains."""

    def link(
        self, chain: ChainKey, head: ChainHead | None, new_records: Sequence[NewAuditRecord]
    ) -> tuple[list[Segment], ChainHead]:
        """Implement `Link`."""

    def add_break(self, chain: ChainKey, reason: str) -> None:
        """Have `link` add a `break` record before the new records of a chain."""

    def note_linked_elsewhere(
        self, head: ChainHead, rows: Sequence[AuditRow], new_records: Sequence[NewAuditRecord]
    ) -> None:
        """
        Take note that another process has linked these new records of this one.

        They are among the rows, beside the records of processes that write to the same chain.
        """

    def note_reported_elsewhere(
        self, chain: ChainKey, new_records: Sequence[NewAuditRecord]
    ) -> None:
        """Take note that another process, which runs, reports these new records of a chain."""

    def committed(self) -> None:
        """Report the linked records; call this once they are durable."""


class Linker(Protocol):
    """Links records with the key ring, in any thread."""

    def begin(self) -> Extension:
        """Return what links the records of one transaction."""

    def prove(self, head: ChainHead) -> ChainHead:
        """Return a head with its proof."""

    def proves(self, head: ChainHead) -> bool:
        """Return whether a holder of the key ring has proven this head."""

    def invalid_reason(self, head: ChainHead) -> str:
        """Return why the proof of a head is invalid, or an empty text if it may be valid."""


class TenantChain(Protocol):
    """
    The audit records of one writer in one tenant.

    Reading damaged records raises `gatepost.storage.audit_segments.Damaged`.
    """

    async def rows(self, after: int, limit: int) -> list[AuditRow]:
        """Return up to *limit* records after that number, in order."""

    async def segments(self, start: int, limit: int) -> list[Segment]:
        """
        Return up to *limit* segments as they are stored, whatever they contain.

        The first is the one whose first record has that number or the next higher one.
        """

    async def erase(
        self, numbers: Sequence[int], new_records: Sequence[NewAuditRecord], link: Link
    ) -> None:
        """Remove the details of these records and add the new records, both or neither, durably."""


class TenantAuditLog(Protocol):
    """The audit log of one tenant: its chains and its checkpoints."""

    def chain(self, writer: int) -> TenantChain:
        """Return the records of one writer."""

    async def heads(self) -> list[ChainHead]:
        """Return the heads of its chains, with that of its checkpoints, sorted by writer."""

    async def writers(self) -> list[int]:
        """Return every writer that has a head or a record, sorted; not that of checkpoints."""

    async def find(self, query: AuditQuery) -> list[AuditRow]:
        """Return the matching records of all chains by position, the newest first."""

    async def horizon(self, before: int | None, segments: int) -> int | None:
        """
        Return the time by which all but the newest *segments* ended; None if there are no more.

        With *before*, the segments that ended later than that time (milliseconds) do not count.
        """

    async def count(self, since: int, slice_ms: int) -> list[Count]:
        """
        Count the calls, refusals and refused tokens of all chains since a time, slice by slice.

        Reads hourly sums, which are kept for a month: both numbers are of full hours.
        """

    async def forget_counts(self) -> None:
        """Remove all sums that `count` reads, durably; the records stay."""

    async def checkpoints(self) -> list[Checkpoint]:
        """Return its checkpoints, in order."""

    async def check(self, sign: Sign) -> Checkpoint | None:
        """Add a checkpoint of the heads, durably; return None if none is needed."""

    async def prune(
        self,
        through: Mapping[int, int],
        new_records: Mapping[int, Sequence[NewAuditRecord]],
        link: Link,
    ) -> bool:
        """
        Remove the records of each writer up to a number, and checkpoints before a number.

        Return False, and change nothing, if another process has removed as many or more.

        The new records are added, all or nothing, durably. *through* and *new_records* have the
        numbers and the new records by writer; `CHECKPOINTS` is among them, without new records, and
        a checkpoint of its number must exist.
        """


class AuditStore(Protocol):
    """The audit log of all tenants, as `Records.open_audit` opens it."""

    is_failing: bool
    """Whether linking the written records failed the last time; it is tried again."""

    def tenant_log(self, tenant: str) -> TenantAuditLog:
        """Return the audit log of one tenant; this costs nothing and keeps tenants apart."""

    async def link_pending(self) -> None:
        """
        Link all records that were written; raises StoreUnavailable.

        The methods that read or change records do this first.
        """

    async def write(self, batch: RecordsByChain, link: Link) -> None:
        """
        Add a batch to its chains, all or nothing, durably; raises StoreUnavailable.

        *link* may be called in another thread. If the head of a chain has changed since *link* saw
        it, the result is discarded and *link* is called again.

        SQLite does not call *link*: the store's linker links the batch later. You may then write
        the same batch object again right after an error, and it is stored only once.
        """

    async def sign(self, tenants: Sequence[str], sign: Sign) -> dict[str, Checkpoint]:
        """
        Add a checkpoint of each tenant for which *sign* returns one, all or none, durably.

        The chains of checkpoints are locked while *sign* runs, so it should have its results ready.
        Writers do not wait. *sign* may be called in another thread, and more than once for a
        tenant.
        """

    async def heads(
        self, after: str, limit: int, *, unsigned: str | None = None
    ) -> dict[str, list[ChainHead]]:
        """
        Return the heads of up to *limit* tenants, by name after *after*, as in `TenantAuditLog`.

        With *unsigned*, the id of a key: only tenants with records that no checkpoint covers, or
        with a head that another key has proven.
        """

    async def tenants(self) -> list[str]:
        """Return every tenant that has a head, a record or a checkpoint."""


def record_id(writer: int, number: int) -> str:
    """Return how a record is named among those of its tenant: ``17``, or ``2-17`` of writer 2."""
    return f"{number}" if writer == FIRST_WRITER else f"{writer}-{number}"
