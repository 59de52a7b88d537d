"""Everything that tenants keep, whatever it is: to be counted, and to be removed."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

APART = ("audit", "revocations")
"""
How the kinds begin that are removed in their own way: a record of what happened outlives whom it
is about, and whoever is shut out stays so.
"""


class ErasureSubject(msgspec.Struct, frozen=True):
    """Somebody whose records are looked for."""

    issuer: str
    subject: str
    owners: tuple[bytes, ...]
    """Digests that stand for this person where nobody else should learn who it is."""


class TenantDataStore(Protocol):
    """What all tenants keep, by kind: `tasks`, `idempotency_records`, `entries` and so on."""

    async def tenants(self, *kinds: str) -> list[str]:
        """Every tenant that keeps anything of these kinds, or of whatever kind; sorted."""

    async def count(self, tenant: str) -> Mapping[str, int]:
        """How much the tenant keeps of each kind, without those of `APART` and without zeros."""

    async def clear(self, tenant: str) -> int:
        """
        Remove some of it, durably, and answer how many records that were; 0: nothing is left.

        Never so many at once that others would wait; what `APART` names stays.
        """

    async def count_of(self, tenant: str, person: ErasureSubject) -> Mapping[str, int]:
        """The same of one person, as far as it can be told whose a record is."""

    async def clear_of(self, tenant: str, person: ErasureSubject) -> int:
        """Remove some of that, durably; 0: nothing is left."""
