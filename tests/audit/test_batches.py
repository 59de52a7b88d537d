"""Which records are written together, and who waits for whom."""

import asyncio
from time import perf_counter
from typing import Any

import pytest

from gatepost.audit.writer import MAX_UNWRITTEN, AuditWriter
from gatepost.config.audit import AuditSettings
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import Link, RecordsByChain
from gatepost.storage.commit import CommitFuture
from gatepost.storage.memory.records import MemoryRecords
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.offers.offer import Call
from tests.audit.conftest import person

SOON_S = 10
LONG_MS = 60_000.0
FEW_TURNS = 8
"""Of the event loop; a record that waits for a timer is not there by then."""


class SlowWriter:
    """An audit writer whose database can be slow; `batches` are the sizes of its batches."""

    def __init__(self, batch_ms: float, **settings: Any) -> None:
        records = MemoryRecords()
        self.batches: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = asyncio.Event()
        """Whether it has begun to write."""
        audit_store = records.open_audit(None)
        self._write = audit_store.write
        audit_store.write = self.write  # type: ignore[method-assign]  # it stands before it
        self.writer = AuditWriter(
            records,
            KeyRing.ephemeral(),
            Redaction(),
            AuditSettings(batch_ms=batch_ms, **settings),
            listener=lambda tenant, rows: self.batches.append(len(rows)),
        )

    async def write(self, batch: RecordsByChain, link: Link) -> None:
        self.begun.set()
        await self.gate.wait()
        await self._write(batch, link)

    def end(self) -> CommitFuture:
        """Record the end of a call."""
        call = Call(caller=person("alice"), name="write", arguments=b"{}", request_id="r")
        return self.writer.record_end(call, perf_counter(), [], None)

    async def call(self, turns: int) -> None:
        """Make a call that takes *turns* turns of the loop."""
        await run_loop(turns)
        await self.end()


async def run_loop(times: int) -> None:
    """Let the event loop turn so often."""
    for _ in range(times):
        await asyncio.sleep(0)


async def test_a_single_call_does_not_wait_for_a_batch() -> None:
    """No other call is running, so the record is written at once."""
    writer = SlowWriter(LONG_MS)
    commit = writer.end()
    await run_loop(FEW_TURNS)

    assert commit.durable


@pytest.mark.parametrize("apart", [0, 1])
async def test_calls_that_end_shortly_after_each_other_share_a_batch(apart: int) -> None:
    """No call of the batch waits longer because there are many."""
    writer = SlowWriter(LONG_MS)
    async with asyncio.timeout(SOON_S):
        await asyncio.gather(*(writer.call(turns=at * apart) for at in range(40)))

    assert writer.batches == [40]


async def test_calls_that_end_during_a_write_share_the_next_batch() -> None:
    """They wait for the end of that write only."""
    writer = SlowWriter(LONG_MS)
    writer.gate.clear()
    first = writer.end()
    await run_loop(FEW_TURNS)
    others = [writer.end() for _ in range(5)]
    await run_loop(FEW_TURNS)
    before = [first.durable, *(entry.durable for entry in others)]
    writer.gate.set()
    await run_loop(2 * FEW_TURNS)

    assert before == [False] * 6
    assert all(entry.durable for entry in (first, *others))
    assert writer.batches == [1, 5]


async def test_a_batch_does_not_wait_for_an_endless_stream_of_calls() -> None:
    """A batch waits no longer than configured."""
    writer = SlowWriter(1.0)
    async with asyncio.timeout(SOON_S):
        while not writer.batches:
            writer.end()
            await run_loop(1)
    await writer.writer.aclose()

    assert len(writer.batches) >= 1


async def test_relaxed_calls_wait_only_behind_many_unwritten_records() -> None:
    """A killed process loses a bounded number of records, a clean stop none."""
    writer = SlowWriter(0.0, durability="relaxed")
    writer.gate.clear()
    answered = [writer.end().durable for _ in range(MAX_UNWRITTEN)]
    last = writer.end()
    waits = not last.durable
    writer.gate.set()
    await writer.writer.aclose()

    assert all(answered)
    assert waits
    assert last.durable
    assert writer.batches == [MAX_UNWRITTEN + 1]


async def test_an_event_is_durable_before_it_takes_effect_in_relaxed_mode() -> None:
    """A decision must not take effect without its record."""
    writer = SlowWriter(0.0, durability="relaxed")
    writer.gate.clear()
    event = asyncio.create_task(writer.writer.events.note("acme", "approval", outcome="approved"))
    async with asyncio.timeout(SOON_S):
        await writer.begun.wait()
        waits = not event.done()
        writer.gate.set()
        await event
    await writer.writer.aclose()

    assert waits
    assert writer.batches == [1]
