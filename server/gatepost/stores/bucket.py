"""Token buckets of this process, each kept as one number (GCRA, ITU-T I.371)."""

MOST_BUCKETS = 100_000


class Buckets:
    """
    Token buckets by name; a full one is forgotten, since a fresh one is full too.

    What is kept is when a bucket will be full again: what is in it follows from the time.
    """

    def __init__(self, *, most: int = MOST_BUCKETS) -> None:
        self._full_at: dict[str, float] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._full_at)

    def spend(self, bucket: str, now: float, *, rate: float, burst: float) -> float:
        """See `TenantRelay.spend`; *now* in seconds of any clock that never goes back."""
        full_at = max(self._full_at.get(bucket, now), now) + 1 / rate
        wait = full_at - now - burst / rate
        if wait > WITHIN:
            return wait
        if len(self._full_at) >= self._most and bucket not in self._full_at:
            self._make_room(now)
        self._full_at[bucket] = full_at
        return 0.0

    def _make_room(self, now: float) -> None:
        self._full_at = {name: at for name, at in self._full_at.items() if at > now}
        while len(self._full_at) >= self._most:
            # All in use at once: whoever came first gets a fresh one, and nobody is refused for it.
            self._full_at.pop(next(iter(self._full_at)))


WITHIN = 1e-9
"""A difference that only comes from adding fractions up."""
