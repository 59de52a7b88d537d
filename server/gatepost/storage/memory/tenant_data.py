"""The data that tenants store, in this process's memory."""

from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Protocol

from gatepost.storage.approvals import ApprovalRecord, GrantRecord
from gatepost.storage.idempotency import IdempotencyRecord
from gatepost.storage.tasks import TaskRecord
from gatepost.storage.tenant_data import ErasureSubject

TenantTable = tuple[str, MutableMapping[Any, Any]]
"""A kind of record, and the records of that kind."""


class Holder(Protocol):
    """One tenant's records."""

    def tables(self) -> Iterable[TenantTable]:
        """Return the records of a tenant, except the kinds of `APART`."""


class MemoryTenantData:
    """The `TenantDataStore` over the stores in memory."""

    def __init__(self, tenants: Mapping[str, Holder]) -> None:
        self._tenants = tenants

    async def tenants(self, *kinds: str) -> list[str]:
        """Return the tenants that have records of these kinds, or of any kind, sorted."""
        counts = {name: await self.count(name) for name in self._tenants if name}
        return sorted(
            name for name, counted in counts.items() if {*counted} & {*(kinds or counted)}
        )

    async def count(self, tenant: str) -> dict[str, int]:
        """Return the number of records of each kind that has any, except those of `APART`."""
        counted: Counter[str] = Counter()
        for kind, records in self._tables_of(tenant):
            if records:
                counted[kind] += len(records)
        return dict(counted)

    async def clear(self, tenant: str) -> int:
        """Remove some records durably and return their number; 0 means that none is left."""
        removed_count = 0
        for _, records in self._tables_of(tenant):
            removed_count += len(records)
            records.clear()
        return removed_count

    async def count_of(self, tenant: str, person: ErasureSubject) -> dict[str, int]:
        """Return the number of records of each kind that belong to a person."""
        counted: Counter[str] = Counter()
        for kind, records in self._tables_of(tenant):
            if of_person := _of_person(records, person):
                counted[kind] += len(of_person)
        return dict(counted)

    async def clear_of(self, tenant: str, person: ErasureSubject) -> int:
        """Remove some records of a person durably and return their number; 0 if none is left."""
        removed_count = 0
        for _, records in self._tables_of(tenant):
            of_person = _of_person(records, person)
            removed_count += len(of_person)
            for key in of_person:
                del records[key]
        return removed_count

    def _tables_of(self, tenant: str) -> Iterable[TenantTable]:
        holder = self._tenants.get(tenant)
        return () if holder is None else holder.tables()


def _of_person(records: MutableMapping[Any, Any], person: ErasureSubject) -> list[Any]:
    """Return the keys of one person's records."""
    return [key for key, record in records.items() if _belongs_to(person, record)]


def _belongs_to(person: ErasureSubject, record: object) -> bool:
    if isinstance(record, ApprovalRecord | GrantRecord):
        return (record.issuer, record.subject) == (person.issuer, person.subject)
    if isinstance(record, IdempotencyRecord | TaskRecord):
        return record.owner in person.owners
    return False  # no other kind says whose it is
