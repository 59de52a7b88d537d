"""The audit writer: gathers records, writes them in batches, and reports when they are durable."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Context
from time import perf_counter

from gatepost.audit.batches import (
    AlreadyWritten,
    Batch,
    DelayedRecords,
    Listener,
    RingLinker,
    WriteAttempt,
)
from gatepost.audit.record import (
    AuditEntry,
    RecordBody,
    RecordedPerson,
    RecordKind,
    encode,
    person_of,
    text,
)
from gatepost.audit.record_builder import RecordBuilder, new_record
from gatepost.audit.refusals import MISMATCH, RefusalCounter
from gatepost.config.audit import AuditSettings
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import FIRST_WRITER
from gatepost.storage.commit import CommitFailed, CommitFuture, committed
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records
from gatepost.tools.api import Call, Failure
from gatepost.tools.redacted_call import RedactedCall
from gatepost.tools.redaction import Redaction
from gatepost.tools.stage import reason_of
from gatepost_authz.caller import TenantContext

FIRST_RETRY_S, RETRY_S = 0.05, 1.0
"""The first and the longest pause before a failed batch is retried."""
QUICK_S = 1.0
"""A first failure that is faster than this is retried at once."""
CLOSING_S = 5.0
"""How long a stop waits for the last records."""
RELAXED_S, MAX_UNWRITTEN = 0.02, 1_000
"""With `durability = "relaxed"`: the pause before a batch, and the records that may wait for it."""
NO_COMMIT = committed()
"""What the answer to a call waits for if it waits for no commit."""
# Not the shared generator of the process, which a tool may have seeded.
RANDOM = random.SystemRandom()

log = logging.getLogger("gatepost.audit")


def _ignore(*_: object) -> None:
    """Do nothing."""


class AuditWriter:
    """
    Writes the audit records of one process.

    Each call adds a tuple. Records are built, redacted, hashed and written in batches (group
    commit), in another thread if the store has one. All calls of a batch wait for one commit. While
    the database does not answer, records wait, and `audit.on_failure` says whether calls go on.

    After each commit *observe* is called with its duration in seconds, *charge* with the caller and
    the bytes of each record that a caller has caused, and *listener* with the records. They must
    not block or raise. With a *listener*, the writer is made in the event loop that calls it.
    """

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        records: Records,
        keyring: KeyRing,
        redaction: Redaction,
        settings: AuditSettings,
        *,
        charge: Callable[[TenantContext, int], object] = _ignore,
        observe: Callable[[float], object] = _ignore,
        listener: Listener | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.refusing = False
        self.failing = False
        """Whether the last write failed; it is retried until it succeeds."""
        self.written = 0
        """Number of records written since the start."""
        self.number = FIRST_WRITER
        """The writer of the chains that new batches extend; see `NumberLease`."""
        self._records, self._redaction, self._clock = records, redaction, clock
        self._charge, self._observe = charge, observe
        self._builder = RecordBuilder()
        loop = None if listener is None else asyncio.get_running_loop()
        self._linker = RingLinker(keyring, listener, loop)
        records.audit.attach(self._linker)
        self._waiting: list[AuditEntry] = []
        self._commit = CommitFuture()
        """The commit of the records in `_waiting`."""
        self._batch: Batch | None = None
        """The batch that is being written; kept until it is durable."""
        self._delayed = DelayedRecords()
        self._refusals = RefusalCounter(self._add, clock)
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._wake: Callable[[None], object] | None = self._begin
        """The function that makes the task write; None while it writes."""
        self.apply(settings)

    def __len__(self) -> int:
        """Return the number of records that wait for the next commit."""
        return len(self._delayed.entries) + len(self._waiting)

    def apply(self, settings: AuditSettings) -> None:
        """Apply these settings from now on."""
        self.settings = settings
        self._refusals.peers = settings.peers
        self._batch_s = settings.batch_ms / 1000
        self._most_unwritten = MAX_UNWRITTEN if settings.durability == "relaxed" else 0

    def record_end(
        self,
        call: Call,
        began: float,
        redacted_calls: list[RedactedCall],
        ending: Failure | BaseException | None,
    ) -> CommitFuture:
        """Record a call that has ended; implements `Recorder`."""
        if ending is None:
            self._waiting.append((call, began, perf_counter(), redacted_calls, None))
            if (wake := self._wake) is not None:
                self._wake = None
                wake(None)
        else:
            reason = reason_of(ending) if isinstance(ending, BaseException) else ending
            if self._refusals.add(entry := (call, began, perf_counter(), redacted_calls, reason)):
                return NO_COMMIT
            self._add(entry)
        return self._commit if len(self._waiting) > self._most_unwritten else NO_COMMIT

    def _add(self, entry: AuditEntry) -> CommitFuture:
        self._waiting.append(entry)
        if (wake := self._wake) is not None:
            self._wake = None
            wake(None)
        return self._commit

    async def note(  # noqa: PLR0913  # each of them is a field of the record
        self,
        tenant: str,
        kind: RecordKind,
        *,
        outcome: str,
        caller: TenantContext | None = None,
        about: RecordedPerson | None = None,
        tool: str = "",
        approval: str = "",
        request_id: str = "",
        peer: str = "",
        details: Mapping[str, str] | None = None,
        private: Mapping[str, str] | None = None,
    ) -> None:
        """
        Record an event that is not a call; it is durable when this returns.

        *caller* did it, from the address *peer*; it concerns *about*. These can be erased, as can
        the *private* texts (`reason`, `arguments`…). *details* cannot, so they must not contain
        personal data. Texts are redacted here. Raises StoreUnavailable.
        """
        if not self.settings.enabled:
            return
        clean = self._redaction.of(tenant).clean
        side = {name: text(clean(value)) for name, value in (private or {}).items()}
        if about is not None:
            side["about"] = encode(about)
        if caller is not None:
            side["caller"] = encode(person_of(caller, peer if self.settings.peers else ""))
        body = RecordBody(
            at=int(self._clock() * 1000),
            kind=kind,
            tenant=tenant,
            tool=tool,
            outcome=outcome,
            approval=approval,
            request_id=request_id,
            subject_kind=caller.subject_kind if caller else "",
            shared_audience=caller.shared_audience if caller else False,
            details={name: text(clean(value)) for name, value in (details or {}).items()},
        )
        try:
            await self._add((tenant, new_record(body, side), caller))
        except CommitFailed as failure:
            raise StoreUnavailable(f"it could not be put on record: {failure}") from None

    async def differs(self, call: Call, claimed: str) -> None:
        """Record a call that claimed another tenant; repeated ones of a caller are counted."""
        if not self.settings.enabled:
            return
        caller, reason = call.caller, self._redaction.of(call.caller.tenant_id).clean(claimed)
        if not self._refusals.count(MISMATCH, call, perf_counter(), reason):
            await self.note(
                caller.tenant_id,
                "tenant_mismatch",
                outcome="refused",
                caller=caller,
                request_id=call.request_id,
                peer=call.peer,
                private={"claimed": claimed},
            )

    def _begin(self, _: None = None) -> None:
        self._wake = None
        # The task and its callback keep their context for the life of the process: that of the call
        # with the first record would keep the call in memory.
        context = Context()
        self._task = asyncio.get_running_loop().create_task(self._write(), context=context)
        self._task.add_done_callback(self._ended, context=context)

    async def _write(self) -> None:
        """Write whenever records wait, until the writer is closed; retry failed batches."""
        pause = FIRST_RETRY_S
        try:
            while True:
                if self._batch is None and not self._delayed.entries and not self._waiting:
                    # With nothing left to write, no attempt could end an outage.
                    self.refusing = self.failing = False
                    if self._closing:
                        return
                    idle = asyncio.get_running_loop().create_future()
                    self._wake = idle.set_result
                    await idle
                    continue
                if (outage := await self._write_batch()) is None:
                    pause = FIRST_RETRY_S
                    continue
                self._let_go(outage)
                await self._delay()
                if self._closing:
                    return
                # Random, so that processes do not retry at the same moment.
                await asyncio.sleep(min(pause, RETRY_S) * RANDOM.uniform(0.5, 1.0))
                pause *= 2
        finally:
            self._wake = self._begin

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Handle the end of the task: release all calls, and keep all records."""
        if self._closing:
            self._settle("the server stops")
        elif not task.cancelled() and (error := task.exception()) is not None:
            # An error instead of an outage; calls are treated alike, and the batch is retried.
            log.error("audit_stopped", exc_info=error)
            self._let_go(type(error).__name__)
            asyncio.get_running_loop().call_later(RETRY_S, self._resume)

    def _resume(self) -> None:
        if self._wake == self._begin and not self._closing:
            self._begin()

    async def _write_batch(self) -> str | None:
        """
        Write the batch; return the reason if that fails.

        Any connection may be lost, so a quick failure is retried once on another connection while
        the calls wait.
        """
        batch = self._batch
        if batch is None:
            batch = self._batch = await self._next_batch()
        while True:
            began = perf_counter()
            try:
                attempt = await self._attempt(batch)
            except StoreUnavailable as outage:
                quick = not batch.failed and perf_counter() - began < QUICK_S
                batch.failed = True
                if quick:
                    continue
                if not self.failing:
                    log.error(
                        "audit_not_written",
                        extra={
                            "records": len(batch.entries),
                            "reason": str(outage),
                            "refusing": self.settings.on_failure == "refuse",
                        },
                    )
                return str(outage)
            self._durable(batch, attempt, perf_counter() - began)
            return None

    async def _next_batch(self) -> Batch:
        """Return the next batch; records that an outage has delayed come first."""
        if self._delayed.entries:
            return Batch(self._delayed.take(self._clock()), CommitFuture())
        # Wait for calls that are about to end, while any ends in two turns of the event loop: a
        # call that arrives in the first turn begins in the second. A single call does not wait; a
        # timer would split calls that end together, or leave the processor idle.
        if self._most_unwritten and not self._closing:
            await asyncio.sleep(RELAXED_S)
        until = perf_counter() + self._batch_s
        seen = 0
        while len(self._waiting) != seen and perf_counter() < until:
            seen = len(self._waiting)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        batch = Batch(self._waiting, self._commit)
        self._waiting, self._commit = [], CommitFuture()
        return batch

    async def _attempt(self, batch: Batch) -> WriteAttempt:
        """Return the attempt that has written the batch; raises StoreUnavailable."""
        if batch.attempts and (done := await batch.written(self._records)) is not None:
            return done
        if not batch.new_records:
            now = (self._clock(), perf_counter())
            made = await self._builder.built(batch.entries, now, self.settings)
            # Kept until the batch is durable: two attempts must not be in two chains.
            batch.new_records = {(tenant, self.number): new for tenant, new in made.items()}
        linker, earlier = self._linker, tuple(batch.attempts)
        attempt = WriteAttempt(linker.keyring, linker.known, earlier, after=linker.committed)
        batch.attempts.append(attempt)
        try:
            await self._records.audit.write(batch.new_records, attempt.link)
        except AlreadyWritten as known:
            return known.attempt
        return attempt

    def _durable(self, batch: Batch, attempt: WriteAttempt, took: float) -> None:
        """Release the calls of a durable batch, and report it."""
        if self.failing:
            log.info("audit_written_again")
        if self._commit.durable:
            # With `go_on`, calls did not wait during the outage; from now on they do.
            self._commit = CommitFuture()
        self.refusing = self.failing = False
        self._batch = None
        sizes = self._builder.sizes
        while sizes:
            caller, size = sizes.popleft()
            self._charge(caller, size)
        batch.commit.resolve()
        self._observe(took)
        self.written += sum(map(len, batch.new_records.values()))
        if attempt.heads:  # a store that links records later has not done it yet
            attempt.committed()

    def _let_go(self, reason: str) -> None:
        """Release the waiting calls; their records are kept until the database answers."""
        goes_on = self.settings.on_failure == "go_on"
        self.refusing, self.failing = not goes_on, True
        self._settle(None if goes_on else reason)
        if not goes_on:
            self._commit = CommitFuture()

    def _settle(self, reason: str | None) -> None:
        """Mark the commits that calls wait for as done, or as failed with *reason*."""
        for commit in (self._commit, *([self._batch.commit] if self._batch else [])):
            if not commit.durable and commit.reason is None:
                commit.resolve(reason)

    async def _delay(self) -> None:
        """Build the waiting records, to be written after the batch; keep as many as fit."""
        entries, now = self._waiting[:], (self._clock(), perf_counter())
        made = await self._builder.built(entries, now, self.settings)
        del self._waiting[: len(entries)]
        self._delayed.add(made, 0 if self._batch is None else len(self._batch.entries))

    async def aclose(self) -> None:
        """Write the remaining records, within a time limit."""
        self._closing = True
        self._refusals.write()
        if (wake := self._wake) is not None:
            self._wake = None
            wake(None)
        if (task := self._task) is not None:
            await asyncio.wait([task], timeout=CLOSING_S)
            task.cancel()
            with suppress(StoreUnavailable):  # in that case another process links them
                await self._records.audit.link_pending()
            await asyncio.sleep(0)  # for the listener
        if left := len(self) + (0 if self._batch is None else len(self._batch.entries)):
            log.error("audit_records_lost", extra={"records": left})
