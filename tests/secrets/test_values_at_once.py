"""Calls that need the same secret at the same time read it once, and never too early."""

import asyncio

import pytest

from gatepost.secrets.cache import IDLE_S, SecretCache
from gatepost.secrets.hosts import BoundSecret
from gatepost.secrets.store import SecretStore
from gatepost.storage.entries import Entry
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.memory.records import MemoryEntries
from tests.secrets.test_vault import clock, records, secrets, vault
from tests.support.measuring import ManualClock

__all__ = ["clock", "records", "secrets", "vault"]  # fixtures

VALUE = "the-value-of-it"


async def test_calls_that_wait_for_a_secret_share_one_reading(
    secrets: SecretCache, vault: SecretStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call gets it, also if another one that waits leaves."""
    await vault.put("acme", "KEY", VALUE)
    readings: list[str] = []
    real = MemoryEntries.get

    async def noted(entries: MemoryEntries, key: str) -> Entry | None:
        readings.append(key)
        return await real(entries, key)

    monkeypatch.setattr(MemoryEntries, "get", noted)

    first, *others = [asyncio.create_task(secrets.value("acme", "KEY")) for _ in range(20)]
    await asyncio.sleep(0)
    first.cancel()

    assert await asyncio.gather(*others) == [BoundSecret(VALUE)] * 19
    assert readings == ["KEY"]


async def test_a_reading_serves_no_call_that_begins_later(
    secrets: SecretCache, vault: SecretStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret may have been deleted meanwhile."""
    await vault.put("acme", "KEY", VALUE)
    read, go_on = asyncio.Event(), asyncio.Event()
    real = MemoryEntries.get

    async def slow(entries: MemoryEntries, key: str) -> Entry | None:
        entry = await real(entries, key)
        read.set()
        await go_on.wait()
        return entry

    monkeypatch.setattr(MemoryEntries, "get", slow)
    earlier = asyncio.create_task(secrets.value("acme", "KEY"))
    await read.wait()
    await vault.delete("acme", "KEY")
    later = asyncio.create_task(secrets.value("acme", "KEY"))
    await asyncio.sleep(0)
    go_on.set()

    assert await asyncio.gather(earlier, later) == [BoundSecret(VALUE), None]


async def test_an_outage_fails_only_the_calls_that_wait_for_its_reading(
    secrets: SecretCache, vault: SecretStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call reads again."""
    await vault.put("acme", "KEY", VALUE)

    async def outage(entries: MemoryEntries, key: str) -> Entry | None:
        raise StoreUnavailable("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryEntries, "get", outage)
        asking = (secrets.value("acme", "KEY") for _ in range(3))
        for result in await asyncio.gather(*asking, return_exceptions=True):
            assert isinstance(result, StoreUnavailable)

    assert await secrets.value("acme", "KEY") == BoundSecret(VALUE)


async def test_a_tenant_that_asks_for_a_secret_is_not_forgotten_before_the_reading(
    secrets: SecretCache, vault: SecretStore, clock: ManualClock
) -> None:
    """Else a tool would have a value that is not redacted."""
    await vault.put("acme", "KEY", VALUE)
    await secrets.load("acme")
    clock.now += IDLE_S

    asking = asyncio.create_task(secrets.value("acme", "KEY"))
    await asyncio.sleep(0)
    await secrets.take_up(0)

    assert await asking == BoundSecret(VALUE)
    assert VALUE in secrets.known_secrets("acme").values.values()
