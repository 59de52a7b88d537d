"""Count this process's calls: token buckets, running calls, and what tenants use of them."""

from collections.abc import Hashable, Mapping, Sequence
from sys import intern
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec

from gatepost.execution.failure import FailureLimit
from gatepost.policy.limits.admission_queue import AdmissionQueue
from gatepost.policy.limits.call_limits import (
    AuditQuota,
    CallLimits,
    CallLimitsKey,
    caller_quota,
    tenant_quota,
)
from gatepost.policy.limits.rules import (
    ANY,
    IN_QUEUE,
    BoundKey,
    LimitRules,
    PrincipalKey,
    named,
    rows_of,
    seconds_of,
)
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.rate_limits import (
    Bucket,
    BucketRate,
    Buckets,
    ConcurrencyCounter,
    ConcurrencyLimit,
    Spending,
    StoreLimits,
)
from gatepost.storage.shared_store import SharedStore

MIN_CALL_LIMITS = 50_000
CALL_LIMITS_PER_TOKEN = 2
"""How many `CallLimits` are cached for each cached token; a caller has one for each tool."""


SharedKey = tuple[str, str | None, bool]
"""Tenant, tool and whether the calls are nested, as in `CallLimitsKey`."""

K = TypeVar("K")
V = TypeVar("V")


class SharedLimits(msgspec.Struct, frozen=True):
    """The part of `CallLimits` that all callers of a tenant share in calls of one tool."""

    buckets: Sequence[Bucket]
    concurrency: Sequence[ConcurrencyCounter]
    quotas: tuple[AuditQuota, ...]
    quota_buckets: Sequence[Bucket]
    kinds: Sequence[FailureLimit]
    """The kinds of these limits, and of the caller's own buckets, which are the same for each."""
    spendings: Sequence[Spending]
    shared_concurrency: Sequence[ConcurrencyLimit]


class LocalCounters:
    """Counters that survive a reload, so that running calls keep counting."""

    def __init__(self) -> None:
        self.call_limits: dict[CallLimitsKey, CallLimits] = {}
        """Cached limits by key; cleared when the settings change or the cache is full."""
        self.audit_quotas: dict[PrincipalKey, tuple[AuditQuota, ...]] = {}
        """Cached quotas of audit records, by caller."""
        self._shared: dict[SharedKey, SharedLimits] = {}
        self.buckets = Buckets(forgetting=self.forget)
        self.concurrency: WeakValueDictionary[Hashable, ConcurrencyCounter] = WeakValueDictionary()
        """By tenant, and by tenant and tool; kept while the cache or a call refers to it."""
        self.queue = AdmissionQueue(self.concurrency)
        self.max_entries = MIN_CALL_LIMITS

    def apply(self, cached_tokens: int) -> None:
        """Clear the cached limits, and cache as many as the callers of these tokens need."""
        self.forget()
        self.max_entries = max(MIN_CALL_LIMITS, CALL_LIMITS_PER_TOKEN * cached_tokens)

    def forget(self) -> None:
        """Clear the cached limits; running calls keep counting."""
        self.call_limits.clear()
        self.audit_quotas.clear()
        self._shared.clear()

    def audit(
        self, principal: PrincipalKey, rules: LimitRules, now: float
    ) -> tuple[AuditQuota, ...]:
        """Return a caller's quotas of audit records."""
        cached = self.audit_quotas.get(principal)
        if cached is not None:
            return cached
        rows = [*caller_quota(rules, principal), *tenant_quota(rules, principal[0])]
        stored_buckets = self.buckets.buckets_for([row.bucket for row in rows], now)
        quotas = tuple(map(AuditQuota, rows, stored_buckets))
        self._cache(self.audit_quotas, principal, quotas)
        return quotas

    def limits_of(
        self, key: CallLimitsKey, rules: LimitRules, now: float, shared_store: SharedStore | None
    ) -> CallLimits:
        """Return the limits of calls with this key under these rules."""
        principal, tool, inner = key[:4], key[4], key[5]
        tenant, caller = principal[0], rules.caller
        rows = [] if tool is None else caller_quota(rules, principal)
        own_keys = [row.bucket for row in rows]
        if caller.rate:
            own_keys.append((principal, *seconds_of(caller)))
        # Making room for these may drop buckets, and then shared objects.
        stored_buckets = self.buckets.buckets_for(own_keys, now)
        shared = self._shared.get((tenant, tool, inner))
        if shared is None:
            shared, stored_buckets = self._share((tenant, tool, inner), own_keys, rules, now)
        quotas = (*map(AuditQuota, rows, stored_buckets), *shared.quotas)
        of_rows, of_rate = stored_buckets[: len(rows)], stored_buckets[len(rows) :]
        store_limits: StoreLimits | None = None
        if shared_store is not None:
            rate = [Spending(named(principal), caller.rate, caller.burst)] if caller.rate else []
            store_limits = shared_store.for_tenant(tenant).limits(
                [*rate, *shared.spendings],
                shared.shared_concurrency,
                [quota.row.shared for quota in quotas],
            )
        call_limits = CallLimits(
            tenant=tenant,
            buckets=(*of_rate, *shared.buckets, *of_rows, *shared.quota_buckets),
            concurrency=shared.concurrency,
            kinds=shared.kinds,
            queue=None if inner else self.queue,
            store_limits=store_limits,
            quotas=quotas,
        )
        if tool is not None and principal not in self.audit_quotas:
            self._cache(self.audit_quotas, principal, quotas)
        # Do not use the call's key: it would keep a copy of the tool's name for each caller.
        own_key = (*principal, None if tool is None else intern(tool), inner)
        self._cache(self.call_limits, own_key, call_limits)
        return call_limits

    def _share(
        self, key: SharedKey, own_keys: Sequence[BucketRate], rules: LimitRules, now: float
    ) -> tuple[SharedLimits, list[Bucket]]:
        """
        Return what the callers of a tenant share in calls of a tool, and the buckets of *own_keys*.

        All buckets are looked up together, so that making room for one drops no other.
        """
        tenant, tool, inner = key
        rows = rows_of(rules, tenant, (tool,) if tool else (), ())
        rated = [row for row in rows if row.bound.rate]
        counted = rows[1:] if inner else rows  # the first is the tenant's
        bounded = [row for row in counted if row.bound.concurrency != ANY]
        # A tenant's calls are counted even without a limit: the admission queue needs the number.
        unbounded = [row for row in counted if row.kind == "tenant" and row not in bounded]
        quotas = [] if tool is None else tenant_quota(rules, tenant)
        wanted = [
            *own_keys,
            *((row.local, *seconds_of(row.bound)) for row in rated),
            *(row.bucket for row in quotas),
        ]
        stored_buckets = self.buckets.buckets_for(wanted, now)
        of_rows, of_quotas = (
            stored_buckets[len(own_keys) : len(own_keys) + len(rated)],
            stored_buckets[len(own_keys) + len(rated) :],
        )
        own_rate: list[FailureLimit] = ["caller"] if rules.caller.rate else []
        own_quota: list[FailureLimit] = (
            ["caller_audit"] if rules.caller_audit.rate and tool is not None else []
        )
        shared_limits = SharedLimits(
            buckets=of_rows,
            concurrency=[self._counter(row) for row in (*bounded, *unbounded)],
            quotas=tuple(map(AuditQuota, quotas, of_quotas)),
            quota_buckets=of_quotas,
            kinds=[
                *own_rate,
                *(row.kind for row in rated),
                *own_quota,
                *(row.rate.kind for row in quotas),
                *(row.kind for row in bounded),
            ],
            spendings=[Spending(row.shared, row.bound.rate, row.bound.burst) for row in rated],
            shared_concurrency=[
                ConcurrencyLimit(row.shared, int(row.bound.concurrency)) for row in bounded
            ],
        )
        self._cache(self._shared, key, shared_limits)
        return shared_limits, stored_buckets[: len(own_keys)]

    def _counter(self, row: BoundKey) -> ConcurrencyCounter:
        counter = self.concurrency.get(row.local)
        if counter is None:
            counter = self.concurrency[row.local] = ConcurrencyCounter(row.bound.concurrency)
        counter.maximum = row.bound.concurrency
        return counter

    @property
    def running(self) -> Mapping[Hashable, int]:
        """Return the numbers of running and waiting calls by tenant, and by tenant and tool."""
        return {
            name: counter.running for name, counter in self.concurrency.items() if counter.running
        }

    def _cache(self, cache: dict[K, V], key: K, entry: V) -> None:
        if len(cache) >= self.max_entries:
            cache.clear()
        cache[key] = entry


class BucketUsage(msgspec.Struct, frozen=True):
    """A token bucket: its rate per second, its capacity and its current level."""

    kind: FailureLimit
    name: str
    """The tool's name or the caller's subject; empty for the tenant's bucket."""
    rate: float
    burst: float
    tokens: float


class ConcurrencyUsage(msgspec.Struct, frozen=True):
    """A concurrency limit: running calls in all processes that count together, and the maximum."""

    kind: FailureLimit
    name: str
    maximum: int
    running: int


class LimitUsage(msgspec.Struct, frozen=True):
    """The usage of one tenant, over all processes if they count together."""

    buckets: tuple[BucketUsage, ...]
    concurrency: tuple[ConcurrencyUsage, ...]
    waiting: int
    """Calls of the tenant in the admission queues."""
    shared: bool
    """Whether processes count together; otherwise each counts separately."""
    together: bool
    """
    Whether the figures cover all processes: the shared store answered, or there is only one
    process.
    """


async def levels(
    counters: LocalCounters,
    shared_store: SharedStore | None,
    tenant: str,
    rows: Sequence[BoundKey],
    *,
    now: float,
) -> LimitUsage:
    """Return the usage of the limits in *rows*; takes nothing from them."""
    buckets = [row for row in rows if row.bound.rate]
    concurrency = [row for row in rows if row.bound.concurrency != ANY]
    tokens = [
        counters.buckets.tokens_in(row.local, now, rate=row.bound.rate, burst=row.bound.burst)
        for row in buckets
    ]
    running = counters.running
    running_calls = [running.get(row.local, 0) for row in concurrency]
    waiting = counters.queue.waiting_of(tenant)
    shared = await _read_shared(shared_store, tenant, buckets, concurrency)
    if shared is not None:
        tokens, shared_running = shared[: len(buckets)], shared[len(buckets) :]
        # The shared store may not know yet what this process has taken.
        *running_calls, waiting = [
            max(int(shared_count), own_count)
            for shared_count, own_count in zip(
                shared_running, [*running_calls, waiting], strict=True
            )
        ]
    return LimitUsage(
        buckets=tuple(
            BucketUsage(row.kind, row.name, row.bound.rate, row.bound.burst, max(level, 0.0))
            for row, level in zip(buckets, tokens, strict=True)
        ),
        concurrency=tuple(
            ConcurrencyUsage(row.kind, row.name, int(row.bound.concurrency), number)
            for row, number in zip(concurrency, running_calls, strict=True)
        ),
        waiting=waiting,
        shared=shared_store is not None,
        together=shared_store is None or shared is not None,
    )


async def _read_shared(
    shared_store: SharedStore | None,
    tenant: str,
    buckets: Sequence[BoundKey],
    concurrency: Sequence[BoundKey],
) -> list[float] | None:
    """
    Return the shared levels, then the number of waiting calls; None if the shared store is silent.
    """
    if shared_store is None:
        return None
    spendings = [Spending(row.shared, row.bound.rate, row.bound.burst) for row in buckets]
    shared_concurrency = [*(ConcurrencyLimit(row.shared, 0) for row in concurrency), *IN_QUEUE]
    try:
        return await shared_store.for_tenant(tenant).levels(spendings, shared_concurrency)
    except StoreUnavailable:
        return None
