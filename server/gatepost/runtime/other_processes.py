"""Report that other server processes use the database although there is no shared store."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gatepost.background import during
from gatepost.config.settings import Config
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.leases import NUMBER_LEASE_S, number_holders
from gatepost.storage.records import Records

END_S = 20.0
"""How long a stop may take after `listen.drain_s`."""

log = logging.getLogger(__name__)


@asynccontextmanager
async def reporting_others(
    records: Records, config: Config, *, every_s: float | None = None
) -> AsyncIterator[None]:
    """
    Warn during a block if another process serves with the same database.

    Without `storage.shared`, each counts limits for itself. A stopping server, which this one may
    replace, is gone after *every_s* seconds; so is the lease of a killed one.
    """
    if config.storage.shared:
        yield
        return
    stop_s = config.leave_s + config.listen.drain_s + END_S
    pause_s = stop_s + NUMBER_LEASE_S if every_s is None else every_s
    async with during("other_processes", lambda: _look_always(records, pause_s)):
        yield


async def _look_always(records: Records, every_s: float) -> None:
    before: frozenset[bytes] = frozenset()
    is_reported = False
    while True:
        with suppress(StoreUnavailable):
            holders = await number_holders(records)
            if len(both := holders & before) > 1 and not is_reported:
                is_reported = True
                log.warning(
                    "limits_counted_separately",
                    extra={"processes": len(both), "setting": "storage.shared"},
                )
            before = holders
        await asyncio.sleep(every_s)
