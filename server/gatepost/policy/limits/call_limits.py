"""The limits of one caller's calls of one tool: rates, concurrency, and quotas of audit records."""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from gatepost.policy.limits.admission_queue import AdmissionQueue, ConcurrencyCounter
from gatepost.policy.limits.rules import Bound, LimitRules, PrincipalKey, named
from gatepost.storage.rate_limits import (
    CONCURRENCY_WAIT_S,
    Bucket,
    BucketRate,
    ConcurrencyLimit,
    Spending,
)
from gatepost.storage.shared_store import TenantSharedStore
from gatepost.tools.failure import FailureLimit

MIN_S = 1e-5
"""The smallest amount that a store can represent; spent if nothing is owed."""
TOLD_PART = 1_000
"""Replays report their cost to the shared store once it exceeds this fraction of a quota (1/n)."""


class QuotaRate(msgspec.Struct, frozen=True, gc=False):
    """How fast a quota refills, the same for each caller or each tenant."""

    kind: FailureLimit
    byte_s: float
    """Seconds in which the quota regains one byte."""
    room_s: float
    """Seconds in which an empty bucket becomes full."""


class QuotaRow(msgspec.Struct, frozen=True, gc=False):
    """A quota of a caller or a tenant."""

    rate: QuotaRate
    owner: PrincipalKey | tuple[str]
    """The caller; or the tenant alone."""

    @property
    def shared(self) -> str:
        """Return its name at the shared store."""
        return "audit tenant" if len(self.owner) == 1 else f"audit {named(self.owner)}"

    @property
    def bucket(self) -> BucketRate:
        """Return the parameters of its bucket, from which a call itself takes nothing."""
        return ("audit", self.owner), 0.0, self.rate.room_s


def caller_quota(rules: LimitRules, principal: PrincipalKey) -> list[QuotaRow]:
    """Return the quota of a caller; none if there is no limit."""
    rate = quota_rate("caller_audit", rules.caller_audit)
    return [] if rate is None else [QuotaRow(rate, principal)]


def tenant_quota(rules: LimitRules, tenant: str) -> list[QuotaRow]:
    """Return the quota of a tenant, which its callers share; none if there is no limit."""
    rate = quota_rate("tenant_audit", rules.tenant_audit)
    return [] if rate is None else [QuotaRow(rate, (tenant,))]


# Callers share one object: a hundred thousand of them have a quota.
@lru_cache(maxsize=16)
def quota_rate(kind: FailureLimit, bound: Bound) -> QuotaRate | None:
    """Return the rate of a quota; None if it is unlimited."""
    return QuotaRate(kind, 1 / bound.rate, bound.burst / bound.rate) if bound.rate else None


class AuditQuota(msgspec.Struct, frozen=True, gc=False):
    """
    A token bucket of bytes that is charged after the call.

    The size of a record is unknown before the call. A call may begin while the bucket is not empty,
    and its record is charged once it exists. So no record is lost to a quota, and only the records
    of running calls can overdraw the bucket.
    """

    row: QuotaRow
    bucket: Bucket

    @property
    def owes_much(self) -> bool:
        """
        Return whether the debt is so large that the shared store should know before the next call.
        """
        return self.bucket.owed_s * TOLD_PART > self.row.rate.room_s


class OwedQuotas:
    """The debts of quotas that the next request to the shared store reports."""

    def __init__(self, quotas: Sequence[AuditQuota]) -> None:
        self._quotas = quotas
        self._seconds = [quota.bucket.owed_s for quota in quotas]
        for quota in quotas:
            quota.bucket.owed_s = 0.0

    @property
    def spendings(self) -> list[Spending]:
        """
        Return one spending per quota, whose single token is the whole debt.

        The capacity is the quota plus one such token, so it succeeds while the bucket is not empty.
        """
        found = []
        for quota, owed_s in zip(self._quotas, self._seconds, strict=True):
            piece_s, row = max(owed_s, MIN_S), quota.row
            found.append(Spending(row.shared, 1 / piece_s, (row.rate.room_s + piece_s) / piece_s))
        return found

    def give_back(self) -> None:
        """Restore the debts, because the shared store has not taken them."""
        for quota, owed_s in zip(self._quotas, self._seconds, strict=True):
            quota.bucket.owed_s += owed_s


CallLimitsKey = tuple[str, str, str, str, str | None, bool]
"""
The arguments are the caller's tenant, issuer, kind and subject; the tool's name (empty if it is not
a tool, None if the request is not recorded either); and whether the calls are nested.
"""


class CallLimits(msgspec.Struct):
    """
    The buckets and queues of a call, as objects.

    It holds objects instead of names because names would have to be built and looked up for each
    call.
    """

    tenant: str
    buckets: Sequence[Bucket]
    concurrency: Sequence[ConcurrencyCounter]
    kinds: Sequence[FailureLimit]
    """The kinds of the buckets, followed by the kinds of the concurrency limits."""
    queue: AdmissionQueue | None
    """The queue of the process; None for nested calls."""
    shared_store: TenantSharedStore | None = None
    """The shared store through which processes count together; None for a single process."""
    spendings: Sequence[Spending] = ()
    shared_concurrency: Sequence[ConcurrencyLimit] = ()
    """The same buckets and concurrency limits under their names at the shared store."""
    quotas: Sequence[AuditQuota] = ()
    """The quotas of audit records; their buckets are the last of `buckets`."""

    def take(self, now: float) -> bool:
        """Take everything that one call needs, or nothing if any limit is reached."""
        for bucket in self.buckets:
            # As `Bucket.spend`; every call runs this, and a method costs more by half.
            full_at = bucket.full_at
            if full_at < now:
                full_at = now
            elif full_at - now > bucket.slack_s:
                self._put_back(bucket)
                return False
            bucket.full_at = full_at + bucket.each_s
        for counter in self.concurrency:
            if counter.taken >= counter.most:
                self._put_back(counter)
                return False
            counter.taken += 1
        return True

    def _put_back(self, lacking: Bucket | ConcurrencyCounter) -> None:
        """Give back the tokens that were taken before *lacking* turned out to be used up."""
        for bucket in self.buckets:
            if bucket is lacking:
                return
            bucket.give_back()
        for counter in self.concurrency:
            if counter is lacking:
                return
            counter.taken -= 1

    def shortage(self, now: float) -> tuple[FailureLimit, float]:
        """Return the limit that was reached, and the seconds until there may be room again."""
        waits = [bucket.wait_s(now) for bucket in self.buckets]
        longest = max(waits, default=0.0)
        full = [counter.kind for counter in self.concurrency if counter.taken >= counter.most]
        if full and longest <= CONCURRENCY_WAIT_S:
            return full[-1], CONCURRENCY_WAIT_S
        return self.kinds[waits.index(longest)], longest

    def hold(self) -> None:
        """Count the call in all concurrency limits, even beyond them."""
        for counter in self.concurrency:
            counter.taken += 1
        if self.shared_store is not None:
            self.shared_store.hold(self.shared_concurrency)
        if self.queue is not None:
            self.queue.running += 1

    def leave(self) -> None:
        """End the call in all concurrency limits."""
        for counter in self.concurrency:
            counter.taken -= 1
        if self.shared_store is not None:
            self.shared_store.leave(self.shared_concurrency)
        queue = self.queue
        if queue is not None:
            queue.running -= 1
            if queue.waiting:
                queue.let_in()
