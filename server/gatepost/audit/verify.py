"""`gatepost audit verify`: examines what a database holds, or an exported file."""

from collections.abc import Sequence

import msgspec

from gatepost.audit.checkpoint import PublicKeys
from gatepost.audit.examine import Bad, Examination
from gatepost.keyring import KeyRing
from gatepost.stores.api import Records
from gatepost.stores.audit import Checkpoint, Head, TenantTrail

PAGE = 1_000


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
    after = await _rows(examination, trail, head)
    examination.end()
    examination.pruned(pruned)
    if head is None:
        if after or signed:
            raise Bad(1, "the end of the chain is gone")
        return
    examination.head(head, keyring)
    if (more := await trail.rows(head.number, 1)) and await _is_behind(trail, more[0].number):
        raise Bad(more[0].number, "it stands behind the end of the chain")


async def _rows(examination: Examination, trail: TenantTrail, head: Head | None) -> int:
    """Examine the rows up to the head; how many there were."""
    seen = 0
    last = head.number if head is not None else None
    while page := await trail.rows(examination.last, PAGE):
        for row in page:
            if last is not None and row.number > last:
                return seen
            examination.row(row)
            seen += 1
    return seen


async def _is_behind(trail: TenantTrail, number: int) -> bool:
    """Whether the record is still behind the end: it may have been written since we looked."""
    head = await trail.head()
    return head is None or head.number < number
