"""`gatepost audit verify`: examines what a database holds, or an exported file."""

from collections.abc import Sequence

import msgspec

from gatepost.audit.checkpoint import PublicKeys
from gatepost.audit.examine import Bad, Examination
from gatepost.keyring import KeyRing
from gatepost.stores.api import Records
from gatepost.stores.audit import Checkpoint, Head, Segment, TenantTrail

PAGE = 100
"""Segments that are read at once."""
LOWEST = -(1 << 63)
"""Whoever writes to the database may have chosen any number."""


class Verdict(msgspec.Struct, frozen=True):
    """What came of examining one tenant's records."""

    tenant: str
    records: int
    last: int
    """The last record's number."""
    proven: int
    """The last record that a checkpoint proves; those behind it the key ring proves, if at hand."""
    erased: int
    """Records whose details were erased, which is on record."""
    bad: int | None = None
    """The first record that is not as it was written."""
    problem: str = ""


async def verify(
    records: Records,
    tenant: str,
    keys: PublicKeys,
    keyring: KeyRing | None,
    kept: Sequence[Checkpoint] = (),
) -> Verdict:
    """
    Examine a tenant's records in a database; nothing is changed.

    Without the key ring the records behind the last checkpoint are only known to hang together.
    """
    examination = Examination(tenant, keys)
    try:
        await _examine(examination, records.of(tenant).trail, keyring, kept)
    except Bad as bad:
        return verdict(tenant, examination, bad)
    return verdict(tenant, examination)


def verdict(tenant: str, found: Examination, bad: Bad | None = None) -> Verdict:
    """What the examination has found."""
    seen = (tenant, found.records, found.last, found.proven, found.erased)
    return Verdict(*seen) if bad is None else Verdict(*seen, bad.number, str(bad))


async def _examine(
    examination: Examination,
    trail: TenantTrail,
    keyring: KeyRing | None,
    kept: Sequence[Checkpoint],
) -> None:
    head = await trail.head()
    pruned = head.pruned if head is not None else 0
    signed = await trail.checkpoints()
    if head is not None:
        # A server may sign another one meanwhile.
        signed = [one for one in signed if one.number <= head.number] or signed
    examination.checkpoints(signed)
    for one in kept:
        examination.keep(one)
    examination.begin(pruned)
    found = await _segments(examination, trail, head)
    examination.end()
    examination.pruned(pruned)
    if head is None:
        if found or signed:
            raise Bad(1, "the end of the chain is gone")
        return
    examination.head(head, keyring)
    if (more := await trail.segments(head.number + 1, 1)) and await _is_behind(trail, more[0]):
        raise Bad(head.number + 1, "it stands behind the end of the chain")


async def _segments(examination: Examination, trail: TenantTrail, head: Head | None) -> bool:
    """Examine the segments up to the head; whether there was any."""
    start = LOWEST
    while page := await trail.segments(start, PAGE):
        for segment in page:
            if head is not None and segment.first > head.number:
                return True
            examination.segment(segment)
        start = page[-1].first + 1
    return start != LOWEST


async def _is_behind(trail: TenantTrail, segment: Segment) -> bool:
    """Whether it is still behind the end: it may have been written since we looked."""
    head = await trail.head()
    return head is None or head.number < segment.first
