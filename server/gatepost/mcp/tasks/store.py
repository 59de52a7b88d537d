"""Store task records, change them, and show them to their callers."""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw

from gatepost.mcp.change_notifications import ChangeNotification, ChangePubSub, ChangeSubscription
from gatepost.mcp.tasks.task_record import decode_call
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.quota import StorageQuota
from gatepost.storage.records import Records
from gatepost.storage.tasks import TERMINAL, TaskRecord
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import InsufficientScope

_encode = msgspec.json.encode


_log = logging.getLogger("gatepost.tasks")

Edit = Callable[[TaskRecord], TaskRecord]
"""Returns the changed record, or the same object to change nothing."""

TASK_ID_CHARACTERS = 64
CONTENDERS = 50
"""How often a change is tried again after a concurrent one."""


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
        self._records = records
        self._pubsub = pubsub
        self.clock = clock
        self.apply(limits)

    def apply(self, limits: TaskLimits) -> None:
        """Apply these limits from now on."""
        self.limits = limits

    async def create(self, tenant: str, record: TaskRecord) -> None:
        """Store a new task durably."""
        await self._records.of(tenant).tasks.create(record)

    async def unfinished(self, tenant: str, owner: bytes) -> int:
        """Return the number of unfinished tasks of this owner."""
        return await self._records.of(tenant).tasks.count(owner)

    async def abandoned(self, limit: int) -> list[tuple[str, str]]:
        """Return the tenant and id of tasks whose server is gone."""
        return await self._records.abandoned_tasks(self.clock(), limit)

    async def get(self, tenant: str, task_id: str) -> TaskRecord | None:
        """Return the task; None if it is unknown or expired."""
        record = await self._records.of(tenant).tasks.get(task_id)
        return None if record is None or record.expires_at <= self.clock() else record

    async def change(self, tenant: str, task_id: str, edit: Edit) -> TaskRecord | None:
        """
        Apply *edit*, again after concurrent changes, and return the stored record.

        Return None if the task is gone or has ended. Subscribers are told of the change.
        """
        kept = self._records.of(tenant).tasks
        for _ in range(CONTENDERS):
            record = await kept.get(task_id)
            if record is None or record.status in TERMINAL:
                return None
            edited = edit(record)
            if edited is record:
                return record
            visible = _visible(edited) != _visible(record)
            if visible:
                edited = msgspec.structs.replace(edited, updated_at=self.clock())
            if await kept.replace(edited):
                if visible or edited.cancelled != record.cancelled:
                    await self._publish(tenant, task_id)
                return msgspec.structs.replace(edited, revision=edited.revision + 1)
        raise StoreUnavailable("a task changes faster than it can be written")

    async def follow(
        self, tenant: str, task_id: str, deliver: Callable[[], None]
    ) -> ChangeSubscription | None:
        """
        Subscribe to the task's changes; None if the shared store is unavailable, then poll instead.
        """
        moved = ChangeNotification("task", task_id)

        def receive(change: ChangeNotification) -> None:
            if change == moved:
                deliver()

        try:
            return await self._pubsub.follow(tenant, receive)
        except StoreUnavailable:
            _log.warning("task_polled")
            return None

    async def _publish(self, tenant: str, task_id: str) -> None:
        try:
            await self._pubsub.of(tenant).moved(task_id)
        except StoreUnavailable:
            # The record is stored, and subscribers also poll it.
            _log.warning("task_change_not_published")

    async def find(self, caller: TenantContext, task_id: str) -> TaskRecord | None:
        """
        Return this caller's task; None if it is unknown, expired or another caller's (K-17).

        Raises InsufficientScope, which names the missing scopes, if the caller no longer holds
        those that the tool requires.
        """
        if len(task_id) > TASK_ID_CHARACTERS:
            return None
        record = await self.get(caller.tenant_id, task_id)
        if record is None or record.owner != caller.principal_digest:
            return None
        stored = decode_call(record.call)
        if stored.caller.identity_key != caller.identity_key:
            return None
        caller.require(stored.scopes)
        return record

    async def may_follow(self, caller: TenantContext, task_ids: Sequence[str]) -> list[str]:
        """Return the ids of tasks that belong to this caller and that its scopes allow."""
        ids = dict.fromkeys(task_ids)
        return [task_id for task_id in ids if await self._mine(caller, task_id)]

    async def notification(self, caller: TenantContext, task_id: str) -> bytes | None:
        """Return the JSON members of `notifications/tasks`; None for another caller's task."""
        record = await self._mine(caller, task_id)
        return None if record is None else _encode(self.shown(record))[1:-1]

    async def _mine(self, caller: TenantContext, task_id: str) -> TaskRecord | None:
        try:
            return await self.find(caller, task_id)
        except InsufficientScope:
            return None

    def shown(self, record: TaskRecord) -> dict[str, Any]:
        """Return the task as `tasks/get` and `notifications/tasks` show it (K-09)."""
        shown = self.handle(record)
        if record.status == "input_required" and record.requests is not None:
            shown["inputRequests"] = Raw(record.requests)
        if record.status == "completed" and record.result is not None:
            shown["result"] = Raw(record.result)
        if record.status == "failed" and record.error is not None:
            shown["error"] = Raw(record.error)
        return shown

    def handle(self, record: TaskRecord) -> dict[str, Any]:
        """Return the fields that every task has in every state (K-06)."""
        shown: dict[str, Any] = {"taskId": record.id, "status": record.status}
        if record.status_message is not None:
            shown["statusMessage"] = record.status_message
        return shown | {
            "createdAt": _iso(record.created_at),
            "lastUpdatedAt": _iso(record.updated_at),
            "ttlMs": round((record.expires_at - record.created_at) * 1000),
            "pollIntervalMs": max(1, round(self.limits.poll_interval_s * 1000)),
        }


def _visible(record: TaskRecord) -> tuple[object, ...]:
    return record.status, record.status_message, record.requests


def _iso(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
