"""The tasks as they are kept: every change of one goes through here, and word of it goes out."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw

from gatepost.changes import Change, Feed, Interest
from gatepost.stores.api import TERMINAL, Records, StoreUnavailable, TaskRecord

_log = logging.getLogger("gatepost.tasks")

Edit = Callable[[TaskRecord], TaskRecord]
"""Makes the next record out of the one that is kept, or answers that very one to leave it."""

CONTENDERS = 50
"""How often somebody else may be quicker before a change is given up."""


class Terms(msgspec.Struct, frozen=True):
    """What an operator grants to tasks; times in seconds."""

    ttl_s: float = 3600.0
    """How long a task is kept after the time that its tool may run."""
    poll_interval_s: float = 1.0
    """How often a client should ask."""
    max_per_caller: int = 32
    """Tasks of one principal that have not ended."""
    lease_s: float = 20.0
    """How long nobody else touches a task whose server says nothing."""
    peers: bool = True
    """Whether the address that a task was called from is kept, for the record of a later run."""


DEFAULT_TERMS = Terms()


class Ledger:
    """
    Reads and changes tasks, at any replica.

    A change is read, edited and replaced only if nobody was quicker, and one that has ended is
    never edited: so a terminal state stays (K-16), whoever races for it.
    """

    def __init__(
        self,
        records: Records,
        feed: Feed,
        terms: Terms = DEFAULT_TERMS,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._records = records
        self._feed = feed
        self.terms = terms
        self.clock = clock

    async def create(self, tenant: str, record: TaskRecord) -> None:
        """Keep a new task, durably."""
        await self._records.of(tenant).tasks.create(record)

    async def unfinished(self, tenant: str, owner: bytes) -> int:
        """How many tasks of this owner have not ended."""
        return await self._records.of(tenant).tasks.count(owner)

    async def abandoned(self, limit: int) -> list[tuple[str, str]]:
        """Tenant and id of tasks whose server is gone."""
        return await self._records.abandoned_tasks(self.clock(), limit)

    async def get(self, tenant: str, task_id: str) -> TaskRecord | None:
        """The task, unless it is unknown or its time is over."""
        record = await self._records.of(tenant).tasks.get(task_id)
        return None if record is None or record.expires_at <= self.clock() else record

    async def change(self, tenant: str, task_id: str, edit: Edit) -> TaskRecord | None:
        """
        Apply *edit*, as often as others are quicker; the record as it is kept then.

        None when the task is gone or has ended. Whoever follows it hears that it has moved.
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
                    await self._tell(tenant, task_id)
                return msgspec.structs.replace(edited, revision=edited.revision + 1)
        raise StoreUnavailable("a task changes faster than it can be written")

    async def follow(
        self, tenant: str, task_id: str, deliver: Callable[[], None]
    ) -> Interest | None:
        """Hear when the task moves; None where the relay is out of reach: look now and then."""
        moved = Change("task", task_id)

        def hear(change: Change) -> None:
            if change == moved:
                deliver()

        try:
            return await self._feed.follow(tenant, hear)
        except StoreUnavailable:
            _log.warning("a task is followed without the relay")
            return None

    async def _tell(self, tenant: str, task_id: str) -> None:
        try:
            await self._feed.of(tenant).moved(task_id)
        except StoreUnavailable:
            # The record is what counts; whoever follows looks now and then as well.
            _log.warning("the change of a task could not be told")

    def shown(self, record: TaskRecord) -> dict[str, Any]:
        """The task as `tasks/get` and `notifications/tasks` show it (K-09)."""
        shown = self.handle(record)
        if record.status == "input_required" and record.requests is not None:
            shown["inputRequests"] = Raw(record.requests)
        if record.status == "completed" and record.result is not None:
            shown["result"] = Raw(record.result)
        if record.status == "failed" and record.error is not None:
            shown["error"] = Raw(record.error)
        return shown

    def handle(self, record: TaskRecord) -> dict[str, Any]:
        """The fields that every task has, whatever its state (K-06)."""
        shown: dict[str, Any] = {"taskId": record.id, "status": record.status}
        if record.status_message is not None:
            shown["statusMessage"] = record.status_message
        return shown | {
            "createdAt": _iso(record.created_at),
            "lastUpdatedAt": _iso(record.updated_at),
            "ttlMs": round((record.expires_at - record.created_at) * 1000),
            "pollIntervalMs": max(1, round(self.terms.poll_interval_s * 1000)),
        }


def _visible(record: TaskRecord) -> tuple[object, ...]:
    return record.status, record.status_message, record.requests


def _iso(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
