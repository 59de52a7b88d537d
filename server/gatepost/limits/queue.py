"""Who may run in this process when more want to than it takes on: whoever has least of it."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping
from itertools import islice

import msgspec

from gatepost.limits.terms import Kind

LOOKS = 100
"""So many tenants are compared when a place becomes free: those whose turn is longest ago."""

Waiter = asyncio.Future[bool]


class Place(msgspec.Struct, weakref=True):
    """How many calls of somebody have a place, or wait for their turn, and how many may."""

    kind: Kind
    most: float
    taken: int = 0


class Queue:
    """
    The calls that run in this process, and those that wait for one of them to end.

    A free place goes to the waiting tenant that has the fewest calls running, among equals to the
    one whose turn is longest ago, and within a tenant to its callers by turns: nobody gets more by
    asking more often, or by asking for what takes longer. *places* say how many calls each tenant
    has, those that wait included; the count here is `running`, for whoever takes a place without
    asking while it is less than `most`.
    """

    def __init__(self, places: Mapping[Hashable, Place]) -> None:
        self.most: float = float("inf")
        """Calls that run at once; beyond it they wait."""
        self.each = 100
        """Calls of one tenant that may wait."""
        self.within_s = 5.0
        """How long one waits."""
        self.running = 0
        self.waiting = 0
        self._places = places
        self._lines: OrderedDict[str, Line] = OrderedDict()

    async def enter(self, tenant: str, caller: Hashable) -> bool:
        """Wait for a place; False when none came in time or too many of the tenant's calls wait."""
        line = self._lines.get(tenant) or Line()
        if line.size >= self.each:
            last = line.last_of_longest(caller)
            if last is None:
                return False
            if not last.done():  # its caller may have hung up, and not heard of it yet
                last.set_result(False)
            self.waiting -= 1
        self._lines[tenant] = line
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        line.add(caller, waiter)
        self.waiting += 1
        timer = loop.call_later(self.within_s, self._give_up, tenant, caller, waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled() and waiter.result():
                self.leave()  # let in, and stopped before its next step
            raise
        finally:
            timer.cancel()
            self._drop(tenant, caller, waiter)

    def leave(self) -> None:
        """A call has ended, or stands back while a person decides."""
        self.running -= 1
        if self.waiting:
            self.let_in()

    def let_in(self) -> None:
        """Give free places to those who wait."""
        while self.waiting and self.running < self.most:
            tenant = self._next()
            line = self._lines[tenant]
            waiter = line.next()
            self.waiting -= 1
            if line.size:
                self._lines.move_to_end(tenant)
            else:
                del self._lines[tenant]
            if not waiter.done():
                self.running += 1
                waiter.set_result(True)

    def waiting_of(self, tenant: str) -> int:
        """How many of that tenant's calls wait."""
        line = self._lines.get(tenant)
        return 0 if line is None else line.size

    def _next(self) -> str:
        return min(islice(self._lines, LOOKS), key=self._running_of)

    def _running_of(self, tenant: str) -> int:
        place = self._places.get(tenant)
        return (0 if place is None else place.taken) - self._lines[tenant].size

    def _give_up(self, tenant: str, caller: Hashable, waiter: Waiter) -> None:
        if not waiter.done():
            waiter.set_result(False)
            self._drop(tenant, caller, waiter)

    def _drop(self, tenant: str, caller: Hashable, waiter: Waiter) -> None:
        """Forget who waits no more, unless whoever ended its wait has done so."""
        line = self._lines.get(tenant)
        if line is not None and line.remove(caller, waiter):
            self.waiting -= 1
            if not line.size:
                del self._lines[tenant]


class Line:
    """The waiting calls of one tenant: its callers in the order of their turns."""

    def __init__(self) -> None:
        self.size = 0
        self._callers: OrderedDict[Hashable, deque[Waiter]] = OrderedDict()

    def add(self, caller: Hashable, waiter: Waiter) -> None:
        """One more, behind the caller's others."""
        self._callers.setdefault(caller, deque()).append(waiter)
        self.size += 1

    def next(self) -> Waiter:
        """Who is let in, and no longer here."""
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
        Who gives way to one more of *caller*: the last call of whoever has most here, and is no
        longer here then. None when *caller* would have as many: it is the one that gives way.
        """
        longest = max(self._callers, key=lambda one: len(self._callers[one]), default=caller)
        if len(self._callers.get(longest, ())) <= len(self._callers.get(caller, ())) + 1:
            return None
        self.size -= 1
        return self._callers[longest].pop()

    def remove(self, caller: Hashable, waiter: Waiter) -> bool:
        """Take somebody out; False when it is not here."""
        waiters = self._callers.get(caller, deque())
        if waiter not in waiters:
            return False
        waiters.remove(waiter)
        self.size -= 1
        if not waiters:
            del self._callers[caller]
        return True
