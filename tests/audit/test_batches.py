"""Which records are written together, and who waits for whom."""

import asyncio
from collections.abc import Callable
from time import perf_counter

import pytest

from gatepost.audit.journal import Journal
from gatepost.audit.settings import AuditSettings
from gatepost.keyring import KeyRing
from gatepost.pledge import Pledge
from gatepost.stores.audit import Batch, Link, Row
from gatepost.stores.memory.records import MemoryRecords
from gatepost.tools.api import Call
from gatepost.tools.redaction import Redaction
from tests.audit.shelf import person

SOON_S = 10
LONG_MS = 60_000.0
FEW_TURNS = 8
"""Of the event loop; a record that waits for a timer is not there by then."""


class Office:
    """A journal, how many records each batch had, and a database that can be slow."""

    def __init__(self, batch_ms: float) -> None:
        records = MemoryRecords()
        self.batches: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self._write = records.scribe.write
        records.scribe.write = self.write  # type: ignore[method-assign]  # it stands before it
        settings = AuditSettings(batch_ms=batch_ms)
        self.journal = Journal(records, KeyRing.ephemeral(), Redaction(), settings)
        self.journal.listeners.append(lambda tenant, rows: self.batches.append(len(rows)))

    async def write(self, make: Callable[[], Batch], link: Link) -> dict[str, list[Row]]:
        await self.gate.wait()
        return await self._write(make, link)

    def end(self) -> Pledge:
        """A call has ended."""
        call = Call(caller=person("alice"), name="write", arguments=b"{}", request_id="r")
        return self.journal.ended(call, perf_counter(), [], None)

    async def call(self, turns: int) -> None:
        """A call that takes so many turns."""
        await turn(turns)
        await self.end()


async def turn(times: int) -> None:
    """Let the event loop turn so often."""
    for _ in range(times):
        await asyncio.sleep(0)


async def test_whoever_is_alone_waits_for_nobody() -> None:
    """However long a record may wait for others, there are none."""
    office = Office(LONG_MS)
    pledge = office.end()
    await turn(FEW_TURNS)

    assert pledge.kept


@pytest.mark.parametrize("apart", [0, 1])
async def test_calls_that_end_one_after_another_are_written_together(apart: int) -> None:
    """As a loop ends them that has many to do: none of them waits longer for being one of many."""
    office = Office(LONG_MS)
    async with asyncio.timeout(SOON_S):
        await asyncio.gather(*(office.call(turns=at * apart) for at in range(40)))

    assert office.batches == [40]


async def test_what_ends_during_a_write_is_written_together() -> None:
    """They wait for its end, and for nothing else."""
    office = Office(LONG_MS)
    office.gate.clear()
    first = office.end()
    await turn(FEW_TURNS)
    others = [office.end() for _ in range(5)]
    await turn(FEW_TURNS)
    before = [first.kept, *(one.kept for one in others)]
    office.gate.set()
    await turn(2 * FEW_TURNS)

    assert before == [False] * 6
    assert all(one.kept for one in (first, *others))
    assert office.batches == [1, 5]


async def test_nobody_waits_for_an_endless_stream_of_calls() -> None:
    """Only as long as is configured."""
    office = Office(1.0)
    async with asyncio.timeout(SOON_S):
        while not office.batches:
            office.end()
            await turn(1)
    await office.journal.aclose()

    assert len(office.batches) >= 1
