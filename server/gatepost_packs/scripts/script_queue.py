"""Let a few scripts run at once, and the others wait in their order."""

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
        self, tenant: str, settings: ScriptsSettings, *, may_wait: bool = True
    ) -> AsyncIterator[None]:
        """
        Hold a worker during a block; ToolFailure if the queue is full.

        A run inside another must not be *may_wait*: it could wait for itself.
        """
        await self._take(tenant, settings, may_wait=may_wait)
        try:
            yield
        finally:
            self._leave(tenant)

    async def _take(self, tenant: str, settings: ScriptsSettings, *, may_wait: bool) -> None:
        # The waiting run does not go ahead of others of its tenant; a tenant at its limit delays no
        # other tenant.
        waiting_of_tenant = sum(waiting_tenant == tenant for waiting_tenant, _, _ in self._waiting)
        if not waiting_of_tenant and self._is_free(tenant, settings):
            self.running[tenant] += 1
            return
        if not may_wait or waiting_of_tenant >= settings.queue_per_tenant:
            message = (
                "Too many scripts are running (packs.scripts.workers_per_tenant, "
                "queue_per_tenant). Try again shortly."
            )
            raise ToolFailure("rate_limit", message, retry_after=1)
        admitted = asyncio.get_running_loop().create_future()
        entry = (tenant, settings, admitted)
        self._waiting.append(entry)
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self._leave(tenant)
            else:
                self._waiting.remove(entry)
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
        for entry in tuple(self._waiting):
            waiter, settings, admitted = entry
            if not admitted.done() and self._is_free(waiter, settings):
                self._waiting.remove(entry)
                self.running[waiter] += 1
                admitted.set_result(None)


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, ScriptQueue] = WeakKeyDictionary()


def queue() -> ScriptQueue:
    """Return this event loop's object."""
    return _queues.setdefault(asyncio.get_running_loop(), ScriptQueue())
