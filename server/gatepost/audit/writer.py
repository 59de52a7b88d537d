"""The audit writer: gathers records, writes them in batches, and reports when they are durable."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter

from gatepost.audit.batches import (
    AlreadyWritten,
    Batch,
    DelayedRecords,
    Listener,
    RingLinker,
    WriteAttempt,
)
from gatepost.audit.events import AuditEvents
from gatepost.audit.record import AuditEntry
from gatepost.audit.record_builder import RecordBuilder
from gatepost.background import started
from gatepost.config.audit import AuditSettings
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import FIRST_WRITER
from gatepost.storage.commit import NO_COMMIT, CommitFuture
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records
from gatepost.tools.calls.redacted_call import RedactedCall
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.calls.stage import reason_of
from gatepost.tools.offers.offer import Call, Failure
from gatepost_authz.caller import TenantContext

FIRST_RETRY_S, RETRY_S = 0.05, 1.0
"""The first and the longest pause before a failed batch is retried."""
CLOSING_S = 5.0
"""How long a stop waits for the last records."""
RELAXED_S, MAX_UNWRITTEN = 0.02, 1_000
"""With `durability = "relaxed"`: the pause before a batch, and the records that may wait for it."""
# Not the shared generator of the process, which a tool may have seeded.
RANDOM = random.SystemRandom()

log = logging.getLogger(__name__)


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
        charge: Callable[[TenantContext, int], object] = lambda *_: None,
        observe: Callable[[float], object] = lambda *_: None,
        listener: Listener | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.refusing = self.failing = False
        """Whether calls are refused, and whether the last write failed, which is retried."""
        self.written = 0
        """Number of records written since the start."""
        self.number = FIRST_WRITER
        """The writer of the chains that new batches extend; see `NumberLease`."""
        self.events = AuditEvents(self._add, redaction, clock)
        self._refusals = self.events.refusals
        self._clock = clock
        self._charge, self._observe = charge, observe
        self._builder = RecordBuilder()
        loop = None if listener is None else asyncio.get_running_loop()
        self._linker = RingLinker(keyring, listener, loop)
        self.store = records.open_audit(self._linker)
        self._waiting: list[AuditEntry] = []
        self._commit = CommitFuture()
        """The commit of the records in `_waiting`."""
        self._batch: Batch | None = None
        """The batch that is being written; kept until it is durable."""
        self._delayed = DelayedRecords()
        self._closing = False
        self._drained = asyncio.Event()
        """Set when a closing writer has nothing left to write, or cannot write it."""
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
        self.events.apply(settings)
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

    def _begin(self, _: None = None) -> None:
        self._wake = None
        self._task = started("audit_writer", self._write)

    async def _write(self) -> None:
        """Write whenever records wait, and retry failed batches; release all calls at the end."""
        pause = FIRST_RETRY_S
        try:
            while True:
                if self._batch is None and not self._delayed.entries and not self._waiting:
                    # With nothing left to write, no attempt could end an outage.
                    self.refusing = self.failing = False
                    if self._closing:
                        self._drained.set()
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
                    self._drained.set()  # `aclose` then cancels this
                # Random, so that processes do not retry at the same moment.
                await asyncio.sleep(min(pause, RETRY_S) * RANDOM.uniform(0.5, 1.0))
                pause *= 2
        finally:
            if self._closing:
                self._drained.set()
                self._settle("the server stops")
            else:
                # An error instead of an outage; calls are treated alike, and the batch is retried.
                self._let_go("an unexpected error")

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
                if batch.fails(perf_counter() - began):
                    continue
                if not self.failing:
                    is_refusing = self.settings.on_failure == "refuse"
                    batch.report_outage(str(outage), is_refusing=is_refusing)
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
        seen_entries = 0
        while len(self._waiting) != seen_entries and perf_counter() < until:
            seen_entries = len(self._waiting)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        batch = Batch(self._waiting, self._commit)
        self._waiting, self._commit = [], CommitFuture()
        return batch

    async def _attempt(self, batch: Batch) -> WriteAttempt:
        """Return the attempt that has written the batch; raises StoreUnavailable."""
        if batch.attempts and (written := await batch.written(self.store)) is not None:
            return written
        if not batch.new_records:
            now = (self._clock(), perf_counter())
            built = await self._builder.built(batch.entries, now, self.settings)
            # Kept until the batch is durable: two attempts must not be in two chains.
            batch.new_records = {(tenant, self.number): new for tenant, new in built.items()}
        linker, earlier = self._linker, tuple(batch.attempts)
        attempt = WriteAttempt(linker.keyring, linker.last_heads, earlier, after=linker.committed)
        batch.attempts.append(attempt)
        try:
            await self.store.write(batch.new_records, attempt.link)
        except AlreadyWritten as already_written:
            return already_written.attempt
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
        built = await self._builder.built(entries, now, self.settings)
        del self._waiting[: len(entries)]
        self._delayed.add(built, 0 if self._batch is None else len(self._batch.entries))

    async def aclose(self) -> None:
        """Write the remaining records, within a time limit."""
        self._closing = True
        self._refusals.write()
        if (wake := self._wake) is not None:
            self._wake = None
            wake(None)
        if (task := self._task) is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), CLOSING_S)
            self._wake = None
            task.cancel()
            self._settle("the server stops")
            with suppress(StoreUnavailable):  # in that case another process links them
                await self.store.link_pending()
            await asyncio.sleep(0)  # for the listener
            self._wake = self._begin  # for records of what ends after this
        if lost_records := len(self) + (0 if self._batch is None else len(self._batch.entries)):
            log.error("audit_records_lost", extra={"records": lost_records})
