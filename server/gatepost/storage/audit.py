"""
Audit records as stores keep them: segments of a chain, its head, and its checkpoints.

`gatepost.audit` makes and verifies records, proofs and signatures. A store keeps them in order, all
or nothing, and searches them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

Sort = tuple[str, str, str] | tuple[str, str, str, str, int]
"""
Kind, tool and outcome of a record, by which it is counted.

If it names a limit or counts several refusals, also the limit and their number.
"""

RECORD_BYTES = 120
"""
About how many bytes a record takes beside its body and its details: its hash, and its share of a
row.
"""


class AuditDraft(msgspec.Struct, frozen=True, gc=False):
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
    limit: str = ""
    """Part of the body: which limit has refused."""
    times: int = 1
    """Part of the body: the number of refusals that this record counts."""

    @property
    def sort(self) -> Sort:
        """Return how it is counted."""
        usual = (self.kind, self.tool, self.outcome)
        return (*usual, self.limit, self.times) if self.limit or self.times != 1 else usual


class Segment(msgspec.Struct, frozen=True, gc=False):
    """
    Consecutive records of one tenant that were added together, as they are stored.

    ``records`` contains the records; the other fields repeat parts of it for queries.
    """

    first: int
    """The number of its first record."""
    last: int
    since: int
    """The earliest ``at`` of its records."""
    until: int
    """The latest."""
    counts: str
    """
    The number of records of each sort as JSON: ``[[kind, tool, outcome, number], …]``.

    If records name a limit, the number of refusals: ``[kind, tool, outcome, limit, number]``.
    """
    records: str
    """JSON in the format of `gatepost.storage.audit_segments`."""


class ChainHead(msgspec.Struct, frozen=True):
    """The end of a tenant's chain, and its proof by the key ring."""

    tenant: str
    number: int
    """The number of the last record; 0: there is none."""
    hash: bytes
    pruned: int
    """The last record that was removed because its retention time was over; 0: none was."""
    checkpoint: int
    """The last record that a checkpoint covers; 0: there is no checkpoint."""
    seal: bytes
    """Digest of that checkpoint."""
    proof: str


class Checkpoint(msgspec.Struct, frozen=True):
    """A signed statement that the chain had this hash at this number."""

    number: int
    statement: str
    signature: str


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A search for records of a tenant; None matches any. Times are in milliseconds (epoch)."""

    text: str | None = None
    """A part of the record, in upper or lower case."""
    tool: str | None = None
    subject: str | None = None
    outcome: str | None = None
    kind: str | None = None
    since: int | None = None
    until: int | None = None
    """Before this time."""
    before: int | None = None
    """Only records with a smaller number: the page after the one that ended there."""
    limit: int = 50


class Count(msgspec.Struct, frozen=True):
    """
    The number of records of one tool and outcome within one slice of time.

    If they name a limit, it is the number of calls that the limit refused: one record can count
    many.
    """

    at: int
    """When the slice begins, in milliseconds since the epoch."""
    kind: str
    tool: str
    outcome: str
    number: int
    limit: str = ""
    """The limit that refused; records without one count once each."""


Batch = Mapping[str, Sequence[AuditDraft]]
"""Drafts by tenant."""
Link = Callable[[str, ChainHead | None, Sequence[AuditDraft]], tuple[list[Segment], ChainHead]]
"""Return a tenant's next segments, and the head that they lead to."""
Sign = Callable[[ChainHead], tuple[Checkpoint, ChainHead] | None]
"""Return a checkpoint of a head, and the head that names it; None if it has one."""


class TenantTrail(Protocol):
    """
    The audit trail of one tenant.

    Reading damaged records raises `gatepost.storage.audit_segments.Damaged`.
    """

    async def head(self) -> ChainHead | None:
        """Return the head of its chain, or None."""

    async def rows(self, after: int, limit: int) -> list[AuditRow]:
        """Return up to *limit* records after that number, in order."""

    async def segments(self, start: int, limit: int) -> list[Segment]:
        """
        Return up to *limit* segments as they are stored, whatever they contain.

        The first is the one whose first record has that number or the next higher one.
        """

    async def find(self, question: AuditQuery) -> list[AuditRow]:
        """Return the matching records, the newest first."""

    async def count(self, since: int, slice_ms: int) -> list[Count]:
        """Count the records since a time, slice by slice."""

    async def checkpoints(self) -> list[Checkpoint]:
        """Return its checkpoints, in order."""

    async def check(self, sign: Sign) -> Checkpoint | None:
        """Add a checkpoint of the head, durably; return None if none is needed."""

    async def erase(self, numbers: Sequence[int], drafts: Sequence[AuditDraft], link: Link) -> None:
        """Remove the details of these records and add the drafts, both or neither, durably."""

    async def prune(self, through: int, drafts: Sequence[AuditDraft], link: Link) -> None:
        """
        Remove the records up to that number and older checkpoints, and add the drafts, all or
        nothing, durably. A checkpoint of that number must exist.
        """


class AuditStore(Protocol):
    """Writes the records of all tenants."""

    async def write(self, batch: Batch, link: Link) -> None:
        """
        Add a batch to the chains, all or nothing, durably; raises StoreUnavailable.

        *link* may be called in another thread. What it returned counts only if no other process has
        added to that tenant's chain meanwhile; otherwise it is called again.
        """

    async def sign(self, tenants: Sequence[str], sign: Sign) -> dict[str, Checkpoint]:
        """
        Add a checkpoint of each head for which *sign* returns one, all or none, durably.

        The chains are locked while *sign* runs, so it should have its results ready. It may be
        called in another thread, and more than once for a head.
        """

    async def heads(
        self, after: str, limit: int, *, unsigned: str | None = None
    ) -> list[ChainHead]:
        """
        Return the heads of up to *limit* tenants, by name after *after*.

        With *unsigned*, the id of a key: only heads of chains that have grown since their last
        checkpoint, or that another key has proven.
        """

    async def tenants(self) -> list[str]:
        """Return every tenant that has a head, a record or a checkpoint."""
