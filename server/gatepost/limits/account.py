"""What the calls of one caller with one tool take, looked up once for all of them."""

from collections.abc import Sequence

import msgspec

from gatepost.limits.queue import Place, Queue
from gatepost.limits.terms import Kind
from gatepost.stores.allowance import PLACE_WAIT_S, Slot, Spending
from gatepost.stores.api import TenantRelay
from gatepost.stores.bucket import Bucket

Key = tuple[str, str, str, str, str, bool]
"""
Of an account: the caller's tenant, issuer, kind and subject; the tool's name, or nothing for what
is no tool; and whether another call's tool makes these calls.
"""


class Account(msgspec.Struct):
    """
    Buckets and places themselves and not their names: nearly every call finds enough in all of
    them, and names would have to be made and looked up for each.
    """

    tenant: str
    buckets: Sequence[Bucket]
    places: Sequence[Place]
    kinds: Sequence[Kind]
    """Whose the buckets are, and then whose the places with a bound."""
    queue: Queue | None
    """Where its calls have a place in the process; None: those of another call's tool."""
    relay: TenantRelay | None = None
    """Where all processes count together; None: this one is alone."""
    spendings: Sequence[Spending] = ()
    slots: Sequence[Slot] = ()
    """The same buckets, and the places with a bound, as they are called there."""

    def take(self, now: float) -> bool:
        """Take everything that one call needs, or nothing where there is too little of any."""
        for bucket in self.buckets:
            full_at = bucket.full_at
            if full_at < now:
                full_at = now
            elif full_at - now > bucket.slack_s:
                self._put_back(bucket)
                return False
            bucket.full_at = full_at + bucket.each_s
        for place in self.places:
            if place.taken >= place.most:
                self._put_back(place)
                return False
            place.taken += 1
        return True

    def _put_back(self, lacking: Bucket | Place) -> None:
        """Undo what was taken before that one was found to have too little."""
        for bucket in self.buckets:
            if bucket is lacking:
                return
            bucket.full_at -= bucket.each_s
        for place in self.places:
            if place is lacking:
                return
            place.taken -= 1

    def shortage(self, now: float) -> tuple[Kind, float]:
        """What there was too little of, and in how many seconds there may be enough."""
        waits = [bucket.wait_s(now) for bucket in self.buckets]
        longest = max(waits, default=0.0)
        full = [place.kind for place in self.places if place.taken >= place.most]
        if full and longest <= PLACE_WAIT_S:
            return full[-1], PLACE_WAIT_S
        return self.kinds[waits.index(longest)], longest

    def hold(self) -> None:
        """Take all places whether there is room or not."""
        for place in self.places:
            place.taken += 1
        if self.relay is not None:
            self.relay.hold(self.slots)
        if self.queue is not None:
            self.queue.running += 1

    def leave(self) -> None:
        """Give all places back."""
        for place in self.places:
            place.taken -= 1
        if self.relay is not None:
            self.relay.leave(self.slots)
        queue = self.queue
        if queue is not None:
            queue.running -= 1
            if queue.waiting:
                queue.let_in()
