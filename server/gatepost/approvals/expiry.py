"""Ends requests that nobody decides and nobody looks at."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import structlog

from gatepost.approvals.desk import Desk
from gatepost.chore import during
from gatepost.stores.api import StoreUnavailable

log = structlog.get_logger("gatepost.approvals")

EVERY_S = 5.0
TIDY_EVERY = 720
"""Looks between two that remove rejected scripts, about an hour: these are kept for weeks."""
DICE = random.SystemRandom()


@asynccontextmanager
async def expiring(desk: Desk, *, every_s: float = EVERY_S) -> AsyncIterator[None]:
    """Expire what is due, now and then, for the time of a block."""
    async with during("expiry", lambda: _always(desk, every_s)):
        yield


async def _always(desk: Desk, every_s: float) -> None:
    for look in count():
        # Replicas that started together must not ask together.
        await asyncio.sleep(every_s * DICE.uniform(0.7, 1.1))
        try:
            await desk.expire_due()
            if look % TIDY_EVERY == 0:
                await desk.tidy()
        except StoreUnavailable as outage:
            log.debug("approvals_not_expired", reason=str(outage))
