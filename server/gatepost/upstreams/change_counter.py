"""Count the changes of registrations and catalogues, so that all replicas reload them."""

import time
from collections.abc import Callable, Collection, Mapping

from gatepost.storage.change_poller import notify
from gatepost.storage.entries import CHANGE_COUNTER, NO_TENANT
from gatepost.storage.records import Records
from gatepost.storage.shared_store import SharedStore

SUBJECT = "mcp_changes"


class ChangeCounter:
    """Counts changes in the store; all methods raise StoreUnavailable."""

    def __init__(
        self, records: Records, shared_store: SharedStore, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._records, self._shared_store, self._clock = records, shared_store, clock

    async def changed(self, tenant: str) -> None:
        """Count a change of a tenant, and wake the replicas."""
        for owner in (tenant, NO_TENANT):
            entries = self._records.for_tenant(owner).entries(SUBJECT)
            await entries.put(CHANGE_COUNTER, b"", now=self._clock())
        await notify(self._shared_store)

    async def count_for(self, tenant: str) -> int:
        """Return a number that grows with each change of one tenant."""
        return (await self.of_all([tenant])).get(tenant, 0)

    async def of_all(self, tenants: Collection[str]) -> Mapping[str, int]:
        """Return the numbers of these tenants in one statement; those without any are left out."""
        counters = await self._records.entries_of(tenants, SUBJECT)
        return {tenant: entries[0].revision for tenant, entries in counters.items()}
