"""Queues runs for worker processes: few at once, and never all for one tenant."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from gatepost import ToolFailure
from gatepost_packs.scripts.settings import ScriptsSettings


class ScriptQueue:
    """The running and waiting runs in order of arrival; one object per event loop."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self._waiting: deque[tuple[str, ScriptsSettings, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def admitted(
        self, tenant: str, settings: ScriptsSettings, *, patient: bool = True
    ) -> AsyncIterator[None]:
        """
        Hold a worker slot during a block; ToolFailure if the queue is full.

        A run inside another must not be *patient*: it could wait for itself.
        """
        await self._take(tenant, settings, patient=patient)
        try:
            yield
        finally:
            self._leave(tenant)

    async def _take(self, tenant: str, settings: ScriptsSettings, *, patient: bool) -> None:
        # Not ahead of others of the same tenant; a tenant at its limit delays no other tenant.
        ahead = sum(one == tenant for one, _, _ in self._waiting)
        if not ahead and self._is_free(tenant, settings):
            self.running[tenant] += 1
            return
        if not patient or ahead >= settings.queue_per_tenant:
            message = (
                "Too many scripts are running (packs.scripts.workers_per_tenant, "
                "queue_per_tenant). Try again shortly."
            )
            raise ToolFailure("rate_limit", message, retry_after=1)
        ready = asyncio.get_running_loop().create_future()
        place = (tenant, settings, ready)
        self._waiting.append(place)
        try:
            await ready
        except asyncio.CancelledError:
            if ready.done() and not ready.cancelled():
                self._leave(tenant)
            else:
                self._waiting.remove(place)
            raise

    def _is_free(self, tenant: str, settings: ScriptsSettings) -> bool:
        return (
            self.running.total() < settings.workers
            and self.running[tenant] < settings.workers_per_tenant
        )

    def _leave(self, tenant: str) -> None:
        self.running[tenant] -= 1
        if not self.running[tenant]:
            del self.running[tenant]
        for place in tuple(self._waiting):
            waiter, settings, ready = place
            if not ready.done() and self._is_free(waiter, settings):
                self._waiting.remove(place)
                self.running[waiter] += 1
                ready.set_result(None)


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, ScriptQueue] = WeakKeyDictionary()


def queue() -> ScriptQueue:
    """Return this event loop's object."""
    return _queues.setdefault(asyncio.get_running_loop(), ScriptQueue())
