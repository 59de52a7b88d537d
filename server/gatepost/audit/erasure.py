"""What goes from the record: a person's data, and what is older than it is kept."""

import time
from collections.abc import Callable, Sequence

import structlog

from gatepost.audit.chain import Linker, proven
from gatepost.audit.checkpoint import signer
from gatepost.audit.ranges import ranges_of
from gatepost.audit.record import Body, Side, decode_person, decode_side, draft
from gatepost.keyring import KeyRing
from gatepost.stores.api import Records
from gatepost.stores.audit import Draft, Head, Segment, TenantTrail

PAGE = 1_000
MOST_AT_ONCE = 20_000
"""About so many records go in one transaction."""
PEOPLE = ("caller", "about")

log = structlog.get_logger("gatepost.audit")


class Erasure:
    """
    Removes details, never records, but for those whose time is over.

    The chain holds commitments only, so it stays whole; that details were erased is a record of its
    own, which names the records: details that are gone without it are found by `verify`.
    """

    def __init__(
        self, records: Records, keyring: KeyRing, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._records, self._keyring, self._clock = records, keyring, clock

    async def erase_subject(self, tenant: str, issuer: str, subject: str) -> int:
        """
        Erase the details of every record that a person made or that is about it; how many.

        A revocation may name a subject of whatever issuer, and somebody may have acted for another
        one: both are about this person, too. Raises StoreUnavailable; it may be called again then.
        """

        def concerns(side: Side) -> bool:
            people = [decode_person(side[field][1]) for field in PEOPLE if field in side]
            return any(
                subject in (one.subject, one.actor) and one.issuer in (issuer, "") for one in people
            )

        return await self._erase(tenant, concerns, "subject")

    async def erase_tenant(self, tenant: str) -> int:
        """Erase the details of all of a tenant's records; how many."""
        return await self._erase(tenant, lambda side: True, "tenant")

    async def prune(self, tenant: str, before: float) -> int:
        """
        Remove the records from before a time (seconds since the epoch), as far as there is one
        younger; the number of the last one that went, 0 where none did.

        The one behind the cut must have something to hang on, so a checkpoint of the last one that
        goes is needed: records up to the last checkpoint before that time go.
        """
        trail, through = self._records.of(tenant).trail, 0
        head = await trail.head()
        if head is None:
            return 0
        begun = head.pruned
        while next_one := await self._cut_after(trail, begun, int(before * 1000)):
            body = self._body(tenant, "retention", "removed", {"through": str(next_one)})
            await trail.prune(next_one, [draft(body, {})], self._cutting(next_one))
            log.info("audit_pruned", tenant=tenant, through=next_one)
            begun = through = next_one
        return through

    async def _cut_after(self, trail: TenantTrail, pruned: int, limit: int) -> int:
        """The checkpoint to cut at next, not too far from the last cut; 0: there is none."""
        through = 0
        for number in (one.number for one in await trail.checkpoints()):
            if number <= pruned:
                continue
            if through and number > pruned + MOST_AT_ONCE:
                break
            last = await trail.rows(number - 1, 1)
            if not last or last[0].number != number or last[0].at >= limit:
                break
            through = number
        return through

    async def _erase(self, tenant: str, concerns: Callable[[Side], bool], why: str) -> int:
        trail, linker = self._records.of(tenant).trail, Linker(self._keyring)
        after, gone = 0, 0
        while page := await trail.rows(after, PAGE):
            after = page[-1].number
            numbers = [row.number for row in page if row.side and concerns(decode_side(row.side))]
            if numbers:
                details = {"records": ranges_of(numbers), "of": why}
                body = self._body(tenant, "erasure", "erased", details)
                await trail.erase(numbers, [draft(body, {})], linker.link)
                gone += len(numbers)
        return gone

    def _body(self, tenant: str, kind: str, outcome: str, details: dict[str, str]) -> Body:
        at = int(self._clock() * 1000)
        return Body(at=at, kind=kind, tenant=tenant, outcome=outcome, details=details)

    def _cutting(
        self, through: int
    ) -> Callable[[str, Head | None, Sequence[Draft]], tuple[list[Segment], Head]]:
        """Links as always, with a head that knows what is gone."""
        linker = Linker(self._keyring)

        def link(
            tenant: str, found: Head | None, drafts: Sequence[Draft]
        ) -> tuple[list[Segment], Head]:
            made, head = linker.link(tenant, found, drafts)
            return made, proven(_cut(head, through), self._keyring)

        return link


def _cut(head: Head, through: int) -> Head:
    return Head(
        head.tenant,
        head.number,
        head.hash,
        max(head.pruned, through),
        head.checkpoint,
        head.seal,
        "",
    )


async def sign(records: Records, keyring: KeyRing, tenant: str, clock: Callable[[], float]) -> None:
    """Sign a checkpoint of a tenant's chain, if it has grown, and tell it in the log."""
    checkpoint = await records.of(tenant).trail.check(signer(keyring, clock))
    if checkpoint is not None:
        log.info(
            "audit_checkpoint",
            tenant=tenant,
            number=checkpoint.number,
            statement=checkpoint.statement,
            signature=checkpoint.signature,
        )
