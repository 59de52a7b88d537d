"""Run tasks in this process, and take over tasks whose process is gone."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from gatepost.background import started
from gatepost.http.body import no_caller
from gatepost.mcp.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS
from gatepost.mcp.tasks.running_task import RunningTask
from gatepost.mcp.tasks.store import TaskStore
from gatepost.mcp.tasks.task_record import (
    CANCELLED,
    OVER,
    REVOKED,
    TOOL_MISSING,
    BeforeTask,
    StoredCall,
    answer,
    decode_call,
    encode_call,
    failed,
    pose,
    waiting,
    with_call,
)
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.tasks import TaskRecord
from gatepost.tools.calls.registry import UnknownTool
from gatepost.tools.calls.runner import Runner, outcome_of
from gatepost.tools.context.client import Client
from gatepost.tools.offers.offer import Call, Outcome, Tool
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
        self._sweeping: asyncio.Task[None] | None = None
        self._until = 0.0
        self._draining = False

    def __len__(self) -> int:
        return len(self._running_tasks)

    async def accept(
        self,
        call: Call,
        tool: Tool,
        work: asyncio.Task[Outcome],
        before: BeforeTask,
        accepted: Callable[[Client], None],
    ) -> TaskRecord:
        """
        Turn *work* into a task and return its record, which is durable then (K-07).

        *accepted* is told the client that the call has from then on. Raises JsonRpcError if the
        caller has too many tasks, and StoreUnavailable; then the work still belongs to the request.
        If the request is cancelled meanwhile, so is the task.
        """
        peer = call.peer if self.task_store.limits.peers else ""
        stored = StoredCall.of(call, tool, before, peer=peer)
        record, used = self._new_record(stored, tool), set[str]()
        for requests, answers in before.answered:
            record, keys = pose(record, requests, used)
            record = answer(record, {key: answers[name] for name, key in keys.items()})
        running_task = RunningTask(self.task_store, record, stored, lambda _: work, used)

        async def opened() -> None:
            await self.task_store.create(call.caller.tenant_id, record)
            if running_task.reason is None:
                accepted(running_task)
            self._manage(running_task)

        opening = asyncio.ensure_future(opened())
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            # No client learns the task's id. The request still has to stop the work.
            running_task.reason = "cancelled"
            opening.add_done_callback(_log_failure)
            raise
        return record

    def _new_record(self, stored: StoredCall, tool: Tool) -> TaskRecord:
        limits, now = self.task_store.limits, self.task_store.clock()
        return TaskRecord(
            id=f"t_{secrets.token_urlsafe(24)}",
            owner=stored.caller.principal_digest,
            tool=tool.name,
            status="working",
            created_at=now,
            updated_at=now,
            expires_at=now + limits.ttl_s + (tool.timeout_s or self._runner().timeout_s),
            call=encode_call(stored),
            runner=_new_run_id(),
            leased_until=now + limits.lease_s,
        )

    def _manage(self, running_task: RunningTask) -> None:
        managing = asyncio.create_task(running_task.run())
        self._running_tasks[running_task] = managing
        managing.add_done_callback(lambda _: self._running_tasks.pop(running_task, None))
        if self.is_out(running_task.call.caller):
            # The caller lost its access while the record was written.
            running_task.stop("revoked")
        if self._draining:
            running_task.leave()

    async def sweep(self) -> None:
        """Take over the tasks that other processes left behind."""
        for tenant, task_id in await self.task_store.abandoned(AT_ONCE):
            if self._draining:
                return  # leave them to servers that do not stop
            await self.take_up(tenant, task_id)

    async def take_up(self, tenant: str, task_id: str) -> None:
        """Run an abandoned task again if that is safe, else record how it ended."""
        stored: StoredCall | None = None

        def take(record: TaskRecord) -> TaskRecord:
            nonlocal stored
            stored = None
            now = self.task_store.clock()
            if record.leased_until >= now:
                return record
            fate = self._fate(record)
            if not isinstance(fate, StoredCall):
                return _replace(record, requests=None, **fate)
            stored = fate
            # The old run's requests are void; the new run asks with other keys.
            record = answer(record, dict.fromkeys(waiting(record)))
            # The call counts as started until it waits again, because its approval may have been
            # used already. A call that another server handed over did not crash that server.
            is_blameless = stored.unstarted or (stored.kept and not record.runner)
            attempts = stored.attempts + (not is_blameless)
            record = with_call(record, attempts=attempts, unstarted=False)
            until = now + self.task_store.limits.lease_s
            return _replace(record, runner=_new_run_id(), leased_until=until)

        await self._load_offers(tenant, task_id)
        record = await self.task_store.change(tenant, task_id, take)
        if record is not None and stored is not None:
            _log.warning("task_restarted")
            self._run(record, stored)

    async def _load_offers(self, tenant: str, task_id: str) -> None:
        """Load the offers of the task's tenant."""
        if self._runner().registry.source is None:
            return
        if (record := await self.task_store.get(tenant, task_id)) is not None:
            with contextlib.suppress(msgspec.DecodeError):
                await self._runner().registry.prepare(decode_call(record.call).caller)

    def _run(self, record: TaskRecord, stored: StoredCall) -> None:
        def start(client: Client) -> asyncio.Task[Outcome]:
            call = Call(
                caller=stored.caller,
                name=record.tool,
                arguments=bytes(stored.arguments),
                request_id=stored.request_id,
                client=client,
                lasting=True,
                correlation=stored.correlation,
                peer=stored.peer,
                resumes=resumes,
            )
            return asyncio.create_task(perform(self._runner(), call))

        resumes = bool(stored.kept)
        self._manage(RunningTask(self.task_store, record, stored, start, set(), resumes=resumes))

    def _fate(self, record: TaskRecord) -> StoredCall | dict[str, Any]:
        """Return the call to run again, or the members of the record that say how it ended."""
        stored = None
        with contextlib.suppress(msgspec.DecodeError):
            stored = decode_call(record.call)
        if record.cancelled and not (stored and stored.kept):
            return CANCELLED
        if record.expires_at <= self.task_store.clock():
            return failed(INTERNAL_ERROR, OVER)
        if stored is None:
            # Stored by a release with another format.
            return failed(INTERNAL_ERROR, UNKNOWN_EFFECT)
        if self.is_out(stored.caller):
            return failed(INTERNAL_ERROR, REVOKED)
        try:
            effects = self._runner().registry.find(stored.caller, record.tool).effects
        except UnknownTool:
            return failed(INVALID_PARAMS, TOOL_MISSING)
        if not (stored.unstarted or stored.kept or effects.read_only or effects.idempotent):
            return failed(INTERNAL_ERROR, UNKNOWN_EFFECT)
        return stored if stored.attempts < ATTEMPTS else failed(INTERNAL_ERROR, STOPPED_OFTEN)

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

    def end(self, predicate: Callable[[TenantContext], bool]) -> None:
        """Stop the tasks of these callers in this process, because their access was revoked."""
        for running_task in self._running_tasks:
            if predicate(running_task.call.caller):
                running_task.stop("revoked")

    async def aclose(self) -> None:
        """Hand the tasks that still run after the drain over to other servers."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._running_tasks:
            within_s = max(self._until - asyncio.get_running_loop().time(), 0.0)
            await asyncio.wait(self._running_tasks.values(), timeout=within_s)
        for running_task in self._running_tasks:
            running_task.stop("handed over")
        if self._running_tasks:
            await asyncio.wait(self._running_tasks.values(), timeout=HAND_OVER_S)
        for managing in self._running_tasks.values():
            managing.cancel()


async def perform(runner: Runner, call: Call) -> Outcome:
    """Run a call in a task of the event loop, and keep a tool from ending the loop."""
    try:
        return await runner.run(call)
    except (SystemExit, KeyboardInterrupt) as exit_request:
        # Raised from a task, these would end the event loop and the server.
        unexpected = RuntimeError(f"the tool raised {type(exit_request).__name__}")
        return outcome_of(unexpected, call, runner.timeout_s)


def _log_failure(opening: asyncio.Future[None]) -> None:
    """Log the failure of a cancelled task."""
    if not opening.cancelled() and opening.exception() is not None:
        _log.warning("task_not_stored")


def _new_run_id() -> str:
    """Return a new id for one run of a task; knowing it gives no rights."""
    return secrets.token_hex(8)
