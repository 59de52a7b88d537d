"""Apply rate limits, concurrency limits and holds of callers to a call before its tool runs."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import Any

import msgspec

from gatepost.execution.failure import FailureLimit
from gatepost.policy.limits.admission_queue import AdmissionQueue
from gatepost.policy.limits.call_limits import (
    AuditQuota,
    CallLimits,
    CallLimitsKey,
    restore_debts,
    take_debts,
)
from gatepost.policy.limits.local_counters import LimitUsage, LocalCounters, levels
from gatepost.policy.limits.rules import ANY, IN_QUEUE, Bound, LimitRules, rows_of
from gatepost.policy.revocation.watch import Revocations
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.rate_limits import StoreLimits
from gatepost.storage.shared_store import SharedStore
from gatepost.tools.calls.redacted_call import RedactedCall
from gatepost.tools.calls.stage import Next, Stage
from gatepost.tools.context.client import NO_CLIENT
from gatepost.tools.offers.offer import NOT_AUDITED, Call, Failure, Offer, Outcome
from gatepost_authz.caller import TenantContext

log = logging.getLogger(__name__)

EXCEEDED = "Rate limit exceeded. Please try again later."
HOLD_MESSAGE = (
    "Too many calls of this caller were denied, so all its calls are refused for {seconds} "
    "seconds. Do something else, or ask your user."
)
AUDIT_EXCEEDED: dict[FailureLimit, str] = {
    "caller_audit": (
        "The audit records of this caller have reached their quota of bytes a day "
        "(`limits.audit_bytes_per_day`). Please try again later."
    ),
    "tenant_audit": (
        "The audit records of this tenant have reached their quota of bytes a day "
        "(`limits.tenant.audit_bytes_per_day`). Please try again later."
    ),
}


class LimitStage(Stage):
    """
    Apply the token buckets of caller, tenant and tool, the concurrency limits of tenant and tool,
    and the concurrency limit of this process. The stage runs before everything that costs more than
    a lookup.

    Limits apply to the principal, so a second client or token of a caller does not double them.
    Token buckets and concurrency limits are taken in one step, all or none. With a *shared_store*,
    processes count together; a single process needs no shared store. While the shared store does
    not answer, each process counts separately, so calls do not stop because they cannot be counted.
    The process's own limit comes last; calls wait for it in the admission queue.

    A call counts until its tool has ended, even if its client has left (`count_until`). While a
    person decides, the call does not count as running. Afterwards it counts again even if the limit
    is reached, so that no decision is lost to a limit. A nested call is counted against every rate
    limit, but of the concurrency limits only against its tool's: otherwise the calls of a tenant
    could wait for each other forever.
    """

    before_check = True

    def __init__(
        self,
        shared_store: SharedStore | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters = LocalCounters()
        self.queue, self._call_limits = self.counters.queue, self.counters.call_limits
        self.shared_store = shared_store
        self.monotonic = monotonic
        self._is_store_down = False
        """Whether the shared store did not answer the last request."""
        self.apply(LimitRules())

    def apply(
        self,
        rules: LimitRules,
        *,
        max_running: int = 0,
        max_waiting_per_tenant: int = 100,
        within_s: float = 5.0,
    ) -> None:
        """
        Apply these limits from now on; running calls go on.

        In this process *max_running* calls run at once (0: unlimited). At most
        *max_waiting_per_tenant* calls of a tenant wait to begin, for *within_s* seconds.
        """
        self.rules = rules
        self.counters.apply(rules.cached_tokens)
        self.queue.apply(
            max_running=max_running or ANY,
            max_waiting_per_tenant=max_waiting_per_tenant,
            within_s=within_s,
        )

    async def __call__(self, call: Call, offer: Offer, arguments: Any, proceed: Next) -> Outcome:
        """Handle the call; implements `Stage`."""
        caller = call.caller
        key = (
            caller.tenant_id,
            caller.issuer,
            caller.subject_kind,
            caller.subject,
            # Callers can invent any number of names that are not tools.
            call.name if call.kind == "tool" else None if call.kind in NOT_AUDITED else "",
            call.depth > 0,
        )
        call_limits = self._call_limits.get(key) or self.limits_of(key)
        if call_limits.store_limits is not None:
            if refusal := await self.take_shared(call_limits.store_limits, call_limits):
                return refusal
        elif not call_limits.take(now := self.monotonic()):
            return local_refusal(call_limits, now)
        queue = call_limits.queue
        if queue is not None:
            if queue.running < queue.max_running:
                queue.running += 1
            elif refusal := await self._queued(queue, call, call_limits):
                return refusal
        outer = ADMITTED_CALL.get()
        admitted = AdmittedCall(call_limits, outer)
        if call.client is not NO_CLIENT and isinstance(call.client, RedactedCall):
            # Only such a client can make the call wait for a person.
            call.client.suspend_while_waiting(admitted)
        ADMITTED_CALL.set(admitted)
        try:
            return await proceed(call, offer, arguments)
        finally:
            ADMITTED_CALL.set(outer)
            if admitted.pauses or admitted.executions:
                admitted.end()
            else:  # the same for nearly all calls, without the cost of another function
                admitted.over = True
                leave(call_limits)

    def limits_of(self, key: CallLimitsKey) -> CallLimits:
        """Return the limits of calls with this key."""
        cached = self._call_limits.get(key)
        return cached or self.counters.limits_of(
            key, self.rules, self.monotonic(), self.shared_store
        )

    def audit_quotas_of(self, caller: TenantContext) -> tuple[AuditQuota, ...]:
        """Return the quotas of audit records of a caller and its tenant."""
        return self.counters.audit(caller.principal_key, self.rules, self.monotonic())

    def audit_limits_of(self, caller: TenantContext) -> CallLimits:
        """Return limits with a caller's quotas alone; `take` on them only checks for room."""
        quotas, shared_store = self.audit_quotas_of(caller), self.shared_store
        return CallLimits(
            tenant=caller.tenant_id,
            buckets=[quota.bucket for quota in quotas],
            concurrency=(),
            kinds=[quota.row.rate.kind for quota in quotas],
            queue=None,
            store_limits=None
            if shared_store is None
            else shared_store.for_tenant(caller.tenant_id).limits(
                quotas=[quota.row.shared for quota in quotas]
            ),
            quotas=quotas,
        )

    def charge_record(self, caller: TenantContext, size: int) -> None:
        """Charge an audit record of *size* bytes to *caller* and its tenant."""
        principal = caller.tenant_id, caller.issuer, caller.subject_kind, caller.subject
        quotas = self.counters.audit_quotas.get(principal)
        now = self.monotonic()
        for quota in self.audit_quotas_of(caller) if quotas is None else quotas:
            bucket, cost_s = quota.bucket, size * quota.row.rate.byte_s
            bucket.charge(now, cost_s)
            bucket.owed_s += cost_s

    async def take_shared(
        self, store_limits: StoreLimits, call_limits: CallLimits
    ) -> Outcome | None:
        """Take everything a call needs from the shared counters; return a refusal or None."""
        quotas = call_limits.quotas
        owed_s = take_debts(quotas)
        try:
            denial = await store_limits.take(owed_s)
        except asyncio.CancelledError:
            restore_debts(quotas, owed_s)
            raise
        except StoreUnavailable as outage:
            restore_debts(quotas, owed_s)
            if not self._is_store_down:  # logged once per outage, not for each call
                self._is_store_down = True
                log.warning("limits_counted_per_process", extra={"reason": str(outage)})
            now = self.monotonic()
            if not call_limits.take(now):
                return local_refusal(call_limits, now)
            store_limits.hold()
            return None
        if self._is_store_down:
            self._is_store_down = False
            log.info("limits_counted_together")
        if denial is not None:
            restore_debts(quotas, owed_s)
            at = denial.at - (len(call_limits.buckets) - len(quotas))
            if 0 <= at < len(quotas):
                quotas[at].bucket.empty(self.monotonic(), denial.wait_s)
            return refusal_by(call_limits.kinds[denial.at], denial.wait_s)
        for counter in call_limits.concurrency:
            counter.running += 1
        return None

    async def _queued(
        self, queue: AdmissionQueue, call: Call, call_limits: CallLimits
    ) -> Outcome | None:
        """Wait until this process runs fewer calls; return a refusal if that takes too long."""
        let_in, waiting = False, None
        if self.shared_store is not None:
            tenant_shared_store = self.shared_store.for_tenant(call_limits.tenant)
            waiting = tenant_shared_store.limits(concurrency=IN_QUEUE)
            waiting.hold()
        try:
            let_in = await queue.enter(call_limits.tenant, call.caller.principal_key)
        finally:
            if waiting is not None:
                waiting.leave()
            if not let_in:
                queue.running += 1  # `leave` ends it here and in all other limits
                leave(call_limits)
        return None if let_in else refusal_by("server", queue.within_s)

    @property
    def limits_nothing(self) -> bool:
        """Return whether no limit is configured."""
        rules = self.rules
        bounds = (
            *(rules.caller, rules.tenant, rules.tool, *rules.tools.values()),
            *(rules.caller_audit, rules.tenant_audit),
        )
        return self.queue.max_running == ANY and all(bound == Bound() for bound in bounds)

    async def levels(
        self, tenant: str, *, tools: Sequence[str] = (), callers: Sequence[TenantContext] = ()
    ) -> LimitUsage:
        """
        Return the usage of the limits of *tenant*, of these *tools* and of these *callers*.

        It takes nothing from the limits. Tools and callers without a limit are left out.
        """
        principals = [caller.principal_key for caller in callers]
        rows = rows_of(self.rules, tenant, tools, principals)
        return await levels(self.counters, self.shared_store, tenant, rows, now=self.monotonic())


class DenialHold(Stage):
    """A stage that refuses every call of a held caller."""

    before_check = True

    def __init__(self, revocations: Revocations) -> None:
        self._revocations = revocations

    def __call__(
        self, call: Call, offer: Offer, arguments: Any, proceed: Next
    ) -> Awaitable[Outcome]:
        """Handle the call; implements `Stage`."""
        revocations = self._revocations
        if revocations.are_holding and (held_s := revocations.held_s(call.caller)):
            return _hold_refusal(held_s)
        return proceed(call, offer, arguments)


async def _hold_refusal(held_s: float) -> Outcome:
    seconds = max(1, math.ceil(held_s))
    message = HOLD_MESSAGE.format(seconds=seconds)
    return Outcome(failure=Failure("rate_limit", message, retry_after=seconds, limit="hold"))


def local_refusal(call_limits: CallLimits, now: float) -> Outcome:
    """Return the outcome of a call that these limits refuse now."""
    denial = call_limits.shortage(now)
    return refusal_by(call_limits.kinds[denial.at], denial.wait_s)


def refusal_by(limit: FailureLimit, wait_s: float) -> Outcome:
    """Return the outcome of a call that this limit refused."""
    wait = max(1, math.ceil(wait_s))
    message = AUDIT_EXCEEDED.get(limit, EXCEEDED)
    return Outcome(failure=Failure("rate_limit", message, retry_after=wait, limit=limit))


class AdmittedCall(msgspec.Struct):
    """A running call in its limits; suspended while a person decides."""

    call_limits: CallLimits
    outer: "AdmittedCall | None" = None
    """The call whose tool made this one."""
    executions: tuple["asyncio.Future[Any]", ...] = ()
    """The executions that `count_until` was called with; each is done when it has ended."""
    pauses: int = 0
    over: bool = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the call during a block; the last of several blocks counts it again."""
        self.pauses += 1
        if self.pauses == 1 and not self.over:
            leave(self.call_limits)
        try:
            yield
        finally:
            self.pauses -= 1
            if self.pauses == 0 and not self.over:
                enter(self.call_limits)

    def end(self) -> None:
        """End the call in all limits, as soon as its executions have ended."""
        for execution in self.executions:
            if not execution.done():
                execution.add_done_callback(lambda _: self.end(), context=Context())
                return
        self.executions, self.over = (), True  # the outcomes are large
        if not self.pauses:
            leave(self.call_limits)


ADMITTED_CALL: ContextVar[AdmittedCall | None] = ContextVar("gatepost_admitted_call", default=None)
"""The innermost call that has passed its limits and for which the current code runs."""


def count_until(execution: "asyncio.Future[Any]") -> None:
    """
    Count the current call and its outer calls in their limits until *execution* is done.

    An execution may go on after the client of its call has left. If the call did not count then, a
    caller could start any number of executions by leaving each of them.
    """
    admitted = ADMITTED_CALL.get()
    while admitted is not None:
        if not admitted.over:
            running = [earlier for earlier in admitted.executions if not earlier.done()]
            admitted.executions = (*running, execution)
        admitted = admitted.outer


def enter(call_limits: CallLimits) -> None:
    """Count a call in all concurrency limits, even beyond them."""
    for counter in call_limits.concurrency:
        counter.running += 1
    if call_limits.store_limits is not None:
        call_limits.store_limits.hold()
    if call_limits.queue is not None:
        call_limits.queue.running += 1


def leave(call_limits: CallLimits) -> None:
    """End a call in all concurrency limits."""
    for counter in call_limits.concurrency:
        counter.running -= 1
    if call_limits.store_limits is not None:
        call_limits.store_limits.leave()
    queue = call_limits.queue
    if queue is not None:
        queue.running -= 1
        if queue.waiting:
            queue.let_in()
