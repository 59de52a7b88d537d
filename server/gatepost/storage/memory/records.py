"""Records in this process's memory: for a laptop and for tests."""

from collections.abc import Collection, Iterator, Mapping, Set

import msgspec

from gatepost.storage.audit import Linker
from gatepost.storage.entries import CHANGE_COUNTER, NO_TENANT, Entry, EntryValue, fits
from gatepost.storage.idempotency import IdempotencyRecord
from gatepost.storage.memory.approvals import MemoryApprovals, MemoryGrants
from gatepost.storage.memory.audit import MemoryAuditStore
from gatepost.storage.memory.outbox import MemoryOutbox, leased
from gatepost.storage.memory.revocations import MemoryRevocations
from gatepost.storage.memory.tenant_data import MemoryTenantData, TenantTable
from gatepost.storage.outbox import OutboxMessage
from gatepost.storage.revocations import SUBJECT
from gatepost.storage.sessions import SessionRecord
from gatepost.storage.stored_bytes import StoredUsage, weight
from gatepost.storage.tasks import TERMINAL, TaskRecord

NEW_SESSION = SessionRecord()


class MemoryRecords:
    """Records that end with the process."""

    def __init__(self) -> None:
        self._tenants: dict[str, MemoryTenant] = {}
        self.revocations = MemoryRevocations(self.for_tenant(NO_TENANT).entries(SUBJECT))
        self.tenant_data = MemoryTenantData(self._tenants)
        self._audit_store = MemoryAuditStore()

    def for_tenant(self, tenant: str) -> "MemoryTenant":
        """Return the stores of one tenant."""
        records = self._tenants.get(tenant)
        if records is None:
            records = self._tenants[tenant] = MemoryTenant(tenant)
        return records

    def open_audit(self, _: Linker | None) -> MemoryAuditStore:
        """Return the audit log, which links records when they are written."""
        return self._audit_store

    async def abandoned_tasks(self, now: float, limit: int) -> list[tuple[str, str]]:
        """Return tenant and id of tasks that have not ended and whose lease is over."""
        abandoned = [
            (tenant, task.id)
            for tenant, records in self._tenants.items()
            for task in records.tasks.records.values()
            if task.status not in TERMINAL and task.leased_until < now
        ]
        return abandoned[:limit]

    async def overdue_approvals(self, now: float, limit: int) -> list[tuple[str, str]]:
        """Return tenant and id of requests that were not decided, or not used, in time."""
        overdue = [
            (tenant, approval_id)
            for tenant, records in self._tenants.items()
            for approval_id in records.approvals.overdue(now)
        ]
        return overdue[:limit]

    async def waiting_approvals(self, keys: Set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return those of these requests that wait; a key is a tenant and an id."""
        return {
            (tenant, approval_id)
            for tenant, approval_id in keys
            if tenant in self._tenants and self._tenants[tenant].approvals.is_waiting(approval_id)
        }

    async def lease_messages(
        self, now: float, until: float, holder: str, limit: int
    ) -> list[tuple[str, OutboxMessage]]:
        """Lease due messages of all tenants to *holder*, *until* then."""
        stores = {tenant: records.outbox for tenant, records in self._tenants.items()}
        return leased(stores, now, until, holder, limit)

    async def tenants(self, subject: str) -> list[str]:
        """Return the tenants that have an entry of that subject."""
        tables = [(name, tenant.entries(subject)) for name, tenant in self._tenants.items()]
        return sorted([name for name, entries in tables if await entries.all()])

    async def latest(self, subject: str, key: str, limit: int) -> list[tuple[str, Entry]]:
        """Return the entries of all tenants with that key and their tenant, the newest first."""
        entries = [
            (name, await tenant.entries(subject).get(key)) for name, tenant in self._tenants.items()
        ]
        existing = [(name, entry) for name, entry in entries if entry is not None]
        return sorted(existing, key=lambda item: -item[1].updated_at)[:limit]

    async def changes(self, subjects: Collection[str]) -> dict[str, int]:
        """Return the change counters of subjects, in one cheap statement."""
        counters = {
            subject: await self.for_tenant(NO_TENANT).entries(subject).get(CHANGE_COUNTER)
            for subject in subjects
        }
        return {subject: entry.revision for subject, entry in counters.items() if entry is not None}

    async def entries_of(self, tenants: Collection[str], subject: str) -> dict[str, list[Entry]]:
        """Return the entries of a subject of several tenants; those that have none are left out."""
        entries_by_tenant = {
            tenant: await self.for_tenant(tenant).entries(subject).all() for tenant in tenants
        }
        return {tenant: entries for tenant, entries in entries_by_tenant.items() if entries}

    async def replace_entries(
        self, subject: str, key: str, values: Mapping[str, EntryValue], *, now: float, until: float
    ) -> set[str]:
        """Store values under *key* for several tenants; return those whose entry has the value."""
        return {
            tenant
            for tenant, (value, revision) in values.items()
            if await self.for_tenant(tenant)
            .entries(subject)
            .put(key, value, now=now, revision=revision, expires_at=until)
        }

    async def sweep(self, now: float) -> int:
        """Remove expired records of all kinds; return their number."""
        return self.revocations.sweep(now) + sum(
            records.sweep(now) for records in self._tenants.values()
        )

    async def ping(self) -> None:
        """Raise StoreUnavailable unless the store answers."""

    async def aclose(self) -> None:
        """Do nothing, because no connection was opened."""


class MemoryTenant:
    """One tenant's records."""

    def __init__(self, tenant: str) -> None:
        self.outbox = MemoryOutbox()
        self.grants = MemoryGrants()
        self.approvals = MemoryApprovals(self.outbox, self.grants)
        self.tasks = MemoryTasks()
        self.idempotency = MemoryIdempotency()
        self.sessions = MemorySessions()
        self._entries: dict[str, MemoryEntries] = {}

    def entries(self, subject: str) -> "MemoryEntries":
        """Return its entries of one subject; *subject* is a name in our own code."""
        return self._entries.setdefault(subject, MemoryEntries())

    async def usage(self, owner: bytes | None, now: float) -> StoredUsage:
        """Return what its tasks and idempotency keys take: of one owner, or of all (None)."""
        every: list[tuple[bytes | None, float, int]]
        every = [(task.owner, task.expires_at, task.weight) for task in self.tasks.records.values()]
        idempotency = self.idempotency.records.values()
        every += [
            (record.owner, record.expires_at, weight(record.outcome)) for record in idempotency
        ]
        unexpired = [
            (size, end)
            for item_owner, end, size in every
            if end > now and owner in {None, item_owner}
        ]
        return StoredUsage(
            sum(size for size, _ in unexpired), min((end for _, end in unexpired), default=None)
        )

    def tables(self) -> Iterator[TenantTable]:
        """Return the records by kind, without the audit records, which outlive the tenant."""
        yield "outbox_messages", self.outbox.messages
        yield "approval_requests", self.approvals.records
        yield "grants", self.grants.records
        yield "tasks", self.tasks.records
        yield "idempotency_records", self.idempotency.records
        yield "sessions", self.sessions.records
        for entries in self._entries.values():
            yield "entries", entries.records

    def sweep(self, now: float) -> int:
        """Remove everything whose time is over."""
        tasks, idempotency, sessions = (
            self.tasks.records,
            self.idempotency.records,
            self.sessions.records,
        )
        expired: list[tuple[dict, object]] = []  # type: ignore[type-arg]  # three kinds of keys
        expired += [(tasks, key) for key, task in tasks.items() if task.expires_at <= now]
        expired += [
            (idempotency, key) for key, record in idempotency.items() if record.expires_at <= now
        ]
        expired += [
            (sessions, key) for key, (_, expires_at) in sessions.items() if expires_at <= now
        ]
        approvals, grants, messages = (
            self.approvals.records,
            self.grants.records,
            self.outbox.messages,
        )
        expired += [
            (approvals, key) for key, record in approvals.items() if record.expires_at <= now
        ]
        expired += [(grants, key) for key, grant in grants.items() if grant.expires_at <= now]
        expired += [(messages, key) for key, item in messages.items() if item.expires_at <= now]
        for table in (entries.records for entries in self._entries.values()):
            ends = [(key, entry.expires_at) for key, entry in table.items()]
            expired += [(table, key) for key, end in ends if end is not None and end <= now]
        for records, key in expired:
            del records[key]
        return len(expired)


class MemoryTasks:
    """The `TaskRecords` of one tenant, in memory."""

    def __init__(self) -> None:
        self.records: dict[str, TaskRecord] = {}
        self._open: dict[bytes, dict[str, None]] = {}
        """The ids of each owner's tasks that have not ended; some of them may be removed."""

    async def create(self, task: TaskRecord) -> None:
        """Store a new task durably."""
        self.records[task.id] = task
        if task.status not in TERMINAL:
            self._open.setdefault(task.owner, {})[task.id] = None

    async def get(self, task_id: str) -> TaskRecord | None:
        """Return a task, or None; it may have expired and not be removed yet."""
        return self.records.get(task_id)

    async def replace(self, task: TaskRecord) -> bool:
        """Replace the record that has the same id and ``revision``; its revision grows by one."""
        stored = self.records.get(task.id)
        if stored is None or stored.revision != task.revision:
            return False
        self.records[task.id] = msgspec.structs.replace(task, revision=task.revision + 1)
        if task.status in TERMINAL:
            owned = self._open.get(task.owner, {})
            owned.pop(task.id, None)
            if not owned:  # else each caller that ever had a task would take memory
                self._open.pop(task.owner, None)
        return True

    async def count(self, owner: bytes) -> int:
        """Return the number of the owner's tasks that have not ended."""
        owned = self._open.pop(owner, {})
        if unfinished := {task_id: None for task_id in owned if task_id in self.records}:
            self._open[owner] = unfinished
        return len(unfinished)


class MemoryIdempotency:
    """The `IdempotencyStore` of one tenant, in memory."""

    def __init__(self) -> None:
        self.records: dict[bytes, IdempotencyRecord] = {}

    async def begin(self, record: IdempotencyRecord, *, now: float) -> IdempotencyRecord | None:
        """Store a record, or return the one that already holds the key."""
        stored = self.records.get(record.key)
        if stored is not None and stored.expires_at > now:
            return stored
        self.records[record.key] = record
        return None

    async def get(self, key: bytes) -> IdempotencyRecord | None:
        """Return the record that holds this key."""
        return self.records.get(key)

    async def renew(self, key: bytes, holder: str, leased_until: float) -> bool:
        """Extend the lease of a running call; return False if *holder* no longer has the record."""
        return self._change(key, holder, leased_until=leased_until)

    async def finish(self, key: bytes, holder: str, outcome: bytes, expires_at: float) -> bool:
        """Store the outcome durably; return False if *holder* no longer has the record."""
        return self._change(key, holder, outcome=outcome, expires_at=expires_at)

    async def release(self, key: bytes, holder: str) -> None:
        """Delete the record of a call that did nothing."""
        if self._is_holder(key, holder):
            del self.records[key]

    async def take_over(self, record: IdempotencyRecord, *, expected: IdempotencyRecord) -> bool:
        """Replace *expected*, whose holder is gone; return False if it has changed meanwhile."""
        if self.records.get(record.key) != expected:
            return False
        self.records[record.key] = record
        return True

    def _is_holder(self, key: bytes, holder: str) -> bool:
        stored = self.records.get(key)
        return stored is not None and stored.holder == holder and stored.outcome is None

    def _change(self, key: bytes, holder: str, **changes: object) -> bool:
        if not self._is_holder(key, holder):
            return False
        self.records[key] = msgspec.structs.replace(self.records[key], **changes)
        return True


class MemorySessions:
    """The `SessionStore` of one tenant, in memory."""

    def __init__(self) -> None:
        self.records: dict[bytes, tuple[SessionRecord, float]] = {}

    async def get(self, key: bytes) -> SessionRecord:
        """Return the state of a session."""
        stored = self.records.get(key)
        return NEW_SESSION if stored is None else stored[0]

    async def replace(self, key: bytes, record: SessionRecord, *, expires_at: float) -> bool:
        """Replace the record that has the same ``revision`` (0: there is none), durably."""
        if (await self.get(key)).revision != record.revision:
            return False
        next_record = msgspec.structs.replace(record, revision=record.revision + 1)
        self.records[key] = (next_record, expires_at)
        return True


class MemoryEntries:
    """The `Entries` of one tenant and subject, in memory."""

    def __init__(self) -> None:
        self.records: dict[str, Entry] = {}
        # The highest revision of a removed entry: new entries begin after it, whatever their key.
        self._last_revision = 0

    async def get(self, key: str) -> Entry | None:
        """Return the entry with a key."""
        return self.records.get(key)

    async def all(self) -> list[Entry]:
        """Return all entries of the subject, sorted by key."""
        return sorted(self.records.values(), key=lambda entry: entry.key)

    async def count(self) -> int:
        """Return how many entries the subject has."""
        return len(self.records)

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        now: float,
        revision: int | None = None,
        expires_at: float | None = None,
    ) -> bool:
        """Store *value* under *key* durably; raises EntryRefused."""
        fits(key, value)
        stored = self.records.get(key)
        if revision is not None and revision != (stored.revision if stored else 0):
            return False
        after = (stored.revision if stored else self._last_revision) + 1
        self.records[key] = Entry(
            key=key, value=value, revision=after, updated_at=now, expires_at=expires_at
        )
        return True

    async def delete(self, key: str) -> bool:
        """Delete an entry durably; return whether there was one."""
        stored = self.records.pop(key, None)
        self._last_revision = max(self._last_revision, stored.revision if stored else 0)
        return stored is not None
