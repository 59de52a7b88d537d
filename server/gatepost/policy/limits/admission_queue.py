"""The queue of calls that wait until this process runs fewer, fair between tenants."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping
from itertools import islice

from gatepost.storage.rate_limits import ConcurrencyCounter

COMPARED_TENANTS = 100
"""Tenants that are compared when a running call ends: those that have waited longest."""

Waiter = asyncio.Future[bool]


class AdmissionQueue:
    """
    The calls that run in this process, and the calls that wait for one of them to end.

    When a running call ends, the queue admits a call of the waiting tenant with the fewest running
    calls. Of several such tenants, the one that has waited longest comes first. Within a tenant,
    callers take turns. So a tenant gets no larger share by making more or longer calls.
    *concurrency* has the number of running and waiting calls of each tenant. While `running` is
    less than `max_running`, a caller begins a call by increasing `running` itself, without calling
    `enter`.
    """

    def __init__(self, concurrency: Mapping[Hashable, ConcurrencyCounter]) -> None:
        self.max_running: float = float("inf")
        """Maximum number of running calls; further calls wait."""
        self.max_waiting_per_tenant = 100
        """Maximum number of waiting calls of one tenant."""
        self.within_s = 5.0
        """Seconds that a call waits at most."""
        self.running = 0
        self.waiting = 0
        self._concurrency = concurrency
        self._queues: OrderedDict[str, TenantQueue] = OrderedDict()

    def apply(self, *, max_running: float, max_waiting_per_tenant: int, within_s: float) -> None:
        """Apply these bounds from now on, and begin the waiting calls that fit them."""
        self.max_running, self.max_waiting_per_tenant, self.within_s = (
            max_running,
            max_waiting_per_tenant,
            within_s,
        )
        self.let_in()

    async def enter(self, tenant: str, caller: Hashable) -> bool:
        """
        Wait to begin a call; return False if that takes too long or the tenant's queue is full.
        """
        tenant_queue = self._queues.get(tenant) or TenantQueue()
        if tenant_queue.size >= self.max_waiting_per_tenant:
            last = tenant_queue.last_of_longest(caller)
            if last is None:
                return False
            if not last.done():  # it may be cancelled but not resumed yet
                last.set_result(False)
            self.waiting -= 1
        self._queues[tenant] = tenant_queue
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        tenant_queue.add(caller, waiter)
        self.waiting += 1
        timer = loop.call_later(self.within_s, self._give_up, tenant, caller, waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled() and waiter.result():
                self.leave()  # admitted, but cancelled before it resumed
            raise
        finally:
            timer.cancel()
            self._drop(tenant, caller, waiter)

    def leave(self) -> None:
        """End one running call."""
        self.running -= 1
        if self.waiting:
            self.let_in()

    def let_in(self) -> None:
        """Begin waiting calls while fewer than `max_running` run."""
        while self.waiting and self.running < self.max_running:
            tenant = self._next()
            tenant_queue = self._queues[tenant]
            waiter = tenant_queue.next()
            self.waiting -= 1
            if tenant_queue.size:
                self._queues.move_to_end(tenant)
            else:
                del self._queues[tenant]
            if not waiter.done():
                self.running += 1
                waiter.set_result(True)

    def waiting_of(self, tenant: str) -> int:
        """Return the number of waiting calls of a tenant."""
        tenant_queue = self._queues.get(tenant)
        return 0 if tenant_queue is None else tenant_queue.size

    def _next(self) -> str:
        return min(islice(self._queues, COMPARED_TENANTS), key=self._running_of)

    def _running_of(self, tenant: str) -> int:
        counter = self._concurrency.get(tenant)
        return (0 if counter is None else counter.running) - self._queues[tenant].size

    def _give_up(self, tenant: str, caller: Hashable, waiter: Waiter) -> None:
        if not waiter.done():
            waiter.set_result(False)
            self._drop(tenant, caller, waiter)

    def _drop(self, tenant: str, caller: Hashable, waiter: Waiter) -> None:
        """Remove a waiter, unless it has been removed already."""
        tenant_queue = self._queues.get(tenant)
        if tenant_queue is not None and tenant_queue.remove(caller, waiter):
            self.waiting -= 1
            if not tenant_queue.size:
                del self._queues[tenant]


class TenantQueue:
    """The waiting calls of one tenant; its callers in the order of their turns."""

    def __init__(self) -> None:
        self.size = 0
        self._callers: OrderedDict[Hashable, deque[Waiter]] = OrderedDict()

    def add(self, caller: Hashable, waiter: Waiter) -> None:
        """Add a waiter behind the others of its caller."""
        self._callers.setdefault(caller, deque()).append(waiter)
        self.size += 1

    def next(self) -> Waiter:
        """Remove and return the waiter whose turn it is."""
        caller, waiters = next(iter(self._callers.items()))
        waiter = waiters.popleft()
        self.size -= 1
        if waiters:
            self._callers.move_to_end(caller)
        else:
            del self._callers[caller]
        return waiter

    def last_of_longest(self, caller: Hashable) -> Waiter | None:
        """
        Remove and return the newest waiter of the caller with the longest queue.

        Return None if *caller* itself would then have the longest queue: its new call is refused.
        """
        longest = max(self._callers, key=lambda key: len(self._callers[key]), default=caller)
        if len(self._callers.get(longest, ())) <= len(self._callers.get(caller, ())) + 1:
            return None
        self.size -= 1
        return self._callers[longest].pop()

    def remove(self, caller: Hashable, waiter: Waiter) -> bool:
        """Remove a waiter; return False if it is not queued."""
        waiters = self._callers.get(caller, deque())
        if waiter not in waiters:
            return False
        waiters.remove(waiter)
        self.size -= 1
        if not waiters:
            del self._callers[caller]
        return True
