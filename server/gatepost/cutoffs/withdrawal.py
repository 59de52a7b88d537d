"""What waits for a person's decision ends with whoever asked for it, wherever it was asked."""

import asyncio
import math
from collections.abc import Iterable

import structlog

from gatepost.approvals.desk import Desk
from gatepost.stores.api import Records, StoreUnavailable
from gatepost.stores.approvals import Whose
from gatepost.stores.cutoffs import CutOff

KINDS = ("approvals", "grants")
PAUSES_S = (1.0, 5.0, 30.0, 120.0)
"""How long until what the database did not take is tried again."""
SETTLE_S = 60.0
"""How much later than a cut-off something may be kept that came before it: clocks differ."""

log = structlog.get_logger("gatepost.cutoffs")


class Withdrawals:
    """
    Withdraws requests for approval, approvals that nobody has used yet, and grants.

    Every replica does, each after it has shut the callers out itself, so that nothing they ask for
    meanwhile is missed; who comes second finds nothing left to do.
    """

    def __init__(self, records: Records, desk: Desk) -> None:
        self._records, self._desk = records, desk
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, cuts: Iterable[CutOff]) -> None:
        """Withdraw what these cut-offs reach, by and by."""
        if wanted := tuple(cuts):
            task = asyncio.get_running_loop().create_task(self._withdraw(wanted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Leave what is still to do to the others."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _withdraw(self, cuts: tuple[CutOff, ...]) -> None:
        for pause_s in (*PAUSES_S, None):
            try:
                for cut in cuts:
                    await withdraw(self._records, self._desk, cut)
                return
            except StoreUnavailable as outage:
                log.warning("approvals_not_withdrawn", reason=str(outage))
            if pause_s is not None:
                await asyncio.sleep(pause_s)


async def withdraw(records: Records, desk: Desk, cut: CutOff) -> int:
    """
    Withdraw what one cut-off reaches; how much that was. Raises StoreUnavailable.

    A process that starts acts on a cut-off that others have acted on: what somebody has asked for
    since then, with a new token, is none of its business.
    """
    whose = Whose(
        issuer=cut.issuer or None, subject=cut.subject or None, client_id=cut.client or None
    )
    tenants = [cut.tenant] if cut.tenant else await records.estate.tenants(*KINDS)
    until = math.inf if cut.suspends else max(cut.before, cut.blocked_until) + SETTLE_S
    return sum([await desk.withdraw(tenant, whose, until=until) for tenant in tenants])
