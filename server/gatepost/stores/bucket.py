"""Token buckets of this process, each kept as one number (GCRA, ITU-T I.371)."""

from collections.abc import Hashable, Sequence

from gatepost.stores.allowance import WITHIN

MOST_BUCKETS = 100_000

Terms = tuple[Hashable, float, float]
"""A bucket's name, the seconds that one more takes, and the seconds until it is full from empty."""


class Buckets:
    """
    Token buckets by name; a full one is forgotten, since a fresh one is full too.

    What is kept is when a bucket will be full again: what is in it follows from the time.
    """

    def __init__(self, *, most: int = MOST_BUCKETS) -> None:
        self._full_at: dict[Hashable, float] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._full_at)

    def spend(self, bucket: Hashable, now: float, *, rate: float, burst: float) -> float:
        """See `TenantRelay.spend`; *now* in seconds of any clock that never goes back."""
        return self.take(bucket, 1 / rate, burst / rate, now)

    def take(self, bucket: Hashable, each_s: float, room_s: float, now: float) -> float:
        """The same by the seconds that one takes, and those until it is full from empty."""
        kept = self._full_at
        full_at = kept.get(bucket, now)
        full_at = (full_at if full_at > now else now) + each_s
        wait = full_at - now - room_s
        if wait > WITHIN:
            return wait
        if len(kept) >= self._most and bucket not in kept:
            self._make_room(now, 1)
            kept = self._full_at
        kept[bucket] = full_at
        return 0.0

    def spend_all(
        self, wanted: Sequence[Terms], now: float, *, take: bool = True
    ) -> tuple[float, int]:
        """
        Take one from each of different buckets, or nothing at all.

        The wait is 0 when it was taken, else the longest, with the place of who asks for it.
        Without *take* it is only told.
        """
        kept = self._full_at
        longest, at, place, taken = 0.0, 0, 0, []
        for bucket, each_s, room_s in wanted:
            full_at = kept.get(bucket, now)
            full_at = (full_at if full_at > now else now) + each_s
            wait = full_at - now - room_s
            if wait > WITHIN and wait > longest:
                longest, at = wait, place
            taken.append((bucket, full_at))
            place += 1
        if take and not longest:
            if len(kept) + place > self._most:
                self._make_room(now, sum(bucket not in kept for bucket, _ in taken))
            self._full_at.update(taken)
        return longest, at

    def held(self, bucket: Hashable, now: float, *, rate: float, burst: float) -> float:
        """What is in a bucket; takes nothing."""
        return burst - max(self._full_at.get(bucket, now) - now, 0.0) * rate

    def _make_room(self, now: float, places: int) -> None:
        if len(self._full_at) + places <= self._most:
            return
        self._full_at = {name: at for name, at in self._full_at.items() if at > now}
        while len(self._full_at) + places > self._most:
            # All in use at once: whoever came first gets a fresh one, and nobody is refused for it.
            self._full_at.pop(next(iter(self._full_at)))
