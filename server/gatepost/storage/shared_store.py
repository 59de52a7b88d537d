"""
The shared store between processes, per tenant: messages, notes, logs and rate limits that may be
lost.

It is in memory for one process, as here, and Valkey or Redis for several. Every backend passes the
tests in `tests/storage`.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from itertools import islice
from typing import Any, Protocol, Self

import msgspec

from gatepost.background import TaskSet
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.rate_limits import (
    Buckets,
    ConcurrencyLimit,
    MemoryLimits,
    QuotaBucket,
    Spending,
    StoreLimits,
)

SWEEP_EVERY_S = 1.0
OTHERS_SWEPT = 20
"""How many other tenants a tenant that is active sweeps as well."""

SUBSCRIBE_AGAIN_S = 5.0
"""The time from a failed subscription to the next attempt."""

DeliverMessage = Callable[[bytes], None]
"""Called with each message of a topic on the event loop; must not block or raise."""


class Subscription(Protocol):
    """A subscription to a topic."""

    def end(self) -> None:
        """
        Stop the delivery at once; a second call does nothing.

        The shared store unsubscribes in the background, because a client that hangs up must not
        wait for it.
        """


class LogEvent(msgspec.Struct, frozen=True):
    """One entry of a log; numbers begin at 1 and have no gaps."""

    number: int
    data: bytes


class TenantSharedStore(Protocol):
    """The messages, notes, logs and rate limits of one tenant; all of them may be lost."""

    async def publish(self, topic: str, message: bytes) -> None:
        """Send a message to all subscribers of a topic, in all processes."""

    async def follow(self, topic: str, deliver: DeliverMessage) -> Subscription:
        """Subscribe to a topic; messages published after this returns are delivered."""

    async def put(self, key: str, value: bytes, *, ttl_s: float) -> None:
        """Store a note under a key."""

    async def take(self, key: str) -> bytes | None:
        """Return a note and delete it; of several concurrent callers, one gets it."""

    async def spend(self, bucket: str, *, rate: float, burst: float) -> float:
        """
        Take a token from a bucket that gains *rate* tokens a second and holds *burst*.

        Return 0 if there was one, else the seconds until there is one. The step is atomic over all
        processes.
        """

    def limits(
        self,
        spendings: Sequence[Spending] = (),
        concurrency: Sequence[ConcurrencyLimit] = (),
        quotas: Sequence[QuotaBucket] = (),
    ) -> StoreLimits:
        """Return limits that calls take together; their names differ from each other."""

    async def levels(
        self, spendings: Sequence[Spending], concurrency: Sequence[ConcurrencyLimit]
    ) -> list[float]:
        """Return the tokens in each bucket, then the running calls of each limit; takes nothing."""

    async def append(self, log: str, data: bytes, *, ttl_s: float, max_events: int) -> int:
        """
        Append to a log and return the entry's number; only the *max_events* newest entries stay.
        """

    async def read(self, log: str, after: int) -> list[LogEvent] | None:
        """Return the entries after a number; None if the log is unknown or has lost some."""

    async def forget(self, log: str) -> None:
        """Delete a log."""

    async def clear(self) -> None:
        """Delete all notes and logs of the tenant."""


class SharedStore(Protocol):
    """The shared store of all tenants."""

    def for_tenant(self, tenant: str) -> TenantSharedStore:
        """Return the shared store of one tenant."""

    async def ping(self) -> None:
        """Raise StoreUnavailable unless the shared store answers."""

    async def aclose(self) -> None:
        """Close all connections; subscriptions end."""


log = logging.getLogger(__name__)


class Wakeable:
    """Lets one task wait for a time, and others wake it earlier."""

    __slots__ = ("_woken",)

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Let the task look at once."""
        self._woken.set()

    async def wait(self, within_s: float) -> None:
        """Return when woken since the last wait, and after *within_s* seconds at the latest."""
        with contextlib.suppress(TimeoutError):
            # Not `wait_for`: in Python 3.11 it loses a cancellation that meets a wake-up, and a
            # stop never ends.
            async with asyncio.timeout(within_s):
                await self._woken.wait()
        self._woken.clear()


class WakeUps(Wakeable):
    """
    Follows messages, and wakes one task.

    *follow* subscribes, for example `partial(shared_store.follow, topic)`. A message may be lost,
    and the shared store may not answer. So the task reads the database whenever `wait` returns,
    and a wake-up only makes it read sooner. With *message*, no other message wakes the task. A
    subscription that fails is made later; the shared store renews one whose connection is lost.
    """

    __slots__ = ("_follow", "_message", "_renewal", "_subscription")

    def __init__(
        self,
        follow: Callable[[Callable[[Any], None]], Awaitable[Subscription]],
        *,
        message: object = None,
    ) -> None:
        super().__init__()
        self._follow, self._message = follow, message
        self._subscription: Subscription | None = None
        self._renewal: asyncio.Task[None] | None = None

    @property
    def is_following(self) -> bool:
        """Return whether messages wake the task; otherwise it only polls."""
        return self._subscription is not None

    async def __aenter__(self) -> Self:
        """Follow the messages in a block; go on without them while the shared store is out."""
        await self._subscribe()
        if self._subscription is None:
            self._renewal = TaskSet().start(self._renew(), context=Context())
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the subscription."""
        renewal, self._renewal = self._renewal, None
        if renewal is not None:
            renewal.cancel()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.end()

    async def _subscribe(self) -> None:
        try:
            self._subscription = await self._follow(self._deliver)
        except StoreUnavailable:
            log.debug("wake_ups_unavailable")

    async def _renew(self) -> None:
        """Subscribe once the shared store is back, and wake the task, which has missed messages."""
        while self._subscription is None:
            await asyncio.sleep(SUBSCRIBE_AGAIN_S)
            await self._subscribe()
        self.wake()

    def _deliver(self, message: object) -> None:
        if self._message is None or message == self._message:
            self._woken.set()


class MemorySharedStore:
    """A shared store within one process."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tenants: OrderedDict[str, MemoryTenantSharedStore] = OrderedDict()

    def for_tenant(self, tenant: str) -> "MemoryTenantSharedStore":
        """Return the shared store of one tenant."""
        store = self._tenants.get(tenant)
        if store is None:
            store = self._tenants[tenant] = MemoryTenantSharedStore(self._clock, self._sweep_others)
        return store

    def _sweep_others(self, now: float) -> None:
        """Sweep some tenants, in turn: one that makes no more requests would keep everything."""
        for tenant in tuple(islice(self._tenants, OTHERS_SWEPT)):
            self._tenants.move_to_end(tenant)
            self._tenants[tenant].sweep(now)

    async def ping(self) -> None:
        """Raise StoreUnavailable unless the shared store answers."""

    async def aclose(self) -> None:
        """Close all connections; subscriptions end."""
        self._tenants.clear()


class MemoryTenantSharedStore:
    """The `TenantSharedStore` of one tenant, in memory; it reaches this process alone."""

    def __init__(self, clock: Callable[[], float], sweep_others: Callable[[float], None]) -> None:
        self._clock = clock
        self._sweep_others = sweep_others
        self._followers: dict[str, dict[object, DeliverMessage]] = {}
        self._notes: dict[str, tuple[bytes, float]] = {}
        self._logs: dict[str, _Log] = {}
        self._buckets = Buckets()
        self._running: Counter[str] = Counter()
        self._swept = clock()

    def _sweep(self, now: float) -> None:
        if now - self._swept >= SWEEP_EVERY_S:
            self.sweep(now)
            self._sweep_others(now)

    def sweep(self, now: float) -> None:
        """Remove expired notes, but not each time: a caller with many notes would stop the loop."""
        if now - self._swept < SWEEP_EVERY_S:
            return
        self._swept = now
        for note in [name for name, (_, until) in self._notes.items() if until <= now]:
            del self._notes[note]
        for log in [name for name, event_log in self._logs.items() if event_log.until <= now]:
            del self._logs[log]

    async def publish(self, topic: str, message: bytes) -> None:
        """Send a message to all subscribers of a topic, in all processes."""
        for deliver in tuple(self._followers.get(topic, {}).values()):
            deliver(message)

    async def follow(self, topic: str, deliver: DeliverMessage) -> "MemorySubscription":
        """Subscribe to a topic; messages published after this returns are delivered."""
        return MemorySubscription(self._followers, topic, deliver)

    async def put(self, key: str, value: bytes, *, ttl_s: float) -> None:
        """Store a note under a key."""
        now = self._clock()
        self._sweep(now)
        self._notes[key] = (value, now + ttl_s)

    async def take(self, key: str) -> bytes | None:
        """Return a note and delete it; of several concurrent callers, one gets it."""
        value, until = self._notes.pop(key, (None, 0.0))
        return value if until > self._clock() else None

    async def spend(self, bucket: str, *, rate: float, burst: float) -> float:
        """Take a token from a bucket that gains *rate* tokens a second and holds *burst*."""
        return self._buckets.spend(bucket, self._clock(), rate=rate, burst=burst)

    def limits(
        self,
        spendings: Sequence[Spending] = (),
        concurrency: Sequence[ConcurrencyLimit] = (),
        quotas: Sequence[QuotaBucket] = (),
    ) -> MemoryLimits:
        """Return limits that calls take together; their names differ from each other."""
        return MemoryLimits(
            self._buckets, self._running, self._clock, spendings, quotas, concurrency
        )

    async def levels(
        self, spendings: Sequence[Spending], concurrency: Sequence[ConcurrencyLimit]
    ) -> list[float]:
        """Return the tokens in each bucket, then the running calls of each limit; takes nothing."""
        now = self._clock()
        tokens = [
            self._buckets.tokens_in(spending.bucket, now, rate=spending.rate, burst=spending.burst)
            for spending in spendings
        ]
        return [*tokens, *(self._running[limit.name] for limit in concurrency)]

    async def append(self, log: str, data: bytes, *, ttl_s: float, max_events: int) -> int:
        """
        Append to a log and return the entry's number; only the *max_events* newest entries stay.
        """
        now = self._clock()
        self._sweep(now)
        event_log = self._logs.get(log)
        if event_log is None or event_log.until <= now:
            event_log = self._logs[log] = _Log()
        event_log.last += 1
        event_log.until = now + ttl_s
        event_log.events.append(LogEvent(event_log.last, data))
        while len(event_log.events) > max_events:
            event_log.events.popleft()
        return event_log.last

    async def read(self, log: str, after: int) -> list[LogEvent] | None:
        """Return the entries after a number; None if the log is unknown or has lost some."""
        event_log = self._logs.get(log)
        if event_log is None or event_log.until <= self._clock() or after > event_log.last:
            return None
        events = [event for event in event_log.events if event.number > after]
        return events if len(events) == event_log.last - after else None

    async def forget(self, log: str) -> None:
        """Delete a log."""
        self._logs.pop(log, None)

    async def clear(self) -> None:
        """Delete all notes and logs of the tenant."""
        self._notes.clear()
        self._logs.clear()


class MemorySubscription:
    """A `Subscription` in memory."""

    def __init__(
        self,
        followers: dict[str, dict[object, DeliverMessage]],
        topic: str,
        deliver: DeliverMessage,
    ) -> None:
        self._followers, self._topic = followers, topic
        followers.setdefault(topic, {})[self] = deliver

    def end(self) -> None:
        """Implement `Subscription`."""
        interested = self._followers.get(self._topic, {})
        interested.pop(self, None)
        if not interested:
            self._followers.pop(self._topic, None)


class _Log:
    __slots__ = ("events", "last", "until")

    def __init__(self) -> None:
        self.events: deque[LogEvent] = deque()
        self.last = 0
        self.until = 0.0
