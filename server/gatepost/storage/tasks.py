"""The stored tasks of the tasks extension."""

from typing import Literal, Protocol

import msgspec

from gatepost.storage.stored_bytes import weight

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]

TERMINAL: frozenset[TaskStatus] = frozenset({"completed", "failed", "cancelled"})
OPEN: frozenset[TaskStatus] = frozenset({"working", "input_required"})
"""All others."""


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    One task of the tasks extension; it outlives the process that runs it.

    Times are seconds since the epoch. The task store encodes the fields of type bytes. ``revision``
    grows with every change.
    """

    id: str
    owner: bytes
    """The digest of the principal that created it; other callers do not learn that it exists."""
    tool: str
    status: TaskStatus
    created_at: float
    updated_at: float
    expires_at: float
    call: bytes
    """The call, to run it again: its arguments, caller and client capabilities."""
    status_message: str | None = None
    requests: bytes | None = None
    """The input requests that wait for answers."""
    answers: bytes | None = None
    """The answers given so far, by key."""
    result: bytes | None = None
    error: bytes | None = None
    cancelled: bool = False
    """Whether cancellation was requested."""
    runner: str = ""
    """The id of the run that the task belongs to."""
    leased_until: float = 0.0
    """When the lease of its runner ends; then another process may run it."""
    revision: int = 0

    @property
    def weight(self) -> int:
        """Return the approximate size in bytes."""
        return weight(self.call, self.requests, self.answers, self.result, self.error)


class TaskRecords(Protocol):
    """The tasks of one tenant."""

    async def create(self, task: TaskRecord) -> None:
        """Store a new task durably."""

    async def get(self, task_id: str) -> TaskRecord | None:
        """Return a task, or None; it may have expired and not be removed yet."""

    async def replace(self, task: TaskRecord) -> bool:
        """
        Replace the record that has the same id and ``revision``; its revision grows by one.

        Return False if it was changed or removed in the meantime.
        """

    async def count(self, owner: bytes) -> int:
        """Return the number of the owner's tasks that have not ended."""
