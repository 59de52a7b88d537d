"""What waits for a person's decision ends with whoever asked for it, wherever it was asked."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import chain, repeat

import structlog

from gatepost.approvals import scripts
from gatepost.approvals.desk import Desk
from gatepost.stores.api import Records, StoreUnavailable
from gatepost.stores.cutoffs import CutOff

PAUSES_S = (1.0, 5.0, 30.0, 120.0)
"""How long until what the database did not take is tried again; then as long as the last."""

log = structlog.get_logger("gatepost.cutoffs")


class Withdrawals:
    """
    Withdraws requests for approval, approvals that nobody has used yet, and grants.

    Every replica does, each after it has shut the callers out itself, so that nothing they ask for
    meanwhile is missed; who comes second finds nothing left to do. What it comes too late for
    counts for nothing all the same: the desk judges what it looks at by the same rule.
    """

    def __init__(
        self,
        records: Records,
        desk: Desk,
        *,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._records, self._desk, self._pause = records, desk, pause
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
        for pause_s in chain(PAUSES_S, repeat(PAUSES_S[-1])):
            try:
                await withdraw(self._records, self._desk, cuts)
                return
            except StoreUnavailable as outage:
                log.warning("approvals_not_withdrawn", reason=str(outage))
            await self._pause(pause_s)


async def withdraw(records: Records, desk: Desk, cuts: Iterable[CutOff]) -> int:
    """
    Withdraw what rests on whoever is shut out, where these cut-offs may have shut out somebody; how
    much that was. Raises StoreUnavailable.

    Whom they reach is not said here: the desk asks whoever judges tokens. So what somebody has
    asked for since then, with a new token, is left alone.
    """
    tenants = {cut.tenant for cut in cuts}
    if "" in tenants:
        tenants.update(await scripts.tenants(records))
    return sum([await desk.withdraw(tenant) for tenant in sorted(tenants - {""})])
