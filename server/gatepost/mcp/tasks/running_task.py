"""One task that runs in this process: its call's client, its lease and its end."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

import msgspec

from gatepost.execution.failure import ToolFailure
from gatepost.mcp.approval_url import ApprovalUrl
from gatepost.mcp.client import watched
from gatepost.mcp.jsonrpc import INTERNAL_ERROR, JsonRpcError
from gatepost.mcp.tasks.store import Edit, TaskStore, with_lease
from gatepost.mcp.tasks.task_record import (
    CARRIED_OUT,
    StopReason,
    StoredCall,
    answer,
    answers_to,
    end_of,
    failed,
    request_input,
    with_call,
    with_end,
)
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.tasks import TaskRecord
from gatepost.tools.calls.redacted_call import has_tool_started
from gatepost.tools.context.client import (
    PAGES,
    AwaitedDecision,
    Capabilities,
    Client,
    InputRequest,
    MissingCapability,
    SilentClient,
    lacking,
    pending,
    required_by,
)
from gatepost.tools.context.elicitation import UrlElicitation
from gatepost.tools.offers.offer import Outcome

_log = logging.getLogger(__name__)

OPEN_PAGE = "gatepost:page"
"""The key of the approval page; a tool cannot ask with this key."""
READS_PER_LEASE = 10
"""How often a record is read during a lease, even if no change was announced."""
ENDS_SOON_S = 0.05
"""How long a run waits for the end of its work before it reads the record."""
MESSAGE_CHARACTERS = 500
NOT_ANSWERED = "The task has ended, so no client answers the tool's request."
GOES_ON = "The call was approved and continues."

_replace = msgspec.structs.replace


class RunningTask(SilentClient):
    """
    Runs until its work ends, reads its record after every change, and stores the outcome.

    It is the client of its call: progress becomes the status message, requests for input wait in
    the record, and log messages are dropped (K-18).

    The record belongs to this run while it has the run's ``runner`` id, which every run creates
    anew. If another server takes the task over, this run stops and writes nothing more.
    """

    def __init__(
        self,
        task_store: TaskStore,
        record: TaskRecord,
        call: StoredCall,
        start: Callable[[Client], asyncio.Task[Outcome]],
        keys: set[str],
        *,
        resumes: bool = False,
    ) -> None:
        self.record = record
        self.call = call
        self.reason: StopReason | None = None
        self._task_store = task_store
        self._tenant = call.caller.tenant_id
        self._runner = record.runner
        self._keys = keys
        """The keys of requests for input that this run has come to."""
        self._read_every_s = task_store.limits.lease_s / READS_PER_LEASE
        self._wake_ups = task_store.wake_ups(self._tenant, record.id)
        self._changed = asyncio.Event()
        self._message, self._noted_at = record.status_message, 0.0
        self._is_waiting = False
        self._is_resumable = False
        """Whether the record says how another run continues, so that this run may stop."""
        self._resumes = resumes
        """Whether it has not yet resumed work that an earlier run began elsewhere."""
        self._leaving = False
        self._withdrawn: dict[str, None] = {}
        self.work = start(self)
        self.work.add_done_callback(self._work_ended)

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities that the client declared with the call."""
        return self.call.capabilities

    @property
    def previous_state(self) -> bytes:
        """Return the state that the run before kept."""
        return self.call.kept

    @property
    def handed_over(self) -> bool:
        """Return whether another run continues the call."""
        return self.reason in {"handed over", "lost"}

    def stop(self, reason: StopReason) -> None:
        """
        Cancel the work; if it still finishes, its outcome counts.

        Work that resumes must first find what it has to cancel elsewhere.
        """
        if self.reason is None:
            self.reason = reason
            if not self._resumes or self.handed_over:
                self.work.cancel()

    def leave(self) -> None:
        """Prepare for the server's stop: hand the task over once another run can continue it."""
        self._leaving = True
        self._set_resumable(self._is_resumable)

    def _set_resumable(self, is_resumable: bool) -> None:
        self._is_resumable = is_resumable
        if self._leaving and is_resumable:
            self.stop("handed over")

    async def run(self) -> None:
        """Manage the task until its outcome is stored or another server has taken it over."""
        async with self._wake_ups:
            # The first reading finds changes from before the subscription, if the call lasts.
            await self._wake_ups.wait(ENDS_SOON_S)
            while not self.work.done():
                await self._read()
                await self._wake_ups.wait(self._read_every_s)
            await self._conclude()

    async def _conclude(self) -> None:
        if self.reason == "lost":
            return
        if self.work.cancelled() and self.reason in {None, "handed over"}:
            # Without a lease, another server takes the task over at once.
            await self._change(lambda record: _replace(record, runner="", leased_until=0.0))
            return
        end = end_of(self.work, self.reason)
        try:
            await self._change(partial(with_end, end=end), adds=len(end.get("result", b"")))
        except JsonRpcError as full:
            end = failed(INTERNAL_ERROR, f"{CARRIED_OUT} {full.message}")
            await self._change(partial(with_end, end=end))

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Set the status message; the client sees it shortly afterwards."""
        reached = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
        self._message = (reached if message is None else message)[:MESSAGE_CHARACTERS]
        # A tool that reports progress in a loop must not cause a write for each report.
        if self._task_store.clock() - self._noted_at >= self._task_store.limits.poll_interval_s:
            await self._change(self._up_to_date)

    async def request(
        self, requests: Mapping[str, InputRequest], *, state: bytes = b""
    ) -> Mapping[str, Mapping[str, Any]]:
        """Put requests for input into the record and wait for all answers (K-11, K-12)."""
        if missing := lacking(self.capabilities, required_by(requests)):
            raise MissingCapability(missing)
        return await self._ask(requests)

    async def wait_for_decision(self, waiting: AwaitedDecision) -> None:
        """Wait for a decision; a client that opens pages sees the page, and may only decline it."""
        unstarted = not has_tool_started()
        self._message, self._is_waiting = waiting.message_with_url[:MESSAGE_CHARACTERS], True
        await self._change_or_stop(lambda record: with_call(record, unstarted=unstarted))
        self._set_resumable(unstarted)
        page = None
        if waiting.url and not lacking(self.capabilities, PAGES):
            request = UrlElicitation(waiting.message, waiting.url).request
            page = ApprovalUrl(waiting, request, self._record_state(request))
        try:
            async with watched(page or waiting) as over:
                await over
        finally:
            if page is not None:
                await page.close()
        if page is not None and page.declined:
            raise pending(waiting)
        # From here on it must not be run again only because its server is gone.
        self._message, self._is_waiting, self._is_resumable = GOES_ON, False, False
        await self._change_or_stop(lambda record: with_call(record, unstarted=False))

    async def _record_state(self, page: InputRequest) -> Mapping[str, Any]:
        return (await self._ask({OPEN_PAGE: page}))[OPEN_PAGE]

    async def detach(self, *, state: bytes = b"") -> None:
        """Record the state with which any other run continues the call instead of making it."""
        if not state:
            return
        self._resumes = False
        if self.reason is not None:
            self.work.cancel()
        await self._change_or_stop(lambda record: with_call(record, kept=state))
        self._set_resumable(True)

    async def _change_or_stop(self, edit: Edit) -> None:
        """Change the record; does not return if another run owns it or the task is stopped."""
        await self._change(lambda record: self._up_to_date(edit(record)))
        if self.record.cancelled:
            # The client cancelled it meanwhile.
            self.stop("cancelled")
        if self.reason is not None or self.record.runner != self._runner:
            await self._wait_for_end()

    async def _wait_for_end(self) -> NoReturn:
        """Wait until the work, which is being cancelled, has ended; raises ToolFailure."""
        # With an idempotency key the tool outlives its work if another request waits for the
        # outcome. It must not wait here without end: a waiting call is in no limit.
        await asyncio.wait({self.work})
        raise ToolFailure("denied", NOT_ANSWERED)

    def _work_ended(self, _: "asyncio.Task[Outcome]") -> None:
        self._wake_ups.wake()
        self._changed.set()

    async def _ask(self, requests: Mapping[str, InputRequest]) -> Mapping[str, Mapping[str, Any]]:
        keys: dict[str, str] | None = None
        run_keys = self._keys

        def edit(record: TaskRecord) -> TaskRecord:
            nonlocal keys, run_keys
            run_keys = set(self._keys)  # only a stored request uses up its keys
            record, keys = request_input(record, requests, run_keys)
            return record

        await self._change(edit)
        if keys is None:
            await self._wait_for_end()  # another run owns the record
        self._keys |= run_keys
        try:
            while (answers := answers_to(self.record, keys)) is None:
                if self.work.done():
                    await self._wait_for_end()
                await self._changed.wait()
        except asyncio.CancelledError:
            # The tool stopped asking or is stopped, so these requests are withdrawn.
            self._withdrawn |= dict.fromkeys(keys.values())
            self._wake_ups.wake()
            raise
        return answers

    async def _read(self) -> None:
        try:
            record = await self._task_store.get(self._tenant, self.record.id)
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
            record = answer(record, self._withdrawn)
        if record.status_message != self._message:
            self._noted_at = now
            record = _replace(record, status_message=self._message)
        return with_lease(record, limits, now, is_waiting=self._is_waiting)

    async def _change(self, edit: Edit, *, adds: int = 0) -> None:
        """Change the record while this run owns it; retry as long as the store is unavailable."""
        where, retry_s = (self._tenant, self.record, self._runner), self._read_every_s
        record = await self._task_store.change_owned(*where, edit, adds=adds, retry_s=retry_s)
        if record is None or (record.runner != self._runner and record.runner):
            self.stop("lost")
        else:
            self._take(record)
