"""Rate limits: what a relay is asked for, and token buckets of one process (GCRA, ITU-T I.371)."""

from collections.abc import Callable, Hashable, Sequence

import msgspec

PLACE_WAIT_S = 1.0
"""When it is worth asking again for a place; nobody knows when one becomes free."""
LEASE_S = 10.0
"""After so long without a word from a process, the places that it took are free."""
WITHIN = 1e-9
"""A difference that only comes from adding fractions up."""


class Spending(msgspec.Struct, frozen=True, gc=False):
    """One to be taken from a token bucket that gains *rate* a second and holds *burst*."""

    bucket: str
    rate: float
    burst: float


class ConcurrencySlot(msgspec.Struct, frozen=True, gc=False):
    """One place to be taken of the *most* that may be in use at once."""

    name: str
    most: int


class Denial(msgspec.Struct, frozen=True, gc=False):
    """
    What was asked for is not there, and nothing was taken.

    ``at`` counts through the spendings and then the slots, to the one that makes one wait longest.
    """

    at: int
    wait_s: float


MOST_BUCKETS = 100_000

Terms = tuple[Hashable, float, float]
"""A bucket's name, the seconds that one more takes, and the seconds until it is full from empty."""


class Bucket(msgspec.Struct, gc=False):
    """One token bucket: what is in it follows from the time."""

    full_at: float
    """When it is full again, in seconds of any clock that never goes back."""
    each_s: float = 0.0
    """How much later that is with one more taken."""
    slack_s: float = 0.0
    """How far off it may be with one more still in the bucket."""
    owed_s: float = 0.0
    """How much of `full_at` was charged here and is not yet told to the other processes."""

    @classmethod
    def of(cls, rate: float, burst: float, now: float) -> "Bucket":
        """Return a full bucket that gains *rate* tokens a second and holds *burst*."""
        return cls(now, 1 / rate, (burst - 1) / rate + WITHIN)

    def spend(self, now: float) -> bool:
        """Take one out if there is one; return whether there was."""
        if self.wait_s(now):
            return False
        self.take(now)
        return True

    def wait_s(self, now: float) -> float:
        """Seconds until one is in it; 0: there is one."""
        missing = self.full_at - now - self.slack_s
        return missing + WITHIN if missing > 0 else 0.0

    def take(self, now: float) -> None:
        """Take one out, which is there."""
        full_at = self.full_at
        self.full_at = (full_at if full_at > now else now) + self.each_s


class Buckets:
    """
    Token buckets by name; a full one may be forgotten, since a fresh one is full too.

    *forgetting* is called before any is forgotten: whoever has kept a Bucket asks for it again, or
    two of one name would give twice as much.
    """

    def __init__(
        self, *, most: int = MOST_BUCKETS, forgetting: Callable[[], object] = lambda: None
    ) -> None:
        self._kept: dict[Hashable, Bucket] = {}
        self._most = most
        self._forgetting = forgetting

    def __len__(self) -> int:
        return len(self._kept)

    def these(self, wanted: Sequence[Terms], now: float) -> list[Bucket]:
        """Those of these names, with these terms from now on."""
        if len(self._kept) + len(wanted) > self._most:
            self._make_room(now, sum(name not in self._kept for name, _, _ in wanted))
        found = []
        for name, each_s, room_s in wanted:
            bucket = self._kept.get(name)
            if bucket is None:
                bucket = self._kept[name] = Bucket(now)
            bucket.each_s, bucket.slack_s = each_s, room_s - each_s + WITHIN
            found.append(bucket)
        return found

    def spend(self, bucket: Hashable, now: float, *, rate: float, burst: float) -> float:
        """See `TenantRelay.spend`; *now* in seconds of any clock that never goes back."""
        return self.spend_all([(bucket, 1 / rate, burst / rate)], now)[0]

    def spend_all(
        self, wanted: Sequence[Terms], now: float, *, take: bool = True
    ) -> tuple[float, int]:
        """
        Take one from each of different buckets, or nothing at all.

        The wait is 0 when it was taken, else the longest, with the place of who asks for it.
        Without *take* it is only told.
        """
        found = self.these(wanted, now)
        waits = [bucket.wait_s(now) for bucket in found]
        longest = max(waits, default=0.0)
        if longest:
            return longest, waits.index(longest)
        if take:
            for bucket in found:
                bucket.take(now)
        return 0.0, 0

    def held(self, bucket: Hashable, now: float, *, rate: float, burst: float) -> float:
        """What is in a bucket; takes nothing."""
        kept = self._kept.get(bucket)
        return burst if kept is None else burst - max(kept.full_at - now, 0.0) * rate

    def _make_room(self, now: float, places: int) -> None:
        if len(self._kept) + places <= self._most:
            return
        self._forgetting()
        # More than is asked for now, as looking through all of them costs what it costs.
        excess = len(self._kept) + max(places, self._most // 10) - self._most
        # All in use at once: fresh ones are for those that would be full first anyway. Whoever is
        # out of calls is among the last, and gains nothing by a crowd of new names.
        until = sorted(bucket.full_at for bucket in self._kept.values())[excess - 1]
        names = [name for name, one in self._kept.items() if one.full_at <= max(until, now)]
        for name in names if until <= now else names[:excess]:
            del self._kept[name]
