"""
All durable stores, narrowed to one tenant.

The records are in memory for a laptop, and in SQL for everything else. Every backend passes the
tests in `tests/storage`.
"""

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Protocol

from gatepost.storage.approvals import ApprovalStore, GrantStore
from gatepost.storage.audit import AuditStore, Linker
from gatepost.storage.entries import Entries, Entry, EntryValue
from gatepost.storage.idempotency import IdempotencyStore
from gatepost.storage.outbox import OutboxMessage, OutboxStore
from gatepost.storage.revocations import RevocationStore
from gatepost.storage.sessions import SessionStore
from gatepost.storage.stored_bytes import StoredUsage
from gatepost.storage.tasks import TaskRecords
from gatepost.storage.tenant_data import TenantDataStore


class TenantRecords(Protocol):
    """All durable stores of one tenant."""

    @property
    def tasks(self) -> TaskRecords:
        """Return the tenant's tasks."""

    @property
    def idempotency(self) -> IdempotencyStore:
        """Return the tenant's idempotency keys."""

    @property
    def sessions(self) -> SessionStore:
        """Return the tenant's sessions."""

    @property
    def approvals(self) -> ApprovalStore:
        """Return the tenant's approval requests."""

    @property
    def grants(self) -> GrantStore:
        """Return the tenant's grants."""

    @property
    def outbox(self) -> OutboxStore:
        """Return the tenant's messages to other systems."""

    def entries(self, subject: str) -> Entries:
        """Return its entries of one subject; *subject* is a name in our own code."""

    async def usage(self, owner: bytes | None, now: float) -> StoredUsage:
        """Return what its tasks and idempotency keys take: of one owner, or of all (None)."""


class Records(Protocol):
    """The durable stores; `for_tenant` costs nothing and keeps tenants apart."""

    def for_tenant(self, tenant: str) -> TenantRecords:
        """Return the stores of one tenant."""

    @property
    def revocations(self) -> RevocationStore:
        """Return the revocations of all tenants."""

    @property
    def tenant_data(self) -> TenantDataStore:
        """Return the data of all tenants, to be counted and removed."""

    def open_audit(self, linker: Linker | None) -> AuditStore:
        """
        Open the audit log; it is closed with these records.

        A SQLite file keeps new records in write-ahead logs. They cannot be read until they are
        linked, which any process with the key ring can do. With None there is no key ring: records
        are linked when they are written, and those in write-ahead logs are not read.
        """

    async def abandoned_tasks(self, now: float, limit: int) -> list[tuple[str, str]]:
        """Return tenant and id of tasks that have not ended and whose lease is over."""

    async def overdue_approvals(self, now: float, limit: int) -> list[tuple[str, str]]:
        """Return tenant and id of requests that were not decided, or not used, in time."""

    async def waiting_approvals(self, keys: Set[tuple[str, str]]) -> Set[tuple[str, str]]:
        """Return those of these requests that wait; a key is a tenant and an id."""

    async def lease_messages(
        self, now: float, until: float, holder: str, limit: int
    ) -> list[tuple[str, OutboxMessage]]:
        """
        Lease due messages of all tenants to *holder*, *until* then; return them with their tenants.

        Each message is leased to one holder at a time, in any process, and only after all earlier
        messages with the same ordering key.
        """

    async def tenants(self, subject: str) -> list[str]:
        """Return the tenants that have an entry of that subject."""

    async def latest(self, subject: str, key: str, limit: int) -> list[tuple[str, Entry]]:
        """Return the entries of all tenants with that key and their tenant, the newest first."""

    async def changes(self, subjects: Collection[str]) -> Mapping[str, int]:
        """
        Return the change counters of subjects, in one cheap statement.

        A counter grows with each change of any tenant; a subject that never changed has none.
        """

    async def entries_of(
        self, tenants: Collection[str], subject: str
    ) -> Mapping[str, Sequence[Entry]]:
        """Return the entries of a subject of several tenants; those that have none are left out."""

    async def replace_entries(
        self, subject: str, key: str, values: Mapping[str, EntryValue], *, now: float, until: float
    ) -> Set[str]:
        """
        Store values under *key* for several tenants, in one transaction, durably.

        They expire at *until*. Return the tenants whose entry had the revision, and has the value.
        """

    async def sweep(self, now: float) -> int:
        """Remove expired records of all kinds; return their number."""

    async def ping(self) -> None:
        """Raise StoreUnavailable unless the store answers."""

    async def aclose(self) -> None:
        """Close all connections."""
