"""
Run the calls with idempotency keys in one process: run each once, or wait for another process.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import msgspec

from gatepost.execution.interruption import StopCause
from gatepost.policy.idempotency.idempotency_record import (
    NOT_RUN,
    TOO_LARGE_RECORD,
    CallOutcome,
    ConflictReason,
    IdempotentWork,
    RecordTemplate,
    judged,
    no_room,
    refused,
    replay,
)
from gatepost.policy.limits.stage import count_until
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.idempotency import IdempotencyRecord
from gatepost.storage.quota import QuotaExceeded, StorageQuota
from gatepost.storage.records import Records
from gatepost.storage.shared_store import SharedStore, TenantSharedStore, WakeUps
from gatepost.storage.stored_bytes import weight
from gatepost.tools.calls.redacted_call import RUNNING_CALLS, remark
from gatepost.tools.calls.runner import GRACE_S
from gatepost.tools.offers.offer import CallContext, Outcome, ToolFailure
from gatepost_authz.caller import TenantContext

log = logging.getLogger(__name__)

STILL_RUNNING = "The first call with this idempotency key is still running."
RETRY_AFTER_S = 5.0
CLOSING_S = 5.0

# Renewed twice before it expires, so that one renewal may fail.
LEASE_S = 15.0
RENEW_S = 5.0
RESERVED_BYTES = weight(TOO_LARGE_RECORD)
"""
The bytes that a new record reserves in the quota, so that there is room to store how its call
ended.
"""
# Notifications may be lost, so a waiting process polls this often.
POLL_S = 1.0
# Pauses between retries of storing an outcome while the database does not answer.
BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


class IdempotentExecution:
    """
    Run a call under its idempotency key, in a task of its own that outlives the caller's request.

    The record is durable before the tool runs, and the outcome is durable before it is returned.
    If the call has passed its concurrency limits before, it counts in them until the outcome is
    known.
    """

    def __init__(
        self,
        work: IdempotentWork,
        template: RecordTemplate,
        *,
        quota: StorageQuota,
        shared_store: TenantSharedStore,
        clock: Callable[[], float],
        on_end: Callable[[], object],
    ) -> None:
        self._work, self._template = work, template
        self.caller = work.call.caller
        self._quota, self._shared_store, self._clock, self._on_end = (
            quota,
            shared_store,
            clock,
            on_end,
        )
        self._store = quota.records.for_tenant(self.caller.tenant_id).idempotency
        self._topic = f"idempotency:{template.key.hex()}"
        loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[CallOutcome] = loop.create_future()
        count_until(self._outcome)
        self._is_stopped = False
        self._doing: asyncio.Task[Outcome] | None = None
        """The running call, once this process holds the record."""
        self._wake_ups = WakeUps(partial(shared_store.follow, self._topic))
        self._callers = 0
        self.leads = False
        """Whether this process ran the call, and not another one or an earlier run."""
        self._invoked = False
        self.task = asyncio.create_task(self._go())
        self.task.add_done_callback(self._over)

    async def wait(self, until: float, *, is_own: bool) -> CallOutcome | None:
        """
        Wait for the outcome until the loop time *until*; return None if there is none by then.

        If the *is_own* call runs here, wait until it ends: a person may have to decide first.
        """
        loop = asyncio.get_running_loop()
        self._callers += 1
        still_wanted = True
        try:
            while not self._outcome.done():
                remaining_s = None if is_own and self.leads else until - loop.time()
                if remaining_s is not None and remaining_s <= 0:
                    return None
                await asyncio.wait({self._outcome}, timeout=remaining_s)
            return self._outcome.result()
        except asyncio.CancelledError as cancelled:
            # A client with an idempotency key that lost its connection retries to get the answer; a
            # client that cancels its call does not (T-11, CX-03).
            still_wanted = StopCause.DISCONNECTED in cancelled.args
            raise
        finally:
            self._callers -= 1
            if not self._callers and not (still_wanted and self.leads):
                self.stop()

    def stop(self) -> None:
        """Stop the tool, or the waiting, because no caller needs the outcome."""
        if not self._is_stopped:
            self._is_stopped = True
            self._wake_ups.wake()
            if self._doing is not None:
                self._doing.cancel()

    async def _go(self) -> None:
        stored = await self._begin(self._new_record())
        if stored is None or await self._follow(stored):
            await self._lead()

    async def _begin(self, record: IdempotencyRecord) -> IdempotencyRecord | None:
        """Call `IdempotencyStore.begin`; ToolFailure if the quota has no room for the key."""
        now = self._clock()
        try:
            with await self._reserve(RESERVED_BYTES):
                return await self._store.begin(record, now=now)
        except QuotaExceeded as full:
            # Outcomes that are stored already are still returned.
            stored = await self._store.get(record.key)
            if stored is not None and stored.expires_at > now:
                return stored
            raise no_room(full) from None

    async def _reserve(self, size: int) -> AbstractContextManager[None]:
        if (owner := self._template.owner) is None:
            return nullcontext()
        return await self._quota.reserve(self.caller.tenant_id, owner, size)

    def _over(self, task: asyncio.Task[None]) -> None:
        """Release all waiting callers, even if a store failed."""
        error = None if task.cancelled() else task.exception()
        self._resolve(NOT_RUN if error is None else CallOutcome(error=error))

    def _resolve(self, ending: CallOutcome) -> None:
        if not self._outcome.done():
            self._outcome.set_result(ending)
            self._on_end()

    def _new_record(self) -> IdempotencyRecord:
        now, template = self._clock(), self._template
        return IdempotencyRecord(
            key=template.key,
            digest=template.digest,
            holder=template.holder,
            leased_until=now + LEASE_S,
            expires_at=now + template.running_s,
            owner=template.owner,
        )

    # Another process holds the record.

    async def _follow(self, stored: IdempotencyRecord) -> bool:
        """Wait for another process's outcome; return True if this process took over the record."""
        if self._is_finished(stored):
            return False
        async with self._wake_ups:
            while (current := await self._store.get(self._template.key)) is not None:
                if self._is_finished(current):
                    return False
                if current.leased_until <= self._clock():
                    if not self._may_take_over(current):
                        self._resolve(refused("unknown"))
                        return False
                    if await self._store.take_over(self._new_record(), expected=current):
                        return True
                    continue
                if self._is_stopped:
                    return False
                await self._wake_ups.wait(POLL_S)
        # Released, because nothing was done. Each waiting caller tries again.
        return False

    def _is_finished(self, stored: IdempotencyRecord) -> bool:
        if stored.expires_at <= self._clock():
            self._resolve(NOT_RUN)
        elif stored.digest != self._template.digest:
            self._resolve(refused("other arguments"))
        elif stored.outcome is not None:
            self._resolve(replay(stored.outcome))
        return self._outcome.done()

    def _may_take_over(self, stored: IdempotencyRecord) -> bool:
        after = self._template.unknown_s
        counts_no_more = after is not None and stored.leased_until + after <= self._clock()
        return self._work.repeatable or counts_no_more

    # This process holds the record.

    async def _lead(self) -> None:
        self.leads = True
        if self._is_stopped:
            await self._give_up(NOT_RUN)
            return
        doing = self._doing = asyncio.create_task(self._run_stages())
        running = (doing, self._work.redacted)
        RUNNING_CALLS[running] = None
        doing.add_done_callback(partial(RUNNING_CALLS.pop, running))
        try:
            await self._await_end(doing)
        finally:
            doing.cancel()  # no tool may run on without its outcome being stored
        ending, replayable = judged(
            self._work, doing, invoked=self._invoked, stopped=self._is_stopped
        )
        if replayable is None:
            await self._give_up(ending)
        else:
            await self._finish(ending, replayable)

    async def _await_end(self, doing: "asyncio.Task[Outcome]") -> None:
        """Renew the lease while the call runs."""
        while not doing.done():
            await asyncio.wait({doing}, timeout=RENEW_S)
            if not doing.done():
                await self._renew()

    async def _run_stages(self) -> Outcome:
        work, invoke = self._work, self._work.tool.invoke

        async def invoked(ctx: CallContext, arguments: Any) -> Outcome:
            self._invoked = True
            try:
                return await invoke(ctx, arguments)
            except (SystemExit, KeyboardInterrupt) as exit_request:
                # Raised out of a task, it would end the event loop and the server.
                raise RuntimeError("the tool asked the process to exit") from exit_request

        tool = msgspec.structs.replace(work.tool, invoke=invoked)
        return await work.redacted.redact(await work.proceed(work.call, tool, work.arguments))

    async def _renew(self) -> None:
        try:
            until = self._clock() + LEASE_S
            if await self._store.renew(self._template.key, self._template.holder, until):
                return
            stored = await self._store.get(self._template.key)
            if stored is not None and stored.holder != self._template.holder:
                # The database was unreachable for so long that another process took over the key
                # and may run the same call.
                self.stop()
        except StoreUnavailable:
            log.warning("lease_not_renewed", extra={"request_id": self._work.call.request_id})

    async def _finish(self, ending: CallOutcome, replayable: bytes) -> None:
        expires_at = self._clock() + self._template.kept_s
        template = self._template

        async def finish() -> None:
            try:
                with await self._reserve(len(replayable)):
                    await self._store.finish(template.key, template.holder, replayable, expires_at)
            except QuotaExceeded as full:
                # Store at least that the call was carried out, so that a retry does not run it
                # again. There is room, because the record of the key reserved as much.
                log.warning(
                    "outcome_not_stored",
                    extra={"tenant": self.caller.tenant_id, "limit": full.limit},
                )
                await self._store.finish(
                    template.key, template.holder, TOO_LARGE_RECORD, expires_at
                )

        await self._keep_trying(finish, ending)

    async def _give_up(self, ending: CallOutcome) -> None:
        template = self._template
        await self._keep_trying(lambda: self._store.release(template.key, template.holder), ending)

    async def _keep_trying(self, change: Callable[[], Any], ending: CallOutcome) -> None:
        """Change the record, then release the callers; during an outage, release them first."""
        for pause_s in (*BACKOFF_S, None):
            try:
                await change()
                break
            except StoreUnavailable:
                # The call has run; a 503 now would not undo it.
                self._resolve(ending)
                log.warning("result_not_stored", extra={"request_id": self._work.call.request_id})
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        self._resolve(ending)
        try:
            await self._shared_store.publish(self._topic, b"")
        except StoreUnavailable:
            log.debug("wake_up_not_sent")


class RunningCalls:
    """The running and waiting calls with idempotency keys in this process; survives a reload."""

    def __init__(
        self, records: Records, shared_store: SharedStore, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._shared_store, self._clock = shared_store, clock
        self.quota = StorageQuota(records, clock=clock)
        self._open: dict[tuple[bytes, bytes], IdempotentExecution] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def join(
        self, work: IdempotentWork, template: RecordTemplate
    ) -> tuple[Outcome, ConflictReason | None]:
        """
        Run the call or return its stored outcome; StillRunning if it still runs.

        The second value says why the idempotency key refused the call, or is None.
        """
        caller, loop = work.call.caller, asyncio.get_running_loop()
        # A waiting call must not outlast its token; a task may.
        allowed_s = max(caller.expires_at - self._clock(), 0.0) + GRACE_S
        until = loop.time() + (work.limit_s if work.call.lasting else min(work.limit_s, allowed_s))
        while True:
            call_key = (template.key, template.digest)
            run = self._open.get(call_key)
            is_own = run is None
            if run is None:
                run = self._begin(work, template)
            ending = await run.wait(until, is_own=is_own)
            if ending is None:
                raise StillRunning
            if not (ending.shared or is_own):
                continue
            if not (is_own and run.leads) and ending.is_from_tool:
                remark("replayed", "yes")
            if (outcome := ending.answer()) is not None:
                return outcome, ending.conflict

    def _begin(self, work: IdempotentWork, template: RecordTemplate) -> IdempotentExecution:
        tenant, call_key = work.call.caller.tenant_id, (template.key, template.digest)
        run = IdempotentExecution(
            work,
            template,
            shared_store=self._shared_store.for_tenant(tenant),
            quota=self.quota,
            clock=self._clock,
            on_end=lambda: self._open.pop(call_key, None),
        )
        self._open[call_key] = run
        self._tasks.add(run.task)
        run.task.add_done_callback(self._tasks.discard)
        return run

    def end(self, is_ended: Callable[[TenantContext], bool]) -> None:
        """Stop the running and waiting calls of these callers, even if no client waits."""
        for run in tuple(self._open.values()):
            if is_ended(run.caller):
                run.stop()

    async def aclose(self) -> None:
        """Wait a while for running calls; then stop them, and store that they were stopped."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSING_S)
        for run in tuple(self._open.values()):
            run.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSING_S)
        for task in tuple(self._tasks):
            task.cancel()


class StillRunning(ToolFailure):
    """The first call of a key takes longer than the second may wait."""

    def __init__(self) -> None:
        super().__init__("conflict", STILL_RUNNING, retry_after=RETRY_AFTER_S)
