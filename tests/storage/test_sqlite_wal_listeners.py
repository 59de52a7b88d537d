"""Listeners of processes that write to one chain, because the lease of a writer has ended early."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gatepost.audit.batches import RingLinker
from gatepost.storage.audit import AuditRow
from gatepost.storage.sql import sqlite_audit_writer as module
from gatepost.storage.sql.records import SqlRecords, opened
from tests.storage.test_audit import linked, new_record
from tests.storage.test_sqlite_wal import LONG_WAIT_S, RING

Pair = tuple["ListeningProcess", "ListeningProcess"]


class ListeningProcess:
    """A process, the times of the records that it wrote, and of those that its listener heard."""

    def __init__(self, records: SqlRecords) -> None:
        self.wrote: list[int] = []
        self.heard: list[int] = []
        self.chains: list[tuple[int, int]] = []
        loop = asyncio.get_running_loop()
        self.store = records.open_audit(RingLinker(RING, self._hear, loop))

    async def write(self, *times: int) -> None:
        """Write a batch with records of these times; times differ."""
        await self.store.write({("acme", 1): [new_record(at) for at in times]}, linked)
        self.wrote += times

    async def merge(self) -> None:
        """Merge all that is in the write-ahead logs, and let the listener hear of it."""
        await self.store.link_pending()
        await asyncio.sleep(0)

    def _hear(self, tenant: str, rows: Sequence[AuditRow]) -> None:
        self.heard += [row.at for row in rows]
        self.chains += [(row.at, row.number) for row in rows]


@pytest.fixture
async def two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    """Yield two processes with one file, which merge only when a test says so."""
    monkeypatch.setattr(module, "IDLE_S", LONG_WAIT_S)
    monkeypatch.setattr(module, "MERGED_S", LONG_WAIT_S)
    async with AsyncExitStack() as stack:
        databases = []
        for _ in range(2):
            records = await opened(f"sqlite:///{tmp_path / 'records.db'}")
            stack.push_async_callback(records.aclose)
            databases.append(ListeningProcess(records))
        yield databases[0], databases[1]


async def test_each_listener_hears_the_records_of_its_process(two_processes: Pair) -> None:
    """It gets each record once, whichever process merged it."""
    first, other = two_processes
    await first.write(1, 2)
    await other.write(3)
    await other.merge()
    await other.write(4)
    await other.merge()
    await first.merge()

    assert first.heard == first.wrote == [1, 2]
    assert other.heard == other.wrote == [3, 4]


async def test_each_listener_hears_its_own_records_of_a_known_chain(two_processes: Pair) -> None:
    """Records of two processes are mixed behind the last record that either one knows."""
    first, other = two_processes
    await first.write(1)
    await first.merge()
    await other.write(2, 3)
    await first.write(4)
    await other.merge()
    await first.write(5)
    await first.merge()
    await other.merge()

    assert first.heard == first.wrote == [1, 4, 5]
    assert other.heard == other.wrote == [2, 3]


async def test_a_listener_hears_the_numbers_that_the_records_have_in_the_chain(
    two_processes: Pair,
) -> None:
    """An export could not be verified with others."""
    first, other = two_processes
    await first.write(1, 2)
    await other.write(3)
    await other.merge()
    await other.write(4)
    await first.merge()
    await other.merge()
    rows = await first.store.tenant_log("acme").chain(1).rows(0, 9)

    assert sorted(first.chains + other.chains) == sorted((row.at, row.number) for row in rows)
