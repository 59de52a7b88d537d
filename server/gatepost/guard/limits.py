"""How often a caller may call."""

import math
import time
from collections.abc import Callable
from typing import Any

import structlog

from gatepost.stores.api import Relay, StoreUnavailable
from gatepost.tools.api import Call, Failure, Offer, Outcome
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


def bucket_of(caller: TenantContext) -> str:
    """The bucket of a caller within its tenant; kinds and issuers cannot run into each other."""
    return f"{caller.subject_kind} {len(caller.issuer)} {caller.issuer} {caller.subject}"
