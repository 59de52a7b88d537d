"""What this process counts by itself: spent tokens, running calls, refusals."""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Literal

from gatepost.limits.queue import Queue
from gatepost.stores.allowance import PLACE_WAIT_S
from gatepost.stores.bucket import Buckets, Terms

Place = tuple[Hashable, float]
"""A slot's name, and the most that may be in use."""
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

    def take(
        self, wanted: Sequence[Terms], places: Sequence[Place], now: float
    ) -> tuple[float, int] | None:
        """
        Take one from each bucket and each place, or nothing: then the longest wait in seconds, and
        whose it is, counted through the buckets and then the places.
        """
        running = self.running
        number = len(wanted)
        for name, most in places:
            if running.get(name, 0) >= most:
                wait, at = self.buckets.spend_all(wanted, now, take=False)
                return (wait, at) if wait > PLACE_WAIT_S else (PLACE_WAIT_S, number)
            number += 1
        if wanted:
            wait, at = self.buckets.spend_all(wanted, now)
            if wait:
                return wait, at
        for name, _ in places:
            running[name] = running.get(name, 0) + 1
        return None

    def hold(self, places: Sequence[Place]) -> None:
        """Take places whether there is room or not."""
        for name, _ in places:
            self.running[name] = self.running.get(name, 0) + 1

    def leave(self, places: Sequence[Place]) -> None:
        """Give places back."""
        running = self.running
        for name, _ in places:
            left = running[name] - 1
            if left:
                running[name] = left
            else:
                del running[name]

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
