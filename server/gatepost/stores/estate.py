"""Everything that tenants keep, whatever it is: to be counted, and to be removed."""

from collections.abc import Mapping
from typing import Protocol

APART = ("audit", "cutoffs")
"""
How the kinds begin that are removed in their own way: a record of what happened outlives whom it
is about, and whoever is shut out stays so.
"""


class Estate(Protocol):
    """What all tenants keep, by kind: `tasks`, `claims`, `entries` and so on."""

    async def tenants(self, *kinds: str) -> list[str]:
        """Every tenant that keeps anything of these kinds, or of whatever kind; sorted."""

    async def count(self, tenant: str) -> Mapping[str, int]:
        """How much the tenant keeps of each kind, without those of `APART` and without zeros."""

    async def clear(self, tenant: str) -> int:
        """
        Remove some of it, durably, and answer how many records that were; 0: nothing is left.

        Never so many at once that others would wait; what `APART` names stays.
        """
