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
    LocalLimits,
    QuotaBucket,
    StoreLimits,
)

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
    def shared(self) -> QuotaBucket:
        """Return its bucket at the shared store."""
        name = "audit tenant" if len(self.owner) == 1 else f"audit {named(self.owner)}"
        return QuotaBucket(name, self.rate.room_s)

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


def take_debts(quotas: Sequence[AuditQuota]) -> list[float]:
    """Return the debts of quotas in seconds, which the next request to the shared store reports."""
    owed_s = []
    for quota in quotas:
        bucket = quota.bucket
        owed_s.append(bucket.owed_s)
        bucket.owed_s = 0.0
    return owed_s


def restore_debts(quotas: Sequence[AuditQuota], owed_s: Sequence[float]) -> None:
    """Restore the debts, because the shared store has not taken them."""
    for quota, quota_owed_s in zip(quotas, owed_s, strict=True):
        quota.bucket.owed_s += quota_owed_s


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
    store_limits: StoreLimits | None = None
    """
    The same limits at the shared store, through which processes count together; None for a single
    process.
    """
    quotas: Sequence[AuditQuota] = ()
    """The quotas of audit records; their buckets are the last of `buckets`."""
