"""Readings of the secrets of many tenants, which share statements."""

import asyncio
from collections.abc import Collection, Mapping, Sequence

import pytest

from gatepost.secrets.cache import CACHED_S, SecretCache
from gatepost.secrets.hosts import BoundSecret
from gatepost.secrets.store import SecretStore
from gatepost.storage.entries import Entry
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.memory.records import MemoryRecords
from tests.secrets.test_vault import clock, poll_once, records, secrets, vault
from tests.support.measuring import ManualClock

__all__ = ["clock", "records", "secrets", "vault"]  # fixtures

FIRST_VALUE, SECOND_VALUE = "the-first-value", "the-second-value"


@pytest.fixture
def other_process_store(records: MemoryRecords, vault: SecretStore) -> SecretStore:
    """Return the store of another process with the same secrets."""
    return SecretStore(records, vault.keyring, clock=lambda: 2_000.0)


async def secrets_of(secrets: SecretCache, tenant: str) -> Mapping[str, str]:
    """Return the secrets of the tenant as before a call of a tool."""
    await (asyncio.sleep(0) if secrets.loaded(tenant) else secrets.load(tenant))
    return own_secrets(secrets, tenant)


def own_secrets(secrets: SecretCache, tenant: str) -> Mapping[str, str]:
    """Return the tenant's own secrets, without those of the server."""
    values = secrets.known_secrets(tenant).values
    return {name: value for name, value in values.items() if not name.startswith("GATEPOST")}


def readings(monkeypatch: pytest.MonkeyPatch, refused: str = "") -> list[set[str]]:
    """Record the tenants of each reading from now on; only that of *refused* fails."""
    requests: list[set[str]] = []
    real = SecretStore.sealed

    async def counted(
        vault: SecretStore, tenants: Collection[str]
    ) -> Mapping[str, Sequence[Entry]]:
        requests.append(set(tenants))
        await asyncio.sleep(0)
        if requests[-1] == {refused}:
            raise StoreUnavailable("not now")
        return await real(vault, tenants)

    monkeypatch.setattr(SecretStore, "sealed", counted)
    return requests


async def test_tenants_with_concurrent_first_calls_share_a_reading(
    secrets: SecretCache, vault: SecretStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tenants that come during a reading share the next one; each gets its own secrets."""
    requests = readings(monkeypatch, refused="d")
    await vault.put("a", "KEY", FIRST_VALUE)
    await vault.put("b", "KEY", SECOND_VALUE)
    first = [asyncio.create_task(secrets_of(secrets, tenant)) for tenant in "abc"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    other_load = asyncio.create_task(secrets_of(secrets, "d"))
    loaded = await asyncio.gather(*first)

    assert loaded == [{"KEY": FIRST_VALUE}, {"KEY": SECOND_VALUE}, {}]
    with pytest.raises(StoreUnavailable, match="not now"):
        await other_load
    assert requests == [{"a", "b", "c"}, {"d"}]


async def test_active_tenants_are_reloaded_together(
    records: MemoryRecords,
    secrets: SecretCache,
    other_process_store: SecretStore,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are read after the interval or a change; idle tenants wait for their next call."""
    for tenant in ("acme", "globex", "idle"):
        await other_process_store.put(tenant, "KEY", FIRST_VALUE)
        await secrets_of(secrets, tenant)
    assert secrets.loaded("acme")
    assert secrets.loaded("globex")
    clock.now += CACHED_S - 1
    requests = readings(monkeypatch)
    await poll_once(records, secrets)
    assert requests == [{"acme", "globex"}]

    clock.now += 2
    assert secrets.loaded("acme")
    assert secrets.loaded("idle") is None
    await other_process_store.put("globex", "KEY", SECOND_VALUE)
    await poll_once(records, secrets)
    assert own_secrets(secrets, "globex") == {"KEY": FIRST_VALUE}
    assert secrets.loaded("acme")


async def test_a_shared_reading_does_not_drop_a_secret_that_a_tool_got(
    records: MemoryRecords,
    secrets: SecretCache,
    other_process_store: SecretStore,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tool got the secret while the reading ran."""
    await secrets_of(secrets, "acme")
    assert secrets.loaded("acme")
    clock.now += CACHED_S
    real = SecretStore.sealed

    async def slow(vault: SecretStore, tenants: Collection[str]) -> Mapping[str, Sequence[Entry]]:
        slow_reading = await real(vault, tenants)
        await other_process_store.put("acme", "KEY", FIRST_VALUE)
        assert await secrets.value("acme", "KEY") == BoundSecret(FIRST_VALUE)
        return slow_reading

    monkeypatch.setattr(SecretStore, "sealed", slow)
    await poll_once(records, secrets)

    assert own_secrets(secrets, "acme") == {"KEY": FIRST_VALUE}
