"""Watch the change counter, and report outdated tenants to their followers in this process."""

from collections.abc import Callable

from gatepost.upstreams.change_counter import ChangeCounter


class ChangeWatch:
    """Remembers the counter of each tenant that this process keeps data of."""

    def __init__(self, counter: ChangeCounter) -> None:
        self._counter = counter
        self._total = -1
        self._counts: dict[str, int] = {}
        self._listeners: list[Callable[[str], None]] = []

    def notify(self, changed: Callable[[str], None]) -> None:
        """Call *changed* with each watched tenant that changed; it must neither block nor raise."""
        self._listeners.append(changed)

    async def track(self, tenant: str) -> None:
        """Watch a tenant from now on; changes of data that is read after this are reported."""
        if tenant not in self._counts:
            self._counts[tenant] = await self._counter.count_for(tenant)

    def forget(self, tenant: str) -> None:
        """Stop watching a tenant."""
        self._counts.pop(tenant, None)

    async def take_up(self, total: int) -> None:
        """Look at the counters of tenants if that of all has changed; raises StoreUnavailable."""
        if not self._counts or total == self._total:
            return
        before = dict(self._counts)
        now = await self._counter.of_all(before)
        for tenant, counter in before.items():
            if now.get(tenant, 0) != counter and tenant in self._counts:
                self._counts[tenant] = now.get(tenant, 0)
                for changed in self._listeners:
                    changed(tenant)
        # Last: if the store fails before, the next poll compares all of them again.
        self._total = total
