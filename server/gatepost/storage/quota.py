"""Storage quotas of callers and tenants in bytes, over all processes."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from gatepost.storage.records import Records

SHARE = 16
"""A process reads the usage again after it added this fraction of a quota itself."""
AGAIN_S = 1.0
"""Minimum time between two readings before a refusal."""
MAX_COUNTED = 10_000
"""The number of callers and tenants whose usage is cached."""


QuotaLimit = Literal["caller", "tenant"]


class TenantStorageLimits(Protocol):
    """The part of `[limits.tenant]` that limits stored bytes."""

    @property
    def stored_bytes(self) -> int: ...


class StorageLimits(Protocol):
    """The part of `[limits]` that limits stored bytes."""

    @property
    def stored_bytes(self) -> int: ...
    @property
    def tenant(self) -> TenantStorageLimits: ...


class QuotaExceeded(Exception):
    """There is no room for a record; the message is a sentence that says whose quota is full."""

    def __init__(self, limit: QuotaLimit, max_bytes: int, wait_s: float) -> None:
        setting = "limits.stored_bytes" if limit == "caller" else "limits.tenant.stored_bytes"
        super().__init__(
            f"The stored data of this {limit} (outcomes of calls with an idempotency key, and "
            f"tasks) has reached its quota of {max_bytes} bytes (`{setting}`)."
        )
        self.limit = limit
        self.wait_s = wait_s
        """The seconds until the first stored record expires."""


class KnownUsage:
    """
    The bytes that one caller or tenant uses: the last answer of the store, plus the additions of
    this process.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.base = self.pending = self.added = 0
        self.until: float | None = None
        self.looked_at: float | None = None
        self._before = 0

    @property
    def since(self) -> int:
        """Return the bytes that were added since the store was asked."""
        return self.added - self._before

    @property
    def total(self) -> int:
        """Return the bytes in use, with those that are being written."""
        return self.base + self.since + self.pending

    async def refresh(self, records: Records, tenant: str, owner: bytes | None, now: float) -> None:
        """Ask the store; bytes that are written meanwhile count, even if twice."""
        before = self.added
        usage = await records.for_tenant(tenant).usage(owner, now)
        self.base, self.until, self._before = usage.bytes, usage.until, before
        self.looked_at = now


class StorageQuota:
    """
    Limits the bytes that are stored for callers and tenants; 0: no limit.

    The store knows the usage, so an expired or erased record frees its bytes without further work,
    and no call waits for a counter that another replica holds. A process asks the store before it
    adds more than a `SHARE` of a quota, and before it refuses. So all processes together exceed a
    quota by at most one share each.
    """

    def __init__(self, records: Records, *, clock: Callable[[], float] = time.time) -> None:
        self.caller_bytes = self.tenant_bytes = 0
        self.records, self._clock = records, clock
        self._counted: dict[tuple[str, bytes | None], KnownUsage] = {}

    def apply(self, limits: StorageLimits) -> None:
        """Hold callers and tenants to these quotas from now on."""
        self.caller_bytes, self.tenant_bytes = limits.stored_bytes, limits.tenant.stored_bytes

    async def reserve(self, tenant: str, owner: bytes, size: int) -> "Reservation":
        """Reserve *size* bytes for the block that writes them; raises QuotaExceeded."""
        quotas = self._quotas(tenant, owner)
        for quota in quotas:
            if self._is_due(quota, size):
                await self._refresh(quota, tenant, size)
        # Await nothing from here on; otherwise two calls could be given the same free bytes.
        for quota in quotas:
            if quota.counted.total + size > quota.max_total:
                until = quota.counted.until
                wait_s = 0.0 if until is None else until - self._clock()
                raise QuotaExceeded(quota.limit, quota.max_total, max(wait_s, AGAIN_S))
        for quota in quotas:
            quota.counted.pending += size
        return Reservation([quota.counted for quota in quotas], size)

    def _quotas(self, tenant: str, owner: bytes) -> "list[AppliedQuota]":
        """Return the quotas that apply."""
        if len(self._counted) >= MAX_COUNTED:
            self._counted = {
                key: known_usage
                for key, known_usage in self._counted.items()
                if known_usage.pending
            }
        quotas = []
        if self.caller_bytes:
            counted = self._known_usage(tenant, owner)
            quotas.append(AppliedQuota("caller", self.caller_bytes, owner, counted))
        if self.tenant_bytes:
            counted = self._known_usage(tenant, None)
            quotas.append(AppliedQuota("tenant", self.tenant_bytes, None, counted))
        return quotas

    def _known_usage(self, tenant: str, owner: bytes | None) -> KnownUsage:
        counted = self._counted.get((tenant, owner))
        if counted is None:
            counted = self._counted[tenant, owner] = KnownUsage()
        return counted

    async def _refresh(self, quota: "AppliedQuota", tenant: str, size: int) -> None:
        """Ask the store; of several that want to, one asks for all."""
        async with quota.counted.lock:
            if self._is_due(quota, size):
                await quota.counted.refresh(self.records, tenant, quota.owner, self._clock())

    def _is_due(self, quota: "AppliedQuota", size: int) -> bool:
        counted = quota.counted
        if counted.looked_at is None or counted.since + size > quota.max_total // SHARE:
            return True
        is_full = counted.total + size > quota.max_total
        return is_full and self._clock() >= counted.looked_at + AGAIN_S


class AppliedQuota(msgspec.Struct, frozen=True):
    """One of the quotas that apply to a record."""

    limit: QuotaLimit
    max_total: int
    owner: bytes | None
    counted: KnownUsage


class Reservation:
    """Bytes that a block writes."""

    def __init__(self, counted: Sequence[KnownUsage], size: int) -> None:
        self._counted, self._size = counted, size

    def __enter__(self) -> None:
        """Begin to write."""

    def __exit__(self, *_: object) -> None:
        """Count the bytes as written; those of a failed write until the store is asked again."""
        for counted in self._counted:
            counted.pending -= self._size
            counted.added += self._size
