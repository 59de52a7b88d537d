"""Count and remove everything that a tenant stores."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

NOT_CLEARED = ("audit", "revocations")
"""
The prefixes of kinds that `clear` keeps: audit records outlive the tenant, and revocations stay in
force.
"""


class ErasureSubject(msgspec.Struct, frozen=True):
    """A person whose records are counted or erased."""

    issuer: str
    subject: str
    owners: tuple[bytes, ...]
    """Digests that stand for this person in records that do not name their owner."""


class TenantDataStore(Protocol):
    """The records of all tenants by kind: `tasks`, `idempotency_records`, `entries` and so on."""

    async def tenants(self, *kinds: str) -> list[str]:
        """Return the tenants that have records of these kinds, or of any kind, sorted."""

    async def count(self, tenant: str) -> Mapping[str, int]:
        """Return the number of records of each kind that has any, except those of `NOT_CLEARED`."""

    async def clear(self, tenant: str) -> int:
        """
        Remove some records durably and return their number; 0 means that none is left.

        Few at once, so that other callers do not wait. The kinds of `NOT_CLEARED` stay.
        """

    async def count_of(self, tenant: str, person: ErasureSubject) -> Mapping[str, int]:
        """Return the number of records of each kind that belong to a person."""

    async def clear_of(self, tenant: str, person: ErasureSubject) -> int:
        """Remove some records of a person durably and return their number; 0 if none is left."""
