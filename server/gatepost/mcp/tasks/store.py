"""Store task records and change them."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import msgspec

from gatepost.execution.failure import Failure
from gatepost.mcp.change_notifications import ChangeNotification, ChangePubSub
from gatepost.mcp.responses import rate_limited
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.quota import QuotaExceeded, StorageQuota
from gatepost.storage.records import Records
from gatepost.storage.shared_store import WakeUps
from gatepost.storage.tasks import TERMINAL, TaskRecord

_log = logging.getLogger(__name__)

Edit = Callable[[TaskRecord], TaskRecord]
"""Returns the changed record, or the same object to change nothing."""

CONTENDERS = 50
"""How often a change is tried again after a concurrent one."""

_replace = msgspec.structs.replace


class TaskLimits(msgspec.Struct, frozen=True):
    """The limits of tasks that an operator sets; times are in seconds."""

    ttl_s: float = 3600.0
    """How long a task is kept, in addition to its tool's time limit."""
    poll_interval_s: float = 1.0
    """The interval at which a client should poll."""
    max_per_caller: int = 32
    """The number of unfinished tasks that one principal may have."""
    lease_s: float = 20.0
    """How long a silent server keeps its tasks before others may take them over."""
    peers: bool = True
    """Whether the client's address is stored, for the audit record of a later run."""


DEFAULT_TASK_LIMITS = TaskLimits()


class TaskStore:
    """
    Reads and changes tasks, from any replica.

    A record is replaced only if it has not changed since it was read, and a task that has ended
    is never edited. A terminal state is therefore final (K-16), even in a race.
    """

    def __init__(
        self,
        records: Records,
        pubsub: ChangePubSub,
        limits: TaskLimits = DEFAULT_TASK_LIMITS,
        *,
        quota: StorageQuota | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.quota = quota or StorageQuota(records, clock=clock)
        self.limits = limits
        self.clock = clock
        self._records = records
        self._pubsub = pubsub
        self._opening: Counter[bytes] = Counter()

    def apply(self, limits: TaskLimits) -> None:
        """Apply these limits from now on."""
        self.limits = limits

    async def create(self, tenant: str, record: TaskRecord) -> None:
        """
        Store a new task durably.

        Raises JsonRpcError if its caller has too many tasks or too little room.
        """
        tasks, owner, max_tasks = (
            self._records.for_tenant(tenant).tasks,
            record.owner,
            self.limits.max_per_caller,
        )
        # Tasks that are about to be stored count too, because many calls may come at once. A task
        # that is stored meanwhile counts twice for a moment, but it always counts.
        opening = self._opening[owner]
        self._opening[owner] += 1
        try:
            if await tasks.count(owner) + opening >= max_tasks:
                message = f"{max_tasks} tasks are already running, which is the limit."
                wait_s = self.limits.poll_interval_s
                raise rate_limited(Failure("rate_limit", message, retry_after=wait_s))
            with await self._reserve(tenant, owner, record.weight):
                await tasks.create(record)
        finally:
            self._opening[owner] -= 1
            if not self._opening[owner]:
                del self._opening[owner]

    async def _reserve(self, tenant: str, owner: bytes, size: int) -> AbstractContextManager[None]:
        if not size:
            return nullcontext()
        try:
            return await self.quota.reserve(tenant, owner, size)
        except QuotaExceeded as full:
            wait_s, limit = full.wait_s, full.limit
            raise rate_limited(
                Failure("rate_limit", str(full), retry_after=wait_s, limit=limit)
            ) from None

    async def abandoned(self, max_tasks: int) -> list[tuple[str, str]]:
        """Return the tenant and id of tasks whose server is gone."""
        return await self._records.abandoned_tasks(self.clock(), max_tasks)

    async def get(self, tenant: str, task_id: str) -> TaskRecord | None:
        """Return the task; None if it is unknown or expired."""
        record = await self._records.for_tenant(tenant).tasks.get(task_id)
        return None if record is None or record.expires_at <= self.clock() else record

    async def change(
        self,
        tenant: str,
        task_id: str,
        edit: Edit,
        *,
        adds: int = 0,
        last_read: TaskRecord | None = None,
    ) -> TaskRecord | None:
        """
        Apply *edit*, again after concurrent changes, and return the stored record.

        Return None if the task is gone or has ended. Subscribers are told of the change. *adds*
        are bytes that need room; raises JsonRpcError if there is none. *last_read* is the record as
        it was read last: it is replaced without being read again, which fails if it has changed.
        """
        tasks = self._records.for_tenant(tenant).tasks
        for _ in range(CONTENDERS):
            may_be_old = last_read is not None
            record, last_read = last_read or await tasks.get(task_id), None
            if record is None or record.status in TERMINAL:
                return None
            edited = edit(record)
            if edited is record:
                if may_be_old:
                    continue
                return record
            is_visible = _visible(edited) != _visible(record)
            if is_visible:
                edited = _replace(edited, updated_at=self.clock())
            with await self._reserve(tenant, record.owner, adds):
                is_stored = await tasks.replace(edited)
            if is_stored:
                if is_visible or edited.cancelled != record.cancelled:
                    await self._publish(tenant, task_id)
                return _replace(edited, revision=edited.revision + 1)
        raise StoreUnavailable("a task changes faster than it can be written")

    async def change_owned(
        self,
        tenant: str,
        last_read: TaskRecord,
        owner: str,
        edit: Edit,
        *,
        adds: int = 0,
        retry_s: float,
    ) -> TaskRecord | None:
        """
        Apply *edit* as `change` does, unless another run than *owner* has the task.

        Retry every *retry_s* seconds as long as the store is unavailable.
        """

        def edit_own(record: TaskRecord) -> TaskRecord:
            return edit(record) if record.runner == owner else record

        while True:
            try:
                return await self.change(
                    tenant, last_read.id, edit_own, adds=adds, last_read=last_read
                )
            except StoreUnavailable:
                _log.warning("task_change_waits")
                await asyncio.sleep(retry_s)

    def wake_ups(self, tenant: str, task_id: str) -> WakeUps:
        """Return what wakes a task of the event loop when a stored task has changed."""
        changes = (ChangeNotification("task", task_id),)
        return WakeUps(partial(self._pubsub.follow, tenant, changes=changes))

    async def _publish(self, tenant: str, task_id: str) -> None:
        try:
            await self._pubsub.notifier_for(tenant).moved(task_id)
        except StoreUnavailable:
            # The record is stored, and subscribers also poll it.
            _log.warning("task_change_not_published")


def with_lease(
    record: TaskRecord, limits: TaskLimits, now: float, *, is_waiting: bool
) -> TaskRecord:
    """Return the record with another lease once half of its lease is over."""
    if record.leased_until >= now + limits.lease_s / 2:
        return record
    # An approval may take longer than a task is kept.
    until = max(record.expires_at, now + limits.ttl_s) if is_waiting else record.expires_at
    return _replace(record, leased_until=now + limits.lease_s, expires_at=until)


def _visible(record: TaskRecord) -> tuple[object, ...]:
    return record.status, record.status_message, record.requests
