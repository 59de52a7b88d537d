"""Open, sweep and watch the configured stores, and load the key ring."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Literal

from gatepost.background import during
from gatepost.config.references import resolved_setting
from gatepost.config.settings import Config, StorageSettings
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.backends import open_records, open_shared_store
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records
from gatepost.storage.shared_store import SharedStore

# Not the shared generator of the process, which a tool may have seeded.
RANDOM = random.SystemRandom()
SWEEP_EVERY_S = 60.0
PROBE_S = 2.0
"""How long a store may take to answer a probe."""
CACHED_S = 1.0
"""How long the result of a probe is cached: public probes must not load the stores."""

log = logging.getLogger(__name__)

StoreState = Literal["ok", "unavailable"]


def keyring_of(config: Config) -> KeyRing:
    """Return the configured key ring, or a temporary one; raises KeyRingError."""
    keys = config.keys
    return KeyRing.load(keys.ring, group_read=keys.group_read) if keys.ring else KeyRing.ephemeral()


async def opened(settings: StorageSettings) -> tuple[Records, SharedStore]:
    """
    Open the stores with connections of this process.

    Raises StoreRefused, StoreUnavailable and UnresolvedReference. The server starts even if the
    shared store does not answer, because its contents may be lost.
    """
    records = await open_records(resolved_setting(settings.database))
    return records, await open_shared_store(resolved_setting(settings.shared))


async def prepare(settings: StorageSettings) -> None:
    """
    Check the stores before several processes open them; a database file is migrated.

    Raises StoreRefused and StoreUnavailable.
    """
    records, shared_store = await opened(settings)
    async with aclosing(records), aclosing(shared_store):
        try:
            await shared_store.ping()
        except StoreUnavailable as outage:
            log.warning("shared_store_unavailable", extra={"reason": str(outage)})


@asynccontextmanager
async def sweeping(records: Records, *, every_s: float = SWEEP_EVERY_S) -> AsyncIterator[None]:
    """Remove expired data periodically during a block."""
    async with during("sweep", lambda: _sweep_always(records, every_s)):
        yield


async def _sweep_always(records: Records, every_s: float) -> None:
    while True:
        # Random, so that replicas do not sweep at the same time.
        await asyncio.sleep(every_s * RANDOM.uniform(0.5, 1.5))
        try:
            removed = await records.sweep(time.time())
        except StoreUnavailable as outage:
            log.warning("sweep_failed", extra={"reason": str(outage)})
        else:
            log.debug("swept", extra={"records": removed})


class Watch:
    """
    Check which stores answer; results are cached for a short time.

    A read-only database (a full disk, a lock) still answers a ping. A write for each probe would be
    too much load, so *takes_nothing* returns whether the audit log cannot be written.
    """

    def __init__(
        self,
        records: Records,
        shared_store: SharedStore,
        takes_nothing: Callable[[], bool] = lambda: False,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pings = {"database": records.ping, "shared": shared_store.ping}
        self._takes_nothing, self._clock = takes_nothing, clock
        self._checking = asyncio.Lock()
        self._reported: dict[str, StoreState] = {}
        self._until = 0.0

    async def states(self) -> dict[str, StoreState]:
        """Return the state of each store by its setting."""
        async with self._checking:
            if not self._reported or self._clock() >= self._until:
                states = await asyncio.gather(*map(_state, self._pings.values()))
                self._reported = dict(zip(self._pings, states, strict=True))
                self._until = self._clock() + CACHED_S
            # Not cached, because the check is free.
            if self._takes_nothing():
                return self._reported | {"database": "unavailable"}
            return self._reported


async def _state(ping: Callable[[], Awaitable[None]]) -> StoreState:
    try:
        async with asyncio.timeout(PROBE_S):
            await ping()
    except (StoreUnavailable, TimeoutError):
        return "unavailable"
    return "ok"
