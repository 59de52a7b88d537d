"""Watch the change counter, and tell who keeps something of a tenant that it is outdated."""

import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gatepost.background import during
from gatepost.storage.errors import StoreUnavailable
from gatepost.upstreams.changes import ChangeCounter

POLL_S = 1.0
DICE = random.SystemRandom()

log = logging.getLogger("gatepost.upstreams")


class ChangeWatch:
    """Knows the counter of each tenant of which this process keeps something."""

    def __init__(self, counter: ChangeCounter) -> None:
        self._counter = counter
        self._total = -1
        self._known: dict[str, int] = {}
        self._told: list[Callable[[str], None]] = []

    def tell(self, changed: Callable[[str], None]) -> None:
        """Call *changed* with each watched tenant that changed; it must neither block nor raise."""
        self._told.append(changed)

    async def track(self, tenant: str) -> None:
        """Watch a tenant from now on; what is read after this is told of when it changes."""
        if tenant not in self._known:
            self._known[tenant] = await self._counter.of(tenant)

    def forget(self, tenant: str) -> None:
        """Stop watching a tenant."""
        self._known.pop(tenant, None)

    async def look(self) -> None:
        """Look at the counters once; raises StoreUnavailable."""
        if not self._known or (total := await self._counter.total()) == self._total:
            return
        for tenant, before in list(self._known.items()):
            now = await self._counter.of(tenant)
            if now != before and tenant in self._known:
                self._known[tenant] = now
                for changed in self._told:
                    changed(tenant)
        # Last: if the store fails in between, the next look compares all of them again.
        self._total = total

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look during the block, each second and whenever a change is published."""
        async with during("upstream_changes", self._watch):
            yield

    async def _watch(self) -> None:
        async with self._counter.subscription() as wake_ups:
            while True:
                # Replicas that started together must not ask together.
                await wake_ups.wait(POLL_S * DICE.uniform(0.7, 1.0))
                await wake_ups.follow()
                try:
                    await self.look()
                except StoreUnavailable as outage:
                    log.debug("upstream_changes_not_read", extra={"reason": str(outage)})
