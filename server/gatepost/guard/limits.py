"""How often a caller may call."""

import math
import time
from collections.abc import Callable
from typing import Any

import structlog

from gatepost.stores.api import Relay, StoreUnavailable
from gatepost.tools.api import Call, Failure, Offer, Outcome, ToolFailure
from gatepost.tools.runner import Next
from gatepost_authz.caller import TenantContext

log = structlog.get_logger("gatepost.limits")

EXCEEDED = "Rate limit exceeded. Please try again later."

Spend = Callable[..., float]


class Limits:
    """
    A token bucket per caller, before anything that costs more than looking the tool up.

    Its caller is the principal, whatever client or token it uses: a second client must not double
    what somebody may do. The buckets are the relay's, so that several processes count together;
    while it does not answer each process counts for itself, since nobody is better off when calls
    stop because they cannot be counted.
    """

    def __init__(
        self,
        relay: Relay,
        *,
        rate: float,
        burst: float,
        spend_here: Spend,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._relay = relay
        self._rate = rate
        self._burst = burst
        self._spend_here = spend_here
        self._monotonic = monotonic

    async def __call__(self, call: Call, offer: Offer, arguments: Any, proceed: Next) -> Outcome:
        """See `Stage`."""
        caller = call.caller
        bucket = bucket_of(caller)
        try:
            relay = self._relay.of(caller.tenant_id)
            wait = await relay.spend(bucket, rate=self._rate, burst=self._burst)
        except StoreUnavailable:
            log.warning("limits_counted_here", request_id=call.request_id)
            wait = self._spend_here(
                f"{caller.tenant_id} {bucket}",
                self._monotonic(),
                rate=self._rate,
                burst=self._burst,
            )
        if wait > 0:
            return Outcome(failure=Failure("rate_limit", EXCEEDED, retry_after=math.ceil(wait)))
        return await proceed(call, offer, arguments)


class Attempts:
    """
    How often a caller may come with a retry key: for each call it may make, once more.

    A retry spends none of its calls, but what finds out that it is one costs a durable write, which
    others wait for. Each process counts for itself: a word with the relay would cost as much.
    """

    def __init__(
        self,
        *,
        rate: float,
        burst: float,
        spend_here: Spend,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate, self._burst = 2 * rate, 2 * burst
        self._spend_here = spend_here
        self._monotonic = monotonic

    def check(self, caller: TenantContext) -> None:
        """Count one; ToolFailure when it is one too many."""
        name = f"retry {len(caller.tenant_id)} {caller.tenant_id} {bucket_of(caller)}"
        wait = self._spend_here(name, self._monotonic(), rate=self._rate, burst=self._burst)
        if wait > 0:
            raise ToolFailure("rate_limit", EXCEEDED, retry_after=math.ceil(wait))


def bucket_of(caller: TenantContext) -> str:
    """The bucket of a caller within its tenant; kinds and issuers cannot run into each other."""
    return f"{caller.subject_kind} {len(caller.issuer)} {caller.issuer} {caller.subject}"
