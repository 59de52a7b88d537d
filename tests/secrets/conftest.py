"""A vault over records in memory, and the cache of a process before it."""

import pytest

from gatepost.secrets.cache import SecretCache
from gatepost.secrets.keyring import KeyRing
from gatepost.secrets.store import SUBJECT, SecretStore
from gatepost.storage.change_poller import ChangePoller
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.shared_store import MemorySharedStore
from tests.support.measuring import ManualClock


async def poll(records: MemoryRecords, secrets: SecretCache) -> None:
    """Poll for changes once, as a server does."""
    poller = ChangePoller(records, MemorySharedStore())
    async with poller.polling({SUBJECT: secrets.take_up}):
        return


async def changes(records: MemoryRecords) -> int:
    """The counter of changes, which other processes look at."""
    return (await records.changes([SUBJECT])).get(SUBJECT, 0)


@pytest.fixture
def records() -> MemoryRecords:
    return MemoryRecords()


@pytest.fixture
def vault(records: MemoryRecords) -> SecretStore:
    return SecretStore(records, KeyRing.ephemeral(), clock=lambda: 1_000.0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000.0)


@pytest.fixture
def secrets(vault: SecretStore, clock: ManualClock) -> SecretCache:
    return SecretCache(vault, clock=clock)
