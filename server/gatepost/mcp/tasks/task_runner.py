"""Run tasks in this process, and take over tasks whose process is gone."""

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from gatepost.background import started
from gatepost.http.body import no_caller
from gatepost.mcp.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, JsonRpcError
from gatepost.mcp.responses import rate_limited
from gatepost.mcp.tasks.client import TaskClient
from gatepost.mcp.tasks.running_task import GONE, OVER, REVOKED, RunningTask
from gatepost.mcp.tasks.store import TaskLimits, TaskStore
from gatepost.mcp.tasks.task_record import (
    CANCELLED,
    InputKeys,
    StoredCall,
    decode_call,
    encode_call,
    failed,
    new_run_id,
    waiting,
    withdraw,
)
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.quota import QuotaExceeded
from gatepost.storage.tasks import TaskRecord
from gatepost.tools.api import Call, Failure, Outcome, Tool
from gatepost.tools.client import NO_CLIENT
from gatepost.tools.registry import UnknownTool
from gatepost.tools.runner import Runner, outcome_of
from gatepost_authz.caller import TenantContext

_log = logging.getLogger("gatepost.tasks")

ATTEMPTS = 3
"""
How often a call is started on all servers together, because the call may be what crashes them.
"""
AT_ONCE = 16
"""How many abandoned tasks one sweep takes over."""
HAND_OVER_S = 5.0
"""How long a stop waits for tasks to be handed over."""

UNKNOWN_EFFECT = "The server that ran the call stopped; whether it took effect is unknown."
STOPPED_OFTEN = f"The server that ran the call stopped, {ATTEMPTS} times."

_replace = msgspec.structs.replace


class TaskRunner:
    """
    Manages tasks from the answer that creates one until the task ends.

    It lives as long as the process. *runner* returns the current runner, for calls that are taken
    over. *is_out* returns whether a caller is revoked or suspended; none of its calls are run then.
    """

    def __init__(
        self,
        task_store: TaskStore,
        runner: Callable[[], Runner],
        *,
        is_out: Callable[[TenantContext], bool] = no_caller,
    ) -> None:
        self.task_store = task_store
        self.is_out = is_out
        self._runner = runner
        self._running_tasks: dict[RunningTask, asyncio.Task[None]] = {}
        self._opening: Counter[bytes] = Counter()
        self._sweeping: asyncio.Task[None] | None = None
        self._until = 0.0
        self._draining = False

    def __len__(self) -> int:
        return len(self._running_tasks)

    async def accept(
        self, call: Call, tool: Tool, task_client: TaskClient, work: asyncio.Task[Outcome]
    ) -> TaskRecord:
        """
        Turn *work* into a task and return its record, which is durable then (K-07).

        Raises JsonRpcError if the caller has too many tasks, and StoreUnavailable; then the work
        still belongs to the request. If the request is cancelled meanwhile, so is the task.
        """
        task_store, now = self.task_store, self.task_store.clock()
        limits, tenant = task_store.limits, call.caller.tenant_id
        runs_s = tool.timeout_s or self._runner().timeout_s
        stored = StoredCall(
            caller=_replace(call.caller, claims=dict(call.caller.claims)),
            arguments=Raw(call.arguments),
            request_id=call.request_id,
            capabilities=dict(task_client.capabilities),
            scopes=tool.scopes,
            correlation=call.correlation,
            unstarted=task_client.unstarted,
            peer=call.peer if limits.peers else "",
            kept=task_client.state,
        )
        record = TaskRecord(
            id=f"t_{secrets.token_urlsafe(24)}",
            owner=call.caller.principal_digest,
            tool=tool.name,
            status="working",
            created_at=now,
            updated_at=now,
            expires_at=now + limits.ttl_s + runs_s,
            call=encode_call(stored),
            runner=new_run_id(),
            leased_until=now + limits.lease_s,
        )
        keys = InputKeys()
        for requests, answers in task_client.answered:
            record = keys.add_answered(record, requests, answers)
        running_task = RunningTask(task_store, tenant, record, work, keys)
        opening = asyncio.ensure_future(self._open(running_task, task_client))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            # No client learns the task's id. The request still has to stop the work.
            running_task.reason = "cancelled"
            opening.add_done_callback(_log_failure)
            raise
        return record

    async def _open(self, running_task: RunningTask, task_client: TaskClient) -> None:
        task_store, owner = self.task_store, running_task.record.owner
        # Tasks that are about to be stored count too, because many calls may come at once. A task
        # that is stored meanwhile counts twice for a moment, but it always counts.
        ahead = self._opening[owner]
        self._opening[owner] += 1
        try:
            if (
                await task_store.unfinished(running_task.tenant, owner) + ahead
                >= task_store.limits.max_per_caller
            ):
                raise _too_many_tasks(task_store.limits)
            async with task_store.quota.room(
                running_task.tenant, owner, running_task.record.weight
            ):
                await task_store.create(running_task.tenant, running_task.record)
        except QuotaExceeded as full:
            raise no_room(full) from None
        finally:
            self._opening[owner] -= 1
            if not self._opening[owner]:
                del self._opening[owner]
        self._begin(running_task, task_client)

    def _begin(self, running_task: RunningTask, task_client: TaskClient) -> None:
        task_client.accept(running_task)
        running = self._running_tasks[running_task] = asyncio.create_task(
            self._await_end(running_task)
        )
        running.add_done_callback(lambda _: self._running_tasks.pop(running_task, None))
        if self.is_out(decode_call(running_task.record.call).caller):
            # The caller lost its access while the record was written.
            running_task.stop("revoked")
        if self._draining:
            running_task.leave()

    async def _await_end(self, running_task: RunningTask) -> None:
        subscription = await self.task_store.follow(
            running_task.tenant, running_task.record.id, running_task.wake
        )
        try:
            # Read the changes from before the subscription.
            running_task.wake()
            await running_task.run()
        finally:
            if subscription is not None:
                subscription.end()

    async def sweep(self) -> None:
        """Take over the tasks that other processes left behind."""
        for tenant, task_id in await self.task_store.abandoned(AT_ONCE):
            if self._draining:
                return  # leave them to servers that do not stop
            await self.take_up(tenant, task_id)

    async def take_up(self, tenant: str, task_id: str) -> None:
        """Run an abandoned task again if that is safe, else record how it ended."""
        run: tuple[StoredCall, str] | None = None

        def claim(record: TaskRecord) -> TaskRecord:
            nonlocal run
            run = None
            now = self.task_store.clock()
            if record.leased_until >= now:
                return record
            stored, end = self._fate(record)
            if end is not None or stored is None:
                return _replace(record, requests=None, **(end or {}))
            run = stored, new_run_id()
            # The old run's requests are void; the new run asks with other keys.
            record = withdraw(record, waiting(record))
            # The call counts as started until it waits again, because its approval may have been
            # used already. A call that another server handed over did not crash that server.
            is_blameless = stored.unstarted or (stored.kept and not record.runner)
            attempts = stored.attempts + (not is_blameless)
            again = _replace(stored, attempts=attempts, unstarted=False)
            until = now + self.task_store.limits.lease_s
            return _replace(record, call=encode_call(again), runner=run[1], leased_until=until)

        await self._ready(tenant, task_id)
        record = await self.task_store.change(tenant, task_id, claim)
        if record is None or run is None or record.runner != run[1]:
            return
        _log.warning("task_restarted")
        self._run(tenant, record, run[0])

    async def _ready(self, tenant: str, task_id: str) -> None:
        """Load the offers of the task's tenant."""
        if self._runner().registry.source is None:
            return
        if (record := await self.task_store.get(tenant, task_id)) is not None:
            with contextlib.suppress(msgspec.DecodeError):
                await self._runner().registry.ready(decode_call(record.call).caller)

    def _run(self, tenant: str, record: TaskRecord, stored: StoredCall) -> None:
        task_client = TaskClient(NO_CLIENT, stored.capabilities, kept=stored.kept)
        resumes = bool(stored.kept)
        call = Call(
            caller=stored.caller,
            name=record.tool,
            arguments=bytes(stored.arguments),
            request_id=stored.request_id,
            client=task_client,
            lasting=True,
            correlation=stored.correlation,
            peer=stored.peer,
            resumes=resumes,
        )
        work = asyncio.create_task(perform(self._runner(), call))
        keys = InputKeys()
        running_task = RunningTask(self.task_store, tenant, record, work, keys, resumes=resumes)
        self._begin(running_task, task_client)

    def _fate(self, record: TaskRecord) -> tuple[StoredCall | None, dict[str, Any] | None]:
        """Return the call to run again, or the members that say how it ended."""
        stored = None
        with contextlib.suppress(msgspec.DecodeError):
            stored = decode_call(record.call)
        if record.cancelled and not (stored and stored.kept):
            return None, CANCELLED
        if record.expires_at <= self.task_store.clock():
            return None, failed(INTERNAL_ERROR, OVER)
        if stored is None:
            # Stored by a release with another format.
            return None, failed(INTERNAL_ERROR, UNKNOWN_EFFECT)
        if self.is_out(stored.caller):
            return None, failed(INTERNAL_ERROR, REVOKED)
        try:
            effects = self._runner().registry.find(stored.caller, record.tool).effects
        except UnknownTool:
            return None, failed(INVALID_PARAMS, GONE)
        if not (stored.unstarted or stored.kept or effects.read_only or effects.idempotent):
            return None, failed(INTERNAL_ERROR, UNKNOWN_EFFECT)
        if stored.attempts >= ATTEMPTS:
            return None, failed(INTERNAL_ERROR, STOPPED_OFTEN)
        return stored, None

    def start(self) -> None:
        """Start to take over abandoned tasks at intervals."""
        self._sweeping = started("tasks", self._sweep_on)

    async def _sweep_on(self) -> None:
        while True:
            try:
                await self.sweep()
            except StoreUnavailable:
                _log.warning("abandoned_tasks_not_read")
            await asyncio.sleep(self.task_store.limits.lease_s / 2)

    def drain(self, within_s: float) -> None:
        """
        Let tasks finish for *within_s* seconds; `aclose` waits for that.

        Tasks that wait for an approval and have not started are handed over at once, because an
        approval takes longer than a stop.
        """
        self._until = asyncio.get_running_loop().time() + within_s
        self._draining = True
        for running_task in self._running_tasks:
            running_task.leave()

    def end(self, which: Callable[[TenantContext], bool]) -> None:
        """Stop the tasks of these callers in this process, because their access was revoked."""
        for running_task in self._running_tasks:
            if which(decode_call(running_task.record.call).caller):
                running_task.stop("revoked")

    async def aclose(self) -> None:
        """Hand the tasks that still run after the drain over to other servers."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._running_tasks:
            left = self._until - asyncio.get_running_loop().time()
            await asyncio.wait(self._running_tasks.values(), timeout=max(left, 0.0))
        for running_task in self._running_tasks:
            running_task.stop("handed over")
        if self._running_tasks:
            await asyncio.wait(self._running_tasks.values(), timeout=HAND_OVER_S)
        for running in self._running_tasks.values():
            running.cancel()


async def perform(runner: Runner, call: Call) -> Outcome:
    """Run a call in a task of the event loop, and keep a tool from ending the loop."""
    try:
        return await runner.run(call)
    except (SystemExit, KeyboardInterrupt) as ended:
        # Raised from a task, these would end the event loop and the server.
        unexpected = RuntimeError(f"the tool raised {type(ended).__name__}")
        return outcome_of(unexpected, call, runner.timeout_s)


def _too_many_tasks(limits: TaskLimits) -> JsonRpcError:
    message = f"{limits.max_per_caller} tasks are already running, which is the limit."
    return rate_limited(Failure("rate_limit", message, retry_after=limits.poll_interval_s))


def no_room(full: QuotaExceeded) -> JsonRpcError:
    """Return the refusal for a task that exceeds a storage quota."""
    return rate_limited(Failure("rate_limit", str(full), retry_after=full.wait_s, limit=full.limit))


def _log_failure(opening: asyncio.Future[None]) -> None:
    """Log the failure of a cancelled task."""
    if not opening.cancelled() and opening.exception() is not None:
        _log.warning("task_not_kept")
