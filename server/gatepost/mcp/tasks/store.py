"""Task records: how they are stored and change, and the requests for input in them."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from itertools import count
from typing import Any

import msgspec
from msgspec import Raw

from gatepost.mcp.change_notifications import ChangeNotification, ChangePubSub, ChangeSubscription
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.quota import StorageQuota
from gatepost.storage.records import Records
from gatepost.storage.tasks import TERMINAL, TaskRecord
from gatepost.tools.client import InputRequest

_encode = msgspec.json.encode
_replace = msgspec.structs.replace


class InputAnswer(msgspec.Struct, frozen=True):
    """The digest of a key's request and its answer; None if the request was withdrawn."""

    asked: str
    given: dict[str, Any] | None = None


_decode_requests = msgspec.json.Decoder(dict[str, InputRequest]).decode
_answers = msgspec.json.Decoder(dict[str, InputAnswer]).decode


def waiting(record: TaskRecord) -> dict[str, InputRequest]:
    """Return the requests that wait for an answer, by key."""
    return {} if record.requests is None else _decode_requests(record.requests)


def spent(record: TaskRecord) -> dict[str, InputAnswer]:
    """Return the keys that are used up."""
    return {} if record.answers is None else _answers(record.answers)


class PendingInputs(msgspec.Struct, frozen=True):
    """The keys of requests, by the tool's own names, and the record with the new requests."""

    keys: Mapping[str, str]
    numbers: Mapping[str, int]
    record: TaskRecord


class InputKeys:
    """
    Assigns a key to each request for input of one run.

    A key belongs to one request for the life of its task (K-11). A run that starts again after a
    crash asks the same again and finds earlier answers under the same keys. If a request has
    changed, its old answer does not count.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._mine: set[str] = set()

    def pose(self, record: TaskRecord, requests: Mapping[str, InputRequest]) -> PendingInputs:
        """Choose keys without changing any state, because the record may be read again."""
        open_ones, used = waiting(record), spent(record)
        keys: dict[str, str] = {}
        numbers = dict(self._numbers)
        for name, request in requests.items():
            for number in count(numbers.get(name, 0) + 1):
                key = name if number == 1 else f"{name}-{number}"
                if key in self._mine or key in open_ones:
                    continue
                before = used.get(key)
                if before is None:
                    open_ones[key] = request
                elif before.given is None or before.asked != digest(request):
                    continue
                break
            keys[name], numbers[name] = key, number
        return PendingInputs(keys, numbers, _kept(record, open_ones, used))

    def heard(
        self,
        record: TaskRecord,
        requests: Mapping[str, InputRequest],
        answers: Mapping[str, Mapping[str, Any]],
    ) -> TaskRecord:
        """Return the record with the requests and answers from before it was a task."""
        posed = self.pose(record, requests)
        self.keep(posed)
        return answer(posed.record, {key: answers[name] for name, key in posed.keys.items()})

    def keep(self, posed: PendingInputs) -> None:
        """Mark these keys as used by this run, after the record is stored."""
        self._numbers.update(posed.numbers)
        self._mine.update(posed.keys.values())


def answer(record: TaskRecord, responses: Mapping[str, Mapping[str, Any]]) -> TaskRecord:
    """Return the record with these answers; ignore answers to requests that are not open (K-12)."""
    open_ones, used = waiting(record), spent(record)
    for key in [key for key in open_ones if key in responses]:
        used[key] = InputAnswer(digest(open_ones.pop(key)), dict(responses[key]))
    return _kept(record, open_ones, used)


def withdraw(record: TaskRecord, keys: Iterable[str]) -> TaskRecord:
    """Return the record without these requests; their keys stay used."""
    open_ones, used = waiting(record), spent(record)
    for key in keys:
        if key in open_ones:
            used[key] = InputAnswer(digest(open_ones.pop(key)))
    return _kept(record, open_ones, used)


def answers_to(record: TaskRecord, keys: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the answers by the tool's own names; None if one is missing."""
    used = spent(record)
    found: dict[str, Any] = {}
    for name, key in keys.items():
        given = used[key].given if key in used else None
        if given is None:
            return None
        found[name] = given
    return found


def digest(request: InputRequest) -> str:
    """
    Return the digest that identifies a request for input.

    Only an elicitation has one, because a user decides on it: consent to "Delete 3 files?" is not
    consent to "Delete 300 files?". A sampling request may contain the time of day.
    """
    if request.method != "elicitation/create":
        return ""
    return hashlib.sha256(_encode(request, order="deterministic")).hexdigest()[:32]


def _kept(
    record: TaskRecord, open_ones: dict[str, InputRequest], used: dict[str, InputAnswer]
) -> TaskRecord:
    requests = _encode(open_ones) if open_ones else None
    answers = _encode(used) if used else None
    if requests == record.requests and answers == record.answers:
        return record
    status: Any = "input_required" if open_ones else "working"
    return _replace(record, requests=requests, answers=answers, status=status)


_log = logging.getLogger("gatepost.tasks")

Edit = Callable[[TaskRecord], TaskRecord]
"""Returns the changed record, or the same object to change nothing."""

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
                    await self._tell(tenant, task_id)
                return msgspec.structs.replace(edited, revision=edited.revision + 1)
        raise StoreUnavailable("a task changes faster than it can be written")

    async def follow(
        self, tenant: str, task_id: str, deliver: Callable[[], None]
    ) -> ChangeSubscription | None:
        """
        Subscribe to the task's changes; None if the shared store is unavailable, then poll instead.
        """
        moved = ChangeNotification("task", task_id)

        def hear(change: ChangeNotification) -> None:
            if change == moved:
                deliver()

        try:
            return await self._pubsub.follow(tenant, hear)
        except StoreUnavailable:
            _log.warning("task_polled")
            return None

    async def _tell(self, tenant: str, task_id: str) -> None:
        try:
            await self._pubsub.of(tenant).moved(task_id)
        except StoreUnavailable:
            # The record is stored, and subscribers also poll it.
            _log.warning("task_change_not_published")

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
