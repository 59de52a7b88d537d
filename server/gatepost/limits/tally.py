"""What this process counts by itself: spent tokens, running calls, refusals."""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Literal

from gatepost.limits.queue import Queue
from gatepost.stores.bucket import Buckets

Kind = Literal["caller", "tenant", "tool", "server"]
"""Which limit has refused a call; "server" is this process with all its places taken."""
MOST_REFUSALS = 10_000
"""Tenants whose refusals are counted."""


class Tally:
    """Lives as long as the process, whatever is configured anew: what runs goes on counting."""

    def __init__(self) -> None:
        self.buckets = Buckets()
        self.running: dict[Hashable, int] = {}
        """Calls by tenant, and by tenant and tool, that have a place or wait for their turn."""
        self.queue = Queue(self.running)
        self._refused: dict[str, Counter[Kind]] = {}

    def hold(self, places: Iterable[Hashable]) -> None:
        """Count places whether there is room or not."""
        for place in places:
            self.running[place] = self.running.get(place, 0) + 1

    def refused(self, tenant: str, by: Kind) -> None:
        """Count a refusal."""
        counted = self._refused.get(tenant)
        if counted is None:
            if len(self._refused) >= MOST_REFUSALS:
                del self._refused[next(iter(self._refused))]
            counted = self._refused[tenant] = Counter()
        counted[by] += 1

    def refusals(self, tenant: str) -> dict[Kind, int]:
        """How often each kind of limit has refused a call of that tenant, since the start."""
        return dict(self._refused.get(tenant, {}))
