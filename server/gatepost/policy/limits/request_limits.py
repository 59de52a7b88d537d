"""Rate limits for requests that never become calls, and for retries with an idempotency key."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from gatepost.policy.limits.call_limits import CallLimitsKey
from gatepost.policy.limits.stage import LimitStage, local_refusal, refusal_by
from gatepost.storage.rate_limits import Buckets
from gatepost.tools.calls.stage import Next, Stage
from gatepost.tools.offers.offer import Call, Offer, Outcome
from gatepost_authz.caller import TenantContext


class CallerRequests:
    """
    Count requests in the token buckets of their caller and tenant, which calls use too.

    `LimitStage` counts calls; this class counts a call only if it ends before that stage.
    Notifications and responses have a separate bucket: a client that has used up its requests must
    still be able to cancel calls and answer requests. *refused* is called with the name of the
    limit that refused.
    """

    def __init__(self, limits: LimitStage, refused: Callable[[str], object]) -> None:
        self._limits, self._refused = limits, refused

    async def spend(self, caller: TenantContext) -> Outcome | None:
        """Count a request; return the refusal if a limit is reached."""
        return self._reported(await self._take((*caller.principal_key, None, True)))

    def spend_message(self, caller: TenantContext) -> Outcome | None:
        """Count a notification or a response, in this process only."""
        limits = self._limits
        bound = limits.rules.caller
        if not bound.rate:
            return None
        name, now = ("message", *caller.principal_key), limits.monotonic()
        wait = limits.counters.buckets.spend(name, now, rate=bound.rate, burst=bound.burst)
        return self._reported(refusal_by("caller", wait) if wait > 0 else None)

    async def take(self, caller: TenantContext) -> Outcome | None:
        """Count a request as `spend` does, without the metric; the audit writer counts it."""
        return await self._take((*caller.principal_key, "", True))

    async def _take(self, key: CallLimitsKey) -> Outcome | None:
        limits = self._limits
        # Like a call without a tool and without concurrency limits.
        call_limits = limits.limits_of(key)
        if not call_limits.buckets:
            return None
        if call_limits.store_limits is not None:
            return await limits.take_shared(call_limits.store_limits, call_limits)
        if call_limits.take(now := limits.monotonic()):
            return None
        return local_refusal(call_limits, now)

    def _reported(self, refusal: Outcome | None) -> Outcome | None:
        if refusal is not None and refusal.failure is not None:
            self._refused(refusal.failure.limit or "")
        return refusal


class RetryLimits(Stage):
    """
    Limit calls with an idempotency key to twice the caller's rate.

    A retry is not counted against the caller's rate limit. But its arguments are checked, and
    recognizing it costs a durable write, for which other calls wait. Each process counts
    separately, because asking the shared store would cost as much as the write.
    """

    for_retries = before_check = True

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

    def __call__(
        self, call: Call, offer: Offer, arguments: Any, proceed: Next
    ) -> Awaitable[Outcome]:
        """Handle the call; implements `Stage`."""
        name = ("retry", *call.caller.principal_key)
        wait = self._buckets.spend(name, self._monotonic(), rate=self._rate, burst=self._burst)
        if wait <= 0:
            return proceed(call, offer, arguments)
        return _refusal(wait)


class AuditedRetries(Stage):
    """
    Refuse calls with an idempotency key if the quota of audit records is used up.

    A replay leaves a record but passes no other limit. It asks the shared store only if replays
    have cost enough of the quota that the other processes should know.
    """

    for_retries = before_check = True

    def __init__(self, limits: LimitStage) -> None:
        self._limits = limits

    def __call__(
        self, call: Call, offer: Offer, arguments: Any, proceed: Next
    ) -> Awaitable[Outcome]:
        """Handle the call; implements `Stage`."""
        limits = self._limits
        now, is_shared = limits.monotonic(), limits.shared_store is not None
        for quota in limits.audit_quotas_of(call.caller):
            if (is_shared and quota.owes_much) or quota.bucket.wait_s(now) > 0:
                return self._ask(call, offer, arguments, proceed)
        return proceed(call, offer, arguments)

    async def _ask(self, call: Call, offer: Offer, arguments: Any, proceed: Next) -> Outcome:
        limits = self._limits
        call_limits, now = limits.audit_limits_of(call.caller), limits.monotonic()
        if not call_limits.take(now):
            return local_refusal(call_limits, now)
        if (store_limits := call_limits.store_limits) is not None and (
            refusal := await limits.take_shared(store_limits, call_limits)
        ):
            return refusal
        return await proceed(call, offer, arguments)


async def _refusal(wait_s: float) -> Outcome:
    # Reported and counted like the caller's rate limit.
    return refusal_by("caller", wait_s)
