"""Ends requests that nobody decides and nobody looks at."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from gatepost.approvals.desk import Desk
from gatepost.stores.api import StoreUnavailable

log = structlog.get_logger("gatepost.approvals")

EVERY_S = 5.0
DICE = random.SystemRandom()


@asynccontextmanager
async def expiring(desk: Desk, *, every_s: float = EVERY_S) -> AsyncIterator[None]:
    """Expire what is due, now and then, for the time of a block."""
    task = asyncio.create_task(_always(desk, every_s))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _always(desk: Desk, every_s: float) -> None:
    while True:
        # Replicas that started together must not ask together.
        await asyncio.sleep(every_s * DICE.uniform(0.7, 1.1))
        try:
            await desk.expire_due()
        except StoreUnavailable as outage:
            log.debug("approvals_not_expired", reason=str(outage))
