"""One task that runs in this process: its work, its lease, and its client's answers."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import msgspec

from gatepost.mcp.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, JsonRpcError
from gatepost.mcp.responses import WITHOUT_RESULT, as_refusal, call_result, without_answer
from gatepost.mcp.revisions import MODERN
from gatepost.mcp.tasks.store import Edit, TaskStore
from gatepost.mcp.tasks.task_record import (
    CANCELLED,
    InputKeys,
    PendingInputs,
    answers_to,
    failed,
    given_up,
    with_end,
    with_state,
    with_unstarted,
    withdraw,
)
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.quota import QuotaExceeded
from gatepost.storage.shared_store import Wakeable
from gatepost.storage.tasks import TaskRecord
from gatepost.tools.api import Outcome
from gatepost.tools.client import InputRequest, Unaccepted
from gatepost.tools.registry import Unknown
from gatepost.tools.truncation import UNENCODABLE
from gatepost_authz.errors import AuthError

_log = logging.getLogger("gatepost.tasks")

Reason = Literal["cancelled", "revoked", "over", "lost", "handed over"]
"""
Why work is stopped: the client cancelled it, the caller's access was revoked, its time is over,
another server took it over, or this server stops.
"""
AWAY = "The server cannot reach its storage at the moment."
UNFORESEEN = "An unexpected error occurred; see the server's log."
GONE = "The tool is no longer available."
REVOKED = "The caller's access was revoked."
CARRIED_OUT = "The call was carried out, but its result was not kept."
OVER = "The task expired before it was finished."

READS_PER_LEASE = 10
"""How often a record is read during a lease, even if no change was announced."""

MESSAGE_CHARACTERS = 500
GOES_ON = "The call was approved and continues."

_replace = msgspec.structs.replace


class RunningTask:
    """
    Runs until its work ends, reads its record after every change, and stores the outcome.

    The record belongs to this run while it has the run's ``runner`` id, which every run creates
    anew. If another server takes the task over, this run stops and writes nothing more.
    """

    def __init__(
        self,
        task_store: TaskStore,
        tenant: str,
        record: TaskRecord,
        work: asyncio.Task[Outcome],
        keys: InputKeys,
        *,
        resumes: bool = False,
    ) -> None:
        self.tenant = tenant
        self.record = record
        self.work = work
        self.keys = keys
        self.reason: Reason | None = None
        self._runner = record.runner
        self._task_store = task_store
        self._read_every_s = task_store.limits.lease_s / READS_PER_LEASE
        self._wakeable = Wakeable()
        self._changed = asyncio.Event()
        self._message = record.status_message
        self._noted_at = 0.0
        self._is_waiting = False
        self._is_resumable = False
        """Whether the record says how another run continues, so that this run may stop."""
        self._resumes = resumes
        """Whether it has not yet resumed work that an earlier run began elsewhere."""
        self._leaving = False
        self._withdrawn: set[str] = set()
        work.add_done_callback(lambda _: self._wakeable.wake())

    def wake(self) -> None:
        """Read the record soon, because it has changed."""
        self._wakeable.wake()

    def stop(self, reason: Reason) -> None:
        """
        Cancel the work; if it still finishes, its outcome counts.

        Work that resumes must first find what it has to cancel elsewhere.
        """
        if self.reason is None:
            self.reason = reason
            if not self._resumes or self.handed_over:
                self.work.cancel()

    @property
    def handed_over(self) -> bool:
        """Return whether another run continues the call."""
        return self.reason in {"handed over", "lost"}

    def leave(self) -> None:
        """Prepare for the server's stop: hand the task over if another run can continue it."""
        self._leaving = True
        if self._is_resumable:
            self.stop("handed over")

    async def run(self) -> None:
        """Manage the task until its outcome is stored or another server has taken it over."""
        while not self.work.done():
            await self._wakeable.wait(self._read_every_s)
            if not self.work.done():
                await self._read()
        await self._conclude()

    async def note(self, message: str) -> None:
        """Set the status message; the client sees it shortly afterwards."""
        self._message = message[:MESSAGE_CHARACTERS]
        # A tool that reports progress in a loop must not cause a write for each report.
        if self._task_store.clock() - self._noted_at >= self._task_store.limits.poll_interval_s:
            await self._change(self._up_to_date)

    async def wait(self, message: str, *, unstarted: bool) -> None:
        """Record that the task waits for an approval, and whether nothing of it has started."""
        self._message = message[:MESSAGE_CHARACTERS]
        self._is_waiting = True
        await self._change_or_stop(
            lambda record: self._up_to_date(with_unstarted(record, unstarted))
        )
        self._is_resumable = unstarted
        if self._leaving:
            self.leave()

    async def go_on(self) -> None:
        """
        Record that the call starts now.

        From here on it must not be run again only because its server is gone.
        """
        self._is_waiting = self._is_resumable = False
        self._message = GOES_ON
        await self._change_or_stop(lambda record: self._up_to_date(with_unstarted(record, False)))

    async def keep(self, state: bytes) -> None:
        """
        Record the state with which another run continues the call.

        From here on the call is continued wherever it is run, and never made again.
        """
        stopping, self._resumes = self.reason is not None, False
        if stopping:
            self.work.cancel()
        await self._change_or_stop(lambda record: with_state(record, state))
        self._is_resumable = True
        if self._leaving:
            self.leave()

    async def _change_or_stop(self, edit: Edit) -> None:
        """Change the record; does not return if another run owns it or the task is stopped."""
        await self._change(edit)
        if self.record.cancelled:
            # The client cancelled it meanwhile.
            self.stop("cancelled")
        if self.reason is not None or self.record.runner != self._runner:
            # The work is being cancelled; wait here for that.
            await asyncio.Event().wait()

    async def ask(self, requests: Mapping[str, InputRequest]) -> Mapping[str, Mapping[str, Any]]:
        """Put requests for input into the record and wait for all answers (K-11, K-12)."""
        posed: PendingInputs | None = None

        def pose(record: TaskRecord) -> TaskRecord:
            nonlocal posed
            posed = self.keys.pose(record, requests)
            return posed.record

        await self._change(pose)
        if posed is None:
            # Another run owns the record; this work is being cancelled.
            await asyncio.Event().wait()
            raise AssertionError
        self.keys.keep(posed)
        try:
            while (answers := answers_to(self.record, posed.keys)) is None:
                await self._changed.wait()
        except asyncio.CancelledError:
            # The tool stopped asking or is stopped, so these requests are withdrawn.
            self._withdrawn.update(posed.keys.values())
            self._wakeable.wake()
            raise
        return answers

    async def _read(self) -> None:
        try:
            record = await self._task_store.get(self.tenant, self.record.id)
        except StoreUnavailable:
            _log.warning("task_not_read")
            return
        if record is None:
            self.stop("over")
            return
        self._take(record)
        if record.runner != self._runner:
            self.stop("lost")
        elif record.cancelled:
            self.stop("cancelled")
        elif self._up_to_date(record) is not record:
            await self._change(self._up_to_date)

    def _take(self, record: TaskRecord) -> None:
        self.record = record
        self._changed.set()
        self._changed = asyncio.Event()

    def _up_to_date(self, record: TaskRecord) -> TaskRecord:
        """Return the record with this process's message, lease and withdrawn requests."""
        limits, now = self._task_store.limits, self._task_store.clock()
        if self._withdrawn:
            record = withdraw(record, self._withdrawn)
        if record.status_message != self._message:
            self._noted_at = now
            record = _replace(record, status_message=self._message)
        if record.leased_until < now + limits.lease_s / 2:
            record = _replace(record, leased_until=now + limits.lease_s)
            if self._is_waiting:
                # An approval may take longer than a task is kept.
                kept_until = max(record.expires_at, now + limits.ttl_s)
                record = _replace(record, expires_at=kept_until)
        return record

    async def _change(self, edit: Edit) -> None:
        """Change the record while this run owns it; retry as long as the store is unavailable."""

        def ours(record: TaskRecord) -> TaskRecord:
            return edit(record) if record.runner == self._runner else record

        while True:
            try:
                record = await self._task_store.change(self.tenant, self.record.id, ours)
                break
            except StoreUnavailable:
                _log.warning("task_change_waits")
                await asyncio.sleep(self._read_every_s)
        if record is None or (record.runner != self._runner and record.runner):
            self.stop("lost")
        else:
            self._take(record)

    async def _conclude(self) -> None:
        if self.reason == "lost":
            return
        if self.work.cancelled() and self.reason in {None, "handed over"}:
            await self._change(given_up)
            return
        await self._store_end(self._end())

    async def _store_end(self, end: dict[str, Any]) -> None:
        """Store the outcome; if a result exceeds the quota, store only that there was one."""
        result = end.get("result", b"")
        while True:
            try:
                async with self._task_store.quota.room(self.tenant, self.record.owner, len(result)):
                    return await self._change(partial(with_end, end=end))
            except QuotaExceeded as full:
                lost = failed(INTERNAL_ERROR, f"{CARRIED_OUT} {full}") if result else end
                return await self._change(partial(with_end, end=lost))
            except StoreUnavailable:
                _log.warning("task_end_waits")
                await asyncio.sleep(self._read_every_s)

    def _end(self) -> dict[str, Any]:
        """Return the members of the record that say how it ended."""
        if self.work.cancelled():
            if self.reason == "cancelled":
                return CANCELLED
            return failed(INTERNAL_ERROR, REVOKED if self.reason == "revoked" else OVER)
        raised = self.work.exception()
        if isinstance(raised, Unaccepted):
            # The request was cancelled while it became a task.
            return CANCELLED
        try:
            if raised is None:
                answer = call_result(self.work.result(), MODERN, b"")
                return {"status": "completed", "result": answer}
            refusal = refusal_of(raised)
            return failed(refusal.code, refusal.message, refusal.data)
        except JsonRpcError as refused:
            return failed(refused.code, refused.message, refused.data)
        except UNENCODABLE as bad:
            # The tool's answer cannot be encoded as JSON.
            refusal = refusal_of(bad)
            return failed(refusal.code, refusal.message)


def refusal_of(raised: BaseException) -> JsonRpcError:
    """Return the error for a call that ended without an outcome."""
    if isinstance(raised, AuthError):
        return as_refusal(raised)
    if isinstance(raised, WITHOUT_RESULT):
        return without_answer(raised, modern=True)
    if isinstance(raised, Unknown):
        return JsonRpcError(INVALID_PARAMS, GONE)
    if isinstance(raised, StoreUnavailable):
        return JsonRpcError(INTERNAL_ERROR, AWAY)
    _log.error("task_error", exc_info=raised)
    return JsonRpcError(INTERNAL_ERROR, UNFORESEEN)
