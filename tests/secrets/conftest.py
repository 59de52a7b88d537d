"""A vault over records in memory, and a process's shelf before it."""

import pytest

from gatepost.keyring import KeyRing
from gatepost.secrets.shelf import Secrets
from gatepost.secrets.vault import Vault
from gatepost.stores.memory.records import MemoryRecords


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def records() -> MemoryRecords:
    return MemoryRecords()


@pytest.fixture
def vault(records: MemoryRecords) -> Vault:
    return Vault(records, KeyRing.ephemeral(), clock=lambda: 1_000.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def secrets(vault: Vault, clock: Clock) -> Secrets:
    return Secrets(vault, clock=clock)
