"""Stores in this process's memory: for a laptop, for tests, and for one process without a relay."""

import time
from collections import deque
from collections.abc import Callable

import msgspec

from gatepost.stores.api import (
    TERMINAL,
    Claim,
    Deliver,
    Entry,
    Event,
    SessionRecord,
    TaskRecord,
    fits,
)
from gatepost.stores.bucket import Buckets

FRESH = SessionRecord()
SWEEP_EVERY_S = 1.0


class MemoryRecords:
    """Records that end with the process."""

    def __init__(self) -> None:
        self._tenants: dict[str, MemoryTenant] = {}

    def of(self, tenant: str) -> "MemoryTenant":
        """The stores of one tenant."""
        kept = self._tenants.get(tenant)
        if kept is None:
            kept = self._tenants[tenant] = MemoryTenant()
        return kept

    async def abandoned_tasks(self, now: float, limit: int) -> list[tuple[str, str]]:
        """See `Records`."""
        found = [
            (tenant, task.id)
            for tenant, kept in self._tenants.items()
            for task in kept.tasks.held.values()
            if task.status not in TERMINAL and task.leased_until < now
        ]
        return found[:limit]

    async def tenants(self, subject: str) -> list[str]:
        """See `Records`."""
        kept = [(name, tenant.entries(subject)) for name, tenant in self._tenants.items()]
        return sorted([name for name, entries in kept if await entries.all()])

    async def sweep(self, now: float) -> int:
        """See `Records`."""
        return sum(kept.sweep(now) for kept in self._tenants.values())

    async def ping(self) -> None:
        """See `Records`."""

    async def aclose(self) -> None:
        """See `Records`."""


class MemoryTenant:
    """One tenant's records."""

    def __init__(self) -> None:
        self.tasks = MemoryTasks()
        self.claims = MemoryClaims()
        self.sessions = MemorySessions()
        self._entries: dict[str, MemoryEntries] = {}

    def entries(self, subject: str) -> "MemoryEntries":
        """See `TenantRecords`."""
        return self._entries.setdefault(subject, MemoryEntries())

    def sweep(self, now: float) -> int:
        """Remove everything whose time is over."""
        tasks, claims, sessions = self.tasks.held, self.claims.held, self.sessions.held
        over: list[tuple[dict, object]] = []  # type: ignore[type-arg]  # three kinds of keys
        over += [(tasks, key) for key, task in tasks.items() if task.expires_at <= now]
        over += [(claims, key) for key, claim in claims.items() if claim.expires_at <= now]
        over += [(sessions, key) for key, (_, expires_at) in sessions.items() if expires_at <= now]
        for held, key in over:
            del held[key]
        return len(over)


class MemoryTasks:
    """See `Tasks`."""

    def __init__(self) -> None:
        self.held: dict[str, TaskRecord] = {}

    async def create(self, task: TaskRecord) -> None:
        """See `Tasks`."""
        self.held[task.id] = task

    async def get(self, task_id: str) -> TaskRecord | None:
        """See `Tasks`."""
        return self.held.get(task_id)

    async def replace(self, task: TaskRecord) -> bool:
        """See `Tasks`."""
        kept = self.held.get(task.id)
        if kept is None or kept.revision != task.revision:
            return False
        self.held[task.id] = msgspec.structs.replace(task, revision=task.revision + 1)
        return True

    async def count(self, owner: bytes) -> int:
        """See `Tasks`."""
        return sum(t.owner == owner and t.status not in TERMINAL for t in self.held.values())


class MemoryClaims:
    """See `Claims`."""

    def __init__(self) -> None:
        self.held: dict[bytes, Claim] = {}

    async def begin(self, claim: Claim, *, now: float) -> Claim | None:
        """See `Claims`."""
        kept = self.held.get(claim.key)
        if kept is not None and kept.expires_at > now:
            return kept
        self.held[claim.key] = claim
        return None

    async def get(self, key: bytes) -> Claim | None:
        """See `Claims`."""
        return self.held.get(key)

    async def renew(self, key: bytes, holder: str, leased_until: float) -> bool:
        """See `Claims`."""
        return self._change(key, holder, leased_until=leased_until)

    async def finish(self, key: bytes, holder: str, outcome: bytes, expires_at: float) -> bool:
        """See `Claims`."""
        return self._change(key, holder, outcome=outcome, expires_at=expires_at)

    async def release(self, key: bytes, holder: str) -> None:
        """See `Claims`."""
        if self._holds(key, holder):
            del self.held[key]

    async def take_over(self, claim: Claim, *, was: Claim) -> bool:
        """See `Claims`."""
        if self.held.get(claim.key) != was:
            return False
        self.held[claim.key] = claim
        return True

    def _holds(self, key: bytes, holder: str) -> bool:
        kept = self.held.get(key)
        return kept is not None and kept.holder == holder and kept.outcome is None

    def _change(self, key: bytes, holder: str, **changes: object) -> bool:
        if not self._holds(key, holder):
            return False
        self.held[key] = msgspec.structs.replace(self.held[key], **changes)
        return True


class MemorySessions:
    """See `Sessions`."""

    def __init__(self) -> None:
        self.held: dict[bytes, tuple[SessionRecord, float]] = {}

    async def get(self, key: bytes) -> SessionRecord:
        """See `Sessions`."""
        kept = self.held.get(key)
        return FRESH if kept is None else kept[0]

    async def replace(self, key: bytes, record: SessionRecord, *, expires_at: float) -> bool:
        """See `Sessions`."""
        if (await self.get(key)).revision != record.revision:
            return False
        next_one = msgspec.structs.replace(record, revision=record.revision + 1)
        self.held[key] = (next_one, expires_at)
        return True


class MemoryEntries:
    """See `Entries`."""

    def __init__(self) -> None:
        self._held: dict[str, Entry] = {}
        # The highest revision that went: what comes anew begins after it, whatever its key.
        self._gone = 0

    async def get(self, key: str) -> Entry | None:
        """See `Entries`."""
        return self._held.get(key)

    async def all(self) -> list[Entry]:
        """See `Entries`."""
        return sorted(self._held.values(), key=lambda entry: entry.key)

    async def put(self, key: str, value: bytes, *, now: float, revision: int | None = None) -> bool:
        """See `Entries`."""
        fits(key, value)
        kept = self._held.get(key)
        if revision is not None and revision != (kept.revision if kept else 0):
            return False
        after = (kept.revision if kept else self._gone) + 1
        self._held[key] = Entry(key=key, value=value, revision=after, updated_at=now)
        return True

    async def delete(self, key: str) -> bool:
        """See `Entries`."""
        kept = self._held.pop(key, None)
        self._gone = max(self._gone, kept.revision if kept else 0)
        return kept is not None


class MemoryRelay:
    """A relay within one process."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tenants: dict[str, MemoryTenantRelay] = {}

    def of(self, tenant: str) -> "MemoryTenantRelay":
        """The relay of one tenant."""
        kept = self._tenants.get(tenant)
        if kept is None:
            kept = self._tenants[tenant] = MemoryTenantRelay(self._clock)
        return kept

    async def ping(self) -> None:
        """See `Relay`."""

    async def aclose(self) -> None:
        """See `Relay`."""
        self._tenants.clear()


class MemoryTenantRelay:
    """See `TenantRelay`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._followers: dict[str, dict[object, Deliver]] = {}
        self._notes: dict[str, tuple[bytes, float]] = {}
        self._logs: dict[str, _Log] = {}
        self._buckets = Buckets()
        self._swept = clock()

    def _sweep(self, now: float) -> None:
        """Forget what is over; not each time, or whoever leaves many notes would stop the loop."""
        if now - self._swept < SWEEP_EVERY_S:
            return
        self._swept = now
        for note in [name for name, (_, until) in self._notes.items() if until <= now]:
            del self._notes[note]
        for log in [name for name, kept in self._logs.items() if kept.until <= now]:
            del self._logs[log]

    async def publish(self, topic: str, message: bytes) -> None:
        """See `TenantRelay`."""
        for deliver in tuple(self._followers.get(topic, {}).values()):
            deliver(message)

    async def follow(self, topic: str, deliver: Deliver) -> "MemoryFollowing":
        """See `TenantRelay`."""
        return MemoryFollowing(self._followers, topic, deliver)

    async def put(self, key: str, value: bytes, *, ttl_s: float) -> None:
        """See `TenantRelay`."""
        now = self._clock()
        self._sweep(now)
        self._notes[key] = (value, now + ttl_s)

    async def take(self, key: str) -> bytes | None:
        """See `TenantRelay`."""
        value, until = self._notes.pop(key, (None, 0.0))
        return value if until > self._clock() else None

    async def spend(self, bucket: str, *, rate: float, burst: float) -> float:
        """See `TenantRelay`."""
        return self._buckets.spend(bucket, self._clock(), rate=rate, burst=burst)

    async def append(self, log: str, data: bytes, *, ttl_s: float, most: int) -> int:
        """See `TenantRelay`."""
        now = self._clock()
        self._sweep(now)
        kept = self._logs.get(log)
        if kept is None or kept.until <= now:
            kept = self._logs[log] = _Log()
        kept.last += 1
        kept.until = now + ttl_s
        kept.events.append(Event(kept.last, data))
        while len(kept.events) > most:
            kept.events.popleft()
        return kept.last

    async def read(self, log: str, after: int) -> list[Event] | None:
        """See `TenantRelay`."""
        kept = self._logs.get(log)
        if kept is None or kept.until <= self._clock() or after > kept.last:
            return None
        found = [event for event in kept.events if event.number > after]
        return found if len(found) == kept.last - after else None

    async def forget(self, log: str) -> None:
        """See `TenantRelay`."""
        self._logs.pop(log, None)


class MemoryFollowing:
    """See `Following`."""

    def __init__(
        self, followers: dict[str, dict[object, Deliver]], topic: str, deliver: Deliver
    ) -> None:
        self._followers, self._topic = followers, topic
        followers.setdefault(topic, {})[self] = deliver

    async def aclose(self) -> None:
        """See `Following`."""
        interested = self._followers.get(self._topic, {})
        interested.pop(self, None)
        if not interested:
            self._followers.pop(self._topic, None)


class _Log:
    __slots__ = ("events", "last", "until")

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.last = 0
        self.until = 0.0
