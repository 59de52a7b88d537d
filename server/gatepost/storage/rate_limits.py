"""
The requests of rate limits to a shared store, and the token buckets of one process (GCRA, ITU-T
I.371).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

import msgspec

CONCURRENCY_WAIT_S = 1.0
"""
The `Retry-After` of a concurrency limit, because the end of a running call cannot be predicted.
"""
LEASE_S = 10.0
"""How long the running calls of a process count without a renewal."""
ROUNDING_ERROR = 1e-9
"""The rounding error that is tolerated."""
MIN_S = 1e-5
"""The smallest amount that a store can represent; spent if nothing is owed."""


class Spending(msgspec.Struct, frozen=True, gc=False):
    """A request for one token of a bucket that gains *rate* tokens a second and holds *burst*."""

    bucket: str
    rate: float
    burst: float


class QuotaBucket(msgspec.Struct, frozen=True, gc=False):
    """
    A bucket that is charged after the call; it becomes full within *room_s* seconds.

    It is taken while it is not empty, and a call pays what earlier calls owe.
    """

    bucket: str
    room_s: float


def debt_token(room_s: float, owed_s: float) -> tuple[float, float]:
    """
    Return rate and burst with which a quota's single token is its whole debt.

    The burst is the quota plus one such token, so it succeeds while the bucket is not empty.
    """
    piece_s = max(owed_s, MIN_S)
    return 1 / piece_s, (room_s + piece_s) / piece_s


class ConcurrencyLimit(msgspec.Struct, frozen=True, gc=False):
    """A limit of *maximum* running calls."""

    name: str
    maximum: int


class Denial(msgspec.Struct, frozen=True, gc=False):
    """
    A bucket was empty or a concurrency limit was reached, and nothing was taken.

    ``at`` is the index of the longest wait, first in the spendings, then in the quotas, and then in
    the concurrency limits.
    """

    at: int
    wait_s: float


class StoreLimits(Protocol):
    """
    Buckets and concurrency limits of one tenant at the shared store that are taken together.

    They are prepared once for many calls, because their names are the same each time.
    """

    async def take(self, owed_s: Sequence[float] = ()) -> Denial | None:
        """
        Take a token from each bucket and count a call in each limit, or do nothing and say why.

        *owed_s* are the seconds that each quota is charged. The step is atomic over all processes.
        A call counts until `leave`, or until its process has not renewed it for `LEASE_S`.
        """

    def hold(self) -> None:
        """Count a call in each limit, even beyond it; other processes learn of it soon."""

    def leave(self) -> None:
        """End a call in each limit; other processes learn of it soon."""


MAX_BUCKETS = 200_000

BucketRate = tuple[Hashable, float, float]
"""A bucket's name, the seconds for one token, and the seconds until an empty bucket is full."""


class Bucket(msgspec.Struct, gc=False):
    """One token bucket, stored as the time when it is full."""

    full_at: float
    """The time when it is full again, in seconds of a monotonic clock."""
    each_s: float = 0.0
    """The seconds that one token takes."""
    slack_s: float = 0.0
    """How far `full_at` may be in the future while there is still a token."""
    owed_s: float = 0.0
    """The seconds of `full_at` that have not been reported to the other processes yet."""

    @classmethod
    def full(cls, rate: float, burst: float, now: float) -> "Bucket":
        """Return a full bucket that gains *rate* tokens a second and holds *burst*."""
        return cls(now, 1 / rate, (burst - 1) / rate + ROUNDING_ERROR)

    def wait_s(self, now: float) -> float:
        """Return the seconds until there is a token; 0 if there is one."""
        missing = self.full_at - now - self.slack_s
        return missing + ROUNDING_ERROR if missing > 0 else 0.0

    def charge(self, now: float, cost_s: float) -> None:
        """Take what the bucket gains in *cost_s* seconds, even if it does not have that much."""
        full_at = self.full_at
        self.full_at = (full_at if full_at > now else now) + cost_s

    def forgive(self, now: float) -> None:
        """Forgive what the bucket owes: it is empty at most."""
        self.full_at = min(self.full_at, now + self.slack_s - ROUNDING_ERROR + self.each_s)

    def empty(self, now: float, wait_s: float) -> None:
        """Have no token for *wait_s* seconds, because all processes together have used them up."""
        self.full_at = max(self.full_at, now + self.slack_s + wait_s)


class ConcurrencyCounter(msgspec.Struct, weakref=True):
    """A number of running calls, and its maximum."""

    maximum: float
    running: int = 0


class LocalLimits(msgspec.Struct):
    """
    Token buckets and concurrency limits of this process that are taken together, or not.

    Each differs from all others. ValueError if one occurs twice: a refused call could not return
    what it took from the first occurrence, and `shortage` would not find the reason.
    """

    buckets: Sequence[Bucket]
    concurrency: Sequence[ConcurrencyCounter] = ()

    def __post_init__(self) -> None:
        for limits in (self.buckets, self.concurrency):
            if len(set(map(id, limits))) < len(limits):
                raise ValueError("a bucket or a concurrency limit occurs twice in one request")

    @classmethod
    def of_rate(cls, rate: float, burst: float, now: float) -> "LocalLimits":
        """Return a rate limit alone: *rate* times a second, and *burst* times at once."""
        return LocalLimits((Bucket.full(rate, burst, now),))

    def take(self, now: float) -> bool:
        """Take a token from each bucket and count a call in each limit, or do nothing."""
        for bucket in self.buckets:
            full_at = bucket.full_at
            if full_at < now:
                full_at = now
            elif full_at - now > bucket.slack_s:
                self._put_back(bucket)
                return False
            bucket.full_at = full_at + bucket.each_s
        for counter in self.concurrency:
            if counter.running >= counter.maximum:
                self._put_back(counter)
                return False
            counter.running += 1
        return True

    def _put_back(self, lacking: Bucket | ConcurrencyCounter) -> None:
        """Return what was taken before *lacking* turned out to be used up."""
        for bucket in self.buckets:
            if bucket is lacking:
                return
            bucket.full_at -= bucket.each_s
        for counter in self.concurrency:
            if counter is lacking:
                return
            counter.running -= 1

    def shortage(self, now: float) -> Denial:
        """Return which limit refuses a call now, and the seconds until there may be room again."""
        waits = [bucket.wait_s(now) for bucket in self.buckets]
        longest = max(waits, default=0.0)
        full = [
            at for at, counter in enumerate(self.concurrency) if counter.running >= counter.maximum
        ]
        if full and longest <= CONCURRENCY_WAIT_S:
            return Denial(len(waits) + full[0], CONCURRENCY_WAIT_S)
        return Denial(waits.index(longest), longest)


class Buckets:
    """
    Token buckets by name; a full bucket may be dropped, because a new one is full too.

    *forgetting* is called before buckets are dropped. Drop your own references then: two buckets
    with one name would allow twice as much.
    """

    def __init__(
        self, *, max_buckets: int = MAX_BUCKETS, forgetting: Callable[[], object] = lambda: None
    ) -> None:
        self._buckets: dict[Hashable, Bucket] = {}
        self._max_buckets = max_buckets
        self._forgetting = forgetting

    def __len__(self) -> int:
        return len(self._buckets)

    def buckets_for(self, rates: Sequence[BucketRate], now: float) -> list[Bucket]:
        """Return the buckets with these names, and apply these rates to them."""
        if len(self._buckets) + len(rates) > self._max_buckets:
            self._make_room(now, sum(name not in self._buckets for name, _, _ in rates))
        buckets = []
        for name, each_s, room_s in rates:
            bucket, slack_s = self._buckets.get(name), room_s - each_s + ROUNDING_ERROR
            if bucket is None:
                bucket = self._buckets[name] = Bucket(now, each_s, slack_s)
            else:
                bucket.each_s, bucket.slack_s = each_s, slack_s
            buckets.append(bucket)
        return buckets

    def spend(self, bucket: Hashable, now: float, *, rate: float, burst: float) -> float:
        """
        Take a token, as `TenantSharedStore.spend` does; *now* is the time of a monotonic clock.
        """
        (stored_bucket,) = self.buckets_for([(bucket, 1 / rate, burst / rate)], now)
        if (wait_s := stored_bucket.wait_s(now)) <= 0:
            stored_bucket.charge(now, stored_bucket.each_s)
        return wait_s

    def tokens_in(self, bucket: Hashable, now: float, *, rate: float, burst: float) -> float:
        """Return the number of tokens in a bucket."""
        stored_bucket = self._buckets.get(bucket)
        return (
            burst if stored_bucket is None else burst - max(stored_bucket.full_at - now, 0.0) * rate
        )

    def _make_room(self, now: float, needed: int) -> None:
        if len(self._buckets) + needed <= self._max_buckets:
            return
        self._forgetting()
        # Drop more than the one that is needed now, because each search looks through all buckets.
        excess = len(self._buckets) + max(needed, self._max_buckets // 10) - self._max_buckets
        # All are in use at once. Drop those that will be full first; new buckets replace them. A
        # caller that has used up its calls is among the last, so inventing many names gains it
        # nothing.
        until = sorted(bucket.full_at for bucket in self._buckets.values())[excess - 1]
        names = [
            name for name, bucket in self._buckets.items() if bucket.full_at <= max(until, now)
        ]
        for name in names if until <= now else names[:excess]:
            del self._buckets[name]


class MemoryLimits(msgspec.Struct, frozen=True):
    """The `StoreLimits` of one tenant, in memory."""

    counted_buckets: Buckets
    running: Counter[str]
    clock: Callable[[], float]
    spendings: Sequence[Spending]
    quotas: Sequence[QuotaBucket]
    concurrency: Sequence[ConcurrencyLimit]

    async def take(self, owed_s: Sequence[float] = ()) -> Denial | None:
        """Take a token from each bucket and count a call in each limit, or do nothing."""
        due = [
            Spending(quota.bucket, *debt_token(quota.room_s, quota_owed_s))
            for quota, quota_owed_s in zip(self.quotas, owed_s, strict=True)
        ]
        rates = [
            (spending.bucket, 1 / spending.rate, spending.burst / spending.rate)
            for spending in (*self.spendings, *due)
        ]
        now = self.clock()
        limits = LocalLimits(
            self.counted_buckets.buckets_for(rates, now),
            [
                ConcurrencyCounter(limit.maximum, self.running[limit.name])
                for limit in self.concurrency
            ],
        )
        if not limits.take(now):
            return limits.shortage(now)
        self.hold()
        return None

    def hold(self) -> None:
        """Count a call in each limit, even beyond it."""
        self.running.update(limit.name for limit in self.concurrency)

    def leave(self) -> None:
        """End a call in each limit."""
        for limit in self.concurrency:
            self.running[limit.name] -= 1
            if self.running[limit.name] <= 0:
                del self.running[limit.name]
