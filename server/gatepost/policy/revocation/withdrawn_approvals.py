"""Withdraw the approval requests and grants of revoked callers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from itertools import chain, repeat
from typing import Protocol

from gatepost.background import TaskSet
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.revocations import RevocationRecord

PAUSES_S = (1.0, 5.0, 30.0, 120.0)
"""Pauses between retries during an outage of the database; the last one repeats."""

log = logging.getLogger("gatepost.changes")


class RevocableApprovals(Protocol):
    """The approval requests and grants of all tenants, as far as revocations affect them."""

    async def tenants(self) -> set[str]:
        """Return the tenants that have any; raises StoreUnavailable."""

    async def withdraw(self, tenant: str) -> int:
        """End those of revoked people; return their number. Raises StoreUnavailable."""


class WithdrawnApprovals:
    """
    Withdraw approval requests, unused approvals and grants.

    Every replica does this after it has applied the revocation itself, so that no later request is
    missed; a second replica finds nothing left to do. An approval that is not withdrawn yet is
    invalid all the same, because `ApprovalService` applies the same rule whenever it reads one.
    """

    def __init__(
        self,
        approvals: RevocableApprovals,
        *,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._approvals, self._pause = approvals, pause
        self._tasks = TaskSet()

    def begin(self, revocations: Iterable[RevocationRecord]) -> None:
        """Withdraw what these revocations affect, in a background task."""
        if batch := tuple(revocations):
            self._tasks.start(self._withdraw(batch))

    async def aclose(self) -> None:
        """Stop; other replicas do the rest."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _withdraw(self, revocations: tuple[RevocationRecord, ...]) -> None:
        for pause_s in chain(PAUSES_S, repeat(PAUSES_S[-1])):
            try:
                await withdraw(self._approvals, revocations)
                return
            except StoreUnavailable as outage:
                log.warning("approvals_not_withdrawn", extra={"reason": str(outage)})
            await self._pause(pause_s)


async def withdraw(approvals: RevocableApprovals, revocations: Iterable[RevocationRecord]) -> int:
    """
    Withdraw what rests on revoked callers in the tenants of *revocations*; return the number.

    `ApprovalService` decides who is revoked, by the same rule as for tokens. So requests that a
    caller has made since then with a new token stay. Raises StoreUnavailable.
    """
    tenants = {record.tenant for record in revocations}
    if "" in tenants:
        tenants.update(await approvals.tenants())
    return sum([await approvals.withdraw(tenant) for tenant in sorted(tenants - {""})])
