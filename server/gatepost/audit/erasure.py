"""Erase the details of audit records; the hash chain covers only commitments to them."""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable

from gatepost.audit.chain import WriteAttempt
from gatepost.audit.record import RecordBody, Side, decode_person, decode_side
from gatepost.audit.record_builder import new_record
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import TenantChain
from gatepost.storage.records import Records

PAGE = 1_000
"""Records that are read at once."""
PEOPLE = ("caller", "about")
"""The details that identify a person."""


class DetailErasure:
    """
    Erase details of records.

    The chain covers only commitments, so it stays valid. An erasure record names the records;
    `verify` reports details that are missing without one.
    """

    def __init__(
        self, records: Records, keyring: KeyRing, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._records, self._keyring, self._clock = records, keyring, clock

    async def erase_subject(self, tenant: str, issuer: str, subject: str) -> int:
        """
        Erase the details of every record by or about a person; return the number.

        Revocations without an issuer and records in which the person acted for another are
        included. Raises StoreUnavailable; you can then call it again.
        """

        def concerns(side: Side) -> bool:
            people = [decode_person(side[field][1]) for field in PEOPLE if field in side]
            return any(
                subject in (one.subject, one.actor) and one.issuer in (issuer, "") for one in people
            )

        return await self._erase(tenant, concerns, "subject")

    async def erase_tenant(self, tenant: str) -> int:
        """Erase the details of all of a tenant's records, and its sums; return how many records."""
        erased = await self._erase(tenant, lambda side: True, "tenant")
        await self._records.of(tenant).trail.forget_counts()
        return erased

    async def _erase(self, tenant: str, concerns: Callable[[Side], bool], why: str) -> int:
        trail = self._records.of(tenant).trail
        return sum(
            [
                await self._erase_in(trail.chain(writer), tenant, concerns, why)
                for writer in await trail.writers()
            ]
        )

    async def _erase_in(
        self, chain: TenantChain, tenant: str, concerns: Callable[[Side], bool], why: str
    ) -> int:
        """Erase details in one chain, which gets the erasure record."""
        after, erased = 0, 0
        while page := await chain.rows(after, PAGE):
            after = page[-1].number
            numbers = [row.number for row in page if row.side and concerns(decode_side(row.side))]
            if numbers:
                body = RecordBody(
                    at=int(self._clock() * 1000),
                    kind="erasure",
                    tenant=tenant,
                    outcome="erased",
                    details={"records": ranges_of(numbers), "of": why},
                )
                attempt = WriteAttempt(self._keyring)
                await chain.erase(numbers, [new_record(body, {})], attempt.link)
                attempt.report()
                erased += len(numbers)
        return erased


Ranges = list[tuple[int, int]]
"""The first and last number of each range, in order."""


def ranges_of(numbers: Iterable[int]) -> str:
    """Return ascending numbers as an erasure record names them: 1-3,7."""
    found: Ranges = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def numbers_of(ranges: str) -> Ranges:
    """Return the ranges that `ranges_of` wrote."""
    found = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if first:
            found.append((int(first), int(last or first)))
    return found


def inside(number: int, ranges: Ranges) -> bool:
    """Return whether one of the ranges contains the number."""
    at = bisect_right(ranges, (number, 1 << 62)) - 1
    return at >= 0 and number <= ranges[at][1]
