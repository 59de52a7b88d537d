"""The tasks of the tasks extension, as they are stored."""

from typing import Literal, Protocol

import msgspec

from gatepost.storage.stored_bytes import weight

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]

TERMINAL: frozenset[TaskStatus] = frozenset({"completed", "failed", "cancelled"})


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    One task of the tasks extension, as it survives the process that runs it.

    Times are seconds since the epoch. The fields of type bytes are opaque here: whoever makes the
    record encodes them. ``revision`` grows with every change.
    """

    id: str
    owner: bytes
    """Digest of the principal that created it; nobody else learns that it exists."""
    tool: str
    status: TaskStatus
    created_at: float
    updated_at: float
    expires_at: float
    call: bytes
    """What is needed to run it again: arguments, caller, what its client can do."""
    status_message: str | None = None
    requests: bytes | None = None
    """The input requests that wait for an answer."""
    answers: bytes | None = None
    """The answers given so far, by key."""
    result: bytes | None = None
    error: bytes | None = None
    cancelled: bool = False
    """Somebody asked for the end of it."""
    runner: str = ""
    """The process that runs it."""
    leased_until: float = 0.0
    """After this time its runner counts as gone."""
    revision: int = 0

    @property
    def weight(self) -> int:
        """Bytes that it takes, about."""
        return weight(self.call, self.requests, self.answers, self.result, self.error)


class TaskRecords(Protocol):
    """The tasks of one tenant."""

    async def create(self, task: TaskRecord) -> None:
        """Keep a new task; it is durable when this returns."""

    async def get(self, task_id: str) -> TaskRecord | None:
        """The task, also one whose time is over and that nobody swept away yet."""

    async def replace(self, task: TaskRecord) -> bool:
        """
        Put *task* in the place of the record with the same id and ``revision``; it is kept with
        the next revision. False when somebody changed or removed that record meanwhile.
        """

    async def count(self, owner: bytes) -> int:
        """How many tasks of this owner are not at their end."""
