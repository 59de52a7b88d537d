"""
The record of what happened, as stores keep it: rows in a chain, its end, and its checkpoints.

What a row, a proof and a signature say is made and judged in `gatepost.audit`; a store keeps them
in order, together or not at all, and answers questions about them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

Sort = tuple[str, str, str] | tuple[str, str, str, str, int]
"""
Kind, tool and outcome of a record; where it names a limit, also that and how often it has refused.
"""


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A record that has no number yet."""

    body: bytes
    """Its canonical body, from the comma behind the number to the end."""
    at: int
    """Milliseconds since the epoch."""
    sort: Sort
    side: bytes | None
    """What stands behind the body's commitments, as a JSON object; None: it has none."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """
    One record as it is read.

    ``body`` is what the hash is of. ``at``, ``kind``, ``tool`` and ``outcome`` repeat parts of it
    for questions, ``subject`` a part of ``side``: what stands behind the body's commitments, which
    is none any more once it was erased.
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
    """Part of the body where that names a limit: so many refusals are one record."""

    @property
    def sort(self) -> Sort:
        """What it is counted as."""
        usual = (self.kind, self.tool, self.outcome)
        return (*usual, self.limit, self.times) if self.limit else usual


class Segment(msgspec.Struct, frozen=True, gc=False):
    """
    Consecutive records of one tenant that were added together, as they are kept.

    ``records`` is what was recorded; the other fields repeat parts of it, for questions.
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
    How many there are of each sort: JSON, ``[[kind, tool, outcome, number], …]``; where records
    name a limit, how often it has refused: ``[kind, tool, outcome, limit, number]``.
    """
    records: str
    """JSON, see `gatepost.stores.segment`."""


class Head(msgspec.Struct, frozen=True):
    """Where a tenant's chain ends, and a proof of that by the key ring."""

    tenant: str
    number: int
    """Of the last record; 0: there is none."""
    hash: bytes
    pruned: int
    """The last record that was removed because its time was over; 0: none was."""
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


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Which records of a tenant; None is any. Times are milliseconds since the epoch."""

    text: str | None = None
    """Somewhere in the record, in upper or lower case."""
    tool: str | None = None
    subject: str | None = None
    outcome: str | None = None
    kind: str | None = None
    since: int | None = None
    until: int | None = None
    """Before this time."""
    before: int | None = None
    """Only records with a smaller number: the page behind the one that ended there."""
    limit: int = 50


class Count(msgspec.Struct, frozen=True):
    """
    How many records of one tool ended one way within one slice of time; where they name a limit,
    how many calls it has refused, since many can be one record.
    """

    at: int
    """When the slice begins, in milliseconds since the epoch."""
    kind: str
    tool: str
    outcome: str
    number: int
    limit: str = ""
    """Which of our limits has refused; records that do not say it count once each."""


Batch = Mapping[str, Sequence[Draft]]
"""Drafts by tenant."""
Link = Callable[[str, Head | None, Sequence[Draft]], tuple[list[Segment], Head]]
"""Makes a tenant's next segments, and the head that they lead to."""
Sign = Callable[[Head], tuple[Checkpoint, Head] | None]
"""Makes a checkpoint of a head, and the head that knows of it; None: it has one."""


class TenantTrail(Protocol):
    """
    One tenant's records.

    Whatever needs records that nobody can read any more raises `gatepost.stores.segment.Damaged`.
    """

    async def head(self) -> Head | None:
        """Where its chain ends; None: it has none."""

    async def rows(self, after: int, limit: int) -> list[Row]:
        """So many records behind that number, in their order."""

    async def segments(self, start: int, limit: int) -> list[Segment]:
        """
        So many segments as they are kept, whatever they hold, from the one on whose first record
        has that number or a higher one.
        """

    async def find(self, question: Question) -> list[Row]:
        """Its records that the question is about, the newest first."""

    async def count(self, since: int, slice_ms: int) -> list[Count]:
        """How much there is since a time, slice by slice."""

    async def checkpoints(self) -> list[Checkpoint]:
        """Its checkpoints, in their order."""

    async def check(self, sign: Sign) -> Checkpoint | None:
        """Add a checkpoint of the head, durably; None where there is nothing to be said."""

    async def erase(self, numbers: Sequence[int], drafts: Sequence[Draft], link: Link) -> None:
        """Remove the side parts of these records and add the drafts, both or neither, durably."""

    async def prune(self, through: int, drafts: Sequence[Draft], link: Link) -> None:
        """
        Remove the records up to that number and older checkpoints, and add the drafts, all or
        nothing, durably. There must be a checkpoint of that number.
        """


class Scribe(Protocol):
    """Writes records of all tenants."""

    async def write(self, make: Callable[[], Batch], link: Link) -> dict[str, Sequence[Row]]:
        """
        Add what *make* makes to the chains, all or nothing, durably; what was added, by tenant.

        *make* and *link* may be called in another thread. What *link* made counts only if nobody
        has added to that tenant's chain meanwhile; else it is called again. Raises
        StoreUnavailable.
        """

    async def heads(self) -> list[Head]:
        """Where each tenant's chain ends."""

    async def tenants(self) -> list[str]:
        """Every tenant of whom there is anything: a head, a record, a checkpoint."""
