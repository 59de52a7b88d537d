"""Server processes that share a database without a shared store count limits separately."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gatepost.config.settings import Config, StorageSettings
from gatepost.runtime.other_processes import reporting_others
from gatepost.storage.leases import AUDIT_WRITER, NumberLease
from gatepost.storage.memory.records import MemoryRecords, MemoryTenant
from tests.support.measuring import capture_logs

LOOKS = 6


class NumberedProcess:
    """A server process, which has a number."""

    number = 1


class PolledRecords(MemoryRecords):
    """Records that count how often they were looked at."""

    def __init__(self) -> None:
        self.looks, self.looked = 0, asyncio.Event()
        super().__init__()

    def for_tenant(self, tenant: str) -> MemoryTenant:
        """Implement `Records`."""
        self.looks += 1
        self.looked.set()
        return super().for_tenant(tenant)

    async def looked_at(self, times: int) -> None:
        """Wait until they were looked at so many times from now on."""
        until = self.looks + times
        async with asyncio.timeout(20):
            while self.looks < until:
                self.looked.clear()
                await self.looked.wait()


@asynccontextmanager
async def serving(records: MemoryRecords) -> AsyncIterator[None]:
    async with NumberLease(records, AUDIT_WRITER, NumberedProcess(), clock=time.time).running():
        yield


def config(shared: str = "") -> Config:
    return Config(
        resource="http://127.0.0.1:1/mcp",
        mode="development",
        storage=StorageSettings(database="memory:", shared=shared),
    )


async def test_two_servers_without_a_shared_store_are_reported_once() -> None:
    """The event names the setting to change."""
    records = PolledRecords()
    with capture_logs() as logs:
        async with (
            serving(records),
            serving(records),
            reporting_others(records, config(), every_s=0.001),
        ):
            await records.looked_at(LOOKS)

    assert [(entry["event"], entry["processes"], entry["setting"]) for entry in logs] == [
        ("limits_counted_separately", 2, "storage.shared")
    ]


@pytest.mark.parametrize(("servers", "shared"), [(1, ""), (2, "redis://127.0.0.1:1/0")])
async def test_one_server_and_workers_with_a_shared_store_are_not_reported(
    servers: int, shared: str
) -> None:
    """Limits are counted together."""
    records = PolledRecords()
    with capture_logs() as logs:
        async with serving(records), reporting_others(records, config(shared), every_s=0.001):
            if servers == 1:
                await records.looked_at(LOOKS)
            else:
                async with serving(records):
                    await asyncio.sleep(0)

    assert logs == []


async def test_a_server_that_replaces_stopping_ones_is_not_reported() -> None:
    """Each of them is gone at the next look."""
    records = PolledRecords()
    with capture_logs() as logs:
        async with serving(records), reporting_others(records, config(), every_s=0.2):
            for _ in range(2):
                async with serving(records):
                    await records.looked_at(1)

    assert logs == []
