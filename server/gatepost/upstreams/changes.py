"""Count the changes of registrations and catalogues, so that all replicas reload them."""

import logging
import time
from collections.abc import Callable

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records
from gatepost.storage.relay import Relay, WakeUps

SUBJECT = "mcp_changes"
KEY = "changes"
NO_TENANT = ""
"""Has the counter of all tenants; no tenant has this id."""
TOPIC = "mcp_changes"

log = logging.getLogger("gatepost.upstreams")


class ChangeCounter:
    """Counts changes in the store; all methods but the subscription raise StoreUnavailable."""

    def __init__(
        self, records: Records, relay: Relay, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._records, self._relay, self._clock = records, relay, clock

    async def changed(self, tenant: str) -> None:
        """Count a change of a tenant, and wake the replicas."""
        for one in (tenant, NO_TENANT):
            await self._records.of(one).entries(SUBJECT).put(KEY, b"", now=self._clock())
        try:
            await self._relay.of(NO_TENANT).publish(TOPIC, b"")
        except StoreUnavailable:
            log.debug("change_not_published")  # the replicas poll the counter as well

    async def total(self) -> int:
        """Return a number that grows with each change of any tenant."""
        return await self.of(NO_TENANT)

    async def of(self, tenant: str) -> int:
        """Return a number that grows with each change of one tenant."""
        found = await self._records.of(tenant).entries(SUBJECT).get(KEY)
        return 0 if found is None else found.revision

    def subscription(self) -> WakeUps:
        """Return what wakes when any process counted a change."""
        return WakeUps(self._relay.of(NO_TENANT), TOPIC)
