"""A process's own way to records that several share; it may be cut."""

from typing import Any

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records


class Cable:
    """The records behind it, until `cut` is set; then as if the database did not answer."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.cut = False

    def of(self, tenant: str) -> Any:
        """See `Records`."""
        return _Tenant(self, self._records.of(tenant))

    async def abandoned_tasks(self, now: float, limit: int) -> list[tuple[str, str]]:
        """See `Records`."""
        self.check()
        return await self._records.abandoned_tasks(now, limit)

    async def sweep(self, now: float) -> int:
        """See `Records`."""
        self.check()
        return await self._records.sweep(now)

    async def ping(self) -> None:
        """See `Records`."""
        self.check()

    async def aclose(self) -> None:
        """See `Records`."""

    def check(self) -> None:
        """Raise StoreUnavailable when it is cut."""
        if self.cut:
            raise StoreUnavailable("the cable is cut")


class _Tenant:
    def __init__(self, cable: Cable, stores: Any) -> None:
        self.tasks = _Wire(cable, stores.tasks)
        self.idempotency = _Wire(cable, stores.idempotency)
        self.sessions = _Wire(cable, stores.sessions)


class _Wire:
    """One store, each of whose methods goes over the cable."""

    def __init__(self, cable: Cable, store: Any) -> None:
        self._cable, self._store = cable, store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def over_the_cable(*arguments: Any, **named: Any) -> Any:
            self._cable.check()
            return await method(*arguments, **named)

        return over_the_cable
