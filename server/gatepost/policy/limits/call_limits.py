"""The limits of one caller's calls of one tool: rates, concurrency, and quotas of audit records."""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from gatepost.execution.failure import FailureLimit
from gatepost.policy.limits.admission_queue import AdmissionQueue
from gatepost.policy.limits.rules import Bound, LimitRules, PrincipalKey, named
from gatepost.storage.rate_limits import (
    Bucket,
    BucketRate,
    ConcurrencyLimit,
    LocalLimits,
    Spending,
)
from gatepost.storage.shared_store import TenantSharedStore

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
        due = []
        for quota, owed_s in zip(self._quotas, self._seconds, strict=True):
            piece_s, row = max(owed_s, MIN_S), quota.row
            due.append(Spending(row.shared, 1 / piece_s, (row.rate.room_s + piece_s) / piece_s))
        return due

    def give_back(self) -> None:
        """Restore the debts, because the shared store has not taken them."""
        for quota, owed_s in zip(self._quotas, self._seconds, strict=True):
            quota.bucket.owed_s += owed_s


CallLimitsKey = tuple[str, str, str, str, str | None, bool]
"""
The arguments are the caller's tenant, issuer, kind and subject; the tool's name (empty if it is not
a tool, None if the request is not recorded either); and whether the calls are nested.
"""


class CallLimits(LocalLimits, kw_only=True):
    """
    The buckets and concurrency limits of a call, as objects.

    It holds objects instead of names because names would have to be built and looked up for each
    call.
    """

    tenant: str
    kinds: Sequence[FailureLimit]
    """The kinds of the buckets, followed by those of the concurrency limits with a maximum."""
    queue: AdmissionQueue | None
    """The queue of the process; None for nested calls."""
    shared_store: TenantSharedStore | None = None
    """The shared store through which processes count together; None for a single process."""
    spendings: Sequence[Spending] = ()
    shared_concurrency: Sequence[ConcurrencyLimit] = ()
    """The same buckets and concurrency limits under their names at the shared store."""
    quotas: Sequence[AuditQuota] = ()
    """The quotas of audit records; their buckets are the last of `buckets`."""
