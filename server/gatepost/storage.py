"""The stores by the configuration: opened, looked after, watched."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Literal

import structlog

from gatepost.chore import during
from gatepost.config.references import plain
from gatepost.settings import StorageSettings
from gatepost.stores.api import Records, Relay, StoreUnavailable
from gatepost.stores.backends import open_records, open_relay

# Not the generator that everybody in the process shares, and may have seeded.
DICE = random.SystemRandom()
SWEEP_EVERY_S = 60.0
PROBE_S = 2.0
"""How long a store may take to answer a probe."""
FRESH_S = 1.0
"""How long an answer to a probe counts: probes are public, and must be no way to the stores."""

log = structlog.get_logger("gatepost.storage")

State = Literal["ok", "unavailable"]


async def opened(settings: StorageSettings) -> tuple[Records, Relay]:
    """
    The stores, with connections of this process's own.

    Raises StoreRefused, StoreUnavailable and UnresolvedReference. A relay that does not answer is
    no reason not to start: what it carries may be lost.
    """
    records = await open_records(plain(settings.database))
    return records, await open_relay(plain(settings.shared))


async def prepare(settings: StorageSettings) -> None:
    """
    Find out before several processes do that the stores can be used; a file is migrated.

    Raises StoreRefused and StoreUnavailable.
    """
    records, relay = await opened(settings)
    async with aclosing(records), aclosing(relay):
        try:
            await relay.ping()
        except StoreUnavailable as outage:
            log.warning("relay_unavailable", reason=str(outage))


@asynccontextmanager
async def sweeping(records: Records, *, every_s: float = SWEEP_EVERY_S) -> AsyncIterator[None]:
    """Remove what is over, now and then, for the time of a block."""
    async with during("sweep", lambda: _sweep_always(records, every_s)):
        yield


async def _sweep_always(records: Records, every_s: float) -> None:
    while True:
        # Replicas that started together must not sweep together.
        await asyncio.sleep(every_s * DICE.uniform(0.5, 1.5))
        try:
            gone = await records.sweep(time.time())
        except StoreUnavailable as outage:
            log.warning("sweep_failed", reason=str(outage))
        else:
            log.debug("swept", records=gone)


class Watch:
    """
    Which of the stores answer; asked at most once in a while, however many want to know.

    A database that only reads (a full disk, somebody else's lock) answers a ping. A write for each
    probe would be a burden on it, so whoever writes all the time says whether it *takes_nothing*.
    """

    def __init__(
        self,
        records: Records,
        relay: Relay,
        *,
        takes_nothing: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pings = {"database": records.ping, "shared": relay.ping}
        self._takes_nothing, self._clock = takes_nothing, clock
        self._asking = asyncio.Lock()
        self._told: dict[str, State] = {}
        self._until = 0.0

    async def states(self) -> dict[str, State]:
        """Each store by its setting."""
        async with self._asking:
            if not self._told or self._clock() >= self._until:
                states = await asyncio.gather(*map(_state, self._pings.values()))
                self._told = dict(zip(self._pings, states, strict=True))
                self._until = self._clock() + FRESH_S
            # Not part of what counts for a while: it costs nothing to ask.
            return self._told | {"database": "unavailable"} if self._takes_nothing() else self._told


async def _state(ping: Callable[[], Awaitable[None]]) -> State:
    try:
        async with asyncio.timeout(PROBE_S):
            await ping()
    except (StoreUnavailable, TimeoutError):
        return "unavailable"
    return "ok"
