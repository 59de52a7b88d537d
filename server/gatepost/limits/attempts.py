"""How often a caller may come with a retry key."""

import math
import time
from collections.abc import Callable

from gatepost.limits.stage import EXCEEDED
from gatepost.stores.bucket import Buckets
from gatepost.tools.api import Failure, ToolFailure
from gatepost_authz.caller import TenantContext


class Attempts:
    """
    For each call that a caller may make, once more.

    A retry spends none of its calls, but what finds out that it is one costs a durable write, which
    others wait for. Each process counts for itself: a word with the relay would cost as much.
    """

    def __init__(
        self,
        buckets: Buckets,
        *,
        rate: float,
        burst: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._buckets = buckets
        self._rate, self._burst = 2 * rate, 2 * burst
        self._monotonic = monotonic

    def check(self, caller: TenantContext) -> None:
        """Count one; ToolFailure when it is one too many."""
        name = ("retry", *caller.principal_key)
        wait = self._buckets.spend(name, self._monotonic(), rate=self._rate, burst=self._burst)
        if wait > 0:
            refusal = ToolFailure("rate_limit", EXCEEDED)
            # Whose limit it was is told and counted like that of any other of ours.
            refusal.failure = Failure(
                "rate_limit", EXCEEDED, retry_after=math.ceil(wait), limit="caller"
            )
            raise refusal
