"""A process caches its tenants' secrets for redaction, and gives tools no outdated one."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest

from gatepost.secrets.cache import CACHED_S, IDLE_S, REPLACED_S, RETRY_S, SecretCache
from gatepost.secrets.hosts import BoundSecret
from gatepost.secrets.keyring import KeyRing, create, rotate
from gatepost.secrets.names import SecretRefused
from gatepost.secrets.store import SUBJECT, SecretStore, SecretUnreadable
from gatepost.storage import change_poller
from gatepost.storage.change_poller import ChangePoller
from gatepost.storage.entries import Entry
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.memory.records import MemoryEntries, MemoryRecords
from gatepost.storage.shared_store import MemorySharedStore
from tests.secrets.test_vault import clock, poll_once, records, secrets, vault
from tests.support.measuring import ManualClock

__all__ = ["clock", "records", "secrets", "vault"]  # fixtures

KEYS: set[str] = set()
FIRST_VALUE, SECOND_VALUE = "the-first-value", "the-second-value"


@pytest.fixture(autouse=True)
def keys(vault: SecretStore) -> None:
    """Collect the keys of this test's ring."""
    KEYS.clear()
    KEYS.update(key.text for key in vault.keyring.keys)


@pytest.fixture
def other_process_store(records: MemoryRecords, vault: SecretStore) -> SecretStore:
    """Return the store of another process with the same secrets."""
    return SecretStore(records, vault.keyring, clock=lambda: 2_000.0)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record every reading of the store from now on."""
    seen: list[str] = []

    async def get(self: MemoryEntries, key: str) -> Entry | None:
        seen.append(key)
        return self.records.get(key)

    async def all_(self: MemoryEntries) -> list[Entry]:
        seen.append("*")
        return [*self.records.values()]

    monkeypatch.setattr(MemoryEntries, "get", get)
    monkeypatch.setattr(MemoryEntries, "all", all_)
    return seen


async def secrets_of(secrets: SecretCache, tenant: str = "acme") -> Mapping[str, str]:
    """Return the secrets of the tenant as before a call of a tool."""
    return without_ring_keys((secrets.loaded(tenant) or await secrets.load(tenant)).values)


def cached_secrets(secrets: SecretCache, tenant: str | None) -> Mapping[str, str]:
    """Return the cached secrets of the tenant as the redaction uses them."""
    return without_ring_keys(secrets.known_secrets(tenant).values)


def without_ring_keys(values: Mapping[str, str]) -> Mapping[str, str]:
    """Return all values except the keys of the ring, which are always there."""
    return {name: value for name, value in values.items() if value not in KEYS}


async def test_cached_secrets_are_not_read_again(
    secrets: SecretCache, vault: SecretStore, readings: list[str]
) -> None:
    """A tenant's first call reads them once."""
    await vault.put("acme", "KEY", FIRST_VALUE)
    readings.clear()
    assert secrets.loaded("acme") is None
    for _ in range(5):
        assert await secrets_of(secrets) == {"KEY": FIRST_VALUE}

    assert readings == ["*"]


async def test_concurrent_first_calls_read_secrets_once(
    secrets: SecretCache, vault: SecretStore, readings: list[str]
) -> None:
    """A burst at a tenant that was idle is no burst at the database."""
    await vault.put("acme", "KEY", FIRST_VALUE)
    readings.clear()

    cached = await asyncio.gather(*(secrets.load("acme") for _ in range(20)))

    assert readings == ["*"]
    assert {reading.version for reading in cached} == {cached[0].version}


async def test_a_change_at_another_process_is_found_by_the_poll(
    records: MemoryRecords,
    secrets: SecretCache,
    other_process_store: SecretStore,
    clock: ManualClock,
) -> None:
    """The next poll finds it; without a change no secret is read again."""
    await other_process_store.put("acme", "KEY", FIRST_VALUE)
    first = await secrets.load("acme")
    await poll_once(records, secrets)
    assert await secrets.load("acme") is first  # read once more, and found the same

    await other_process_store.put("acme", "KEY", SECOND_VALUE)
    assert secrets.loaded("acme") is first
    await poll_once(records, secrets)

    assert (await secrets_of(secrets))["KEY"] == SECOND_VALUE
    assert secrets.known_secrets("acme").version != first.version


async def test_a_change_without_a_notification_is_found_by_polling(
    secrets: SecretCache,
    records: MemoryRecords,
    other_process_store: SecretStore,
    clock: ManualClock,
) -> None:
    """The process that made the change may have died before the notification."""
    await secrets_of(secrets)
    sealed = other_process_store._sealed("acme", "KEY", BoundSecret(FIRST_VALUE))
    await records.for_tenant("acme").entries("secrets").put("KEY", sealed, now=0.0)
    clock.now += CACHED_S - 1
    assert await secrets_of(secrets) == {}

    clock.now += 1
    assert await secrets_of(secrets) == {"KEY": FIRST_VALUE}


async def test_a_secret_that_a_tool_uses_is_always_read_from_the_store(
    secrets: SecretCache, other_process_store: SecretStore, clock: ManualClock
) -> None:
    """A new one works at once and is known before the tool has it; a deleted one works no more."""
    assert await secrets_of(secrets) == {}
    await other_process_store.put("acme", "KEY", FIRST_VALUE)

    assert await secrets.value("acme", "KEY") == BoundSecret(FIRST_VALUE)
    assert cached_secrets(secrets, "acme") == {"KEY": FIRST_VALUE}
    assert await secrets.value("globex", "KEY") is None

    await other_process_store.delete("acme", "KEY")
    assert await secrets.value("acme", "KEY") is None


async def test_replaced_and_deleted_values_are_still_redacted_for_a_while(
    records: MemoryRecords,
    secrets: SecretCache,
    other_process_store: SecretStore,
    clock: ManualClock,
) -> None:
    """Running calls may hold the old value; its marker has a name that no secret can have."""
    await other_process_store.put("acme", "KEY", FIRST_VALUE)
    await secrets_of(secrets)
    await other_process_store.put("acme", "KEY", SECOND_VALUE)
    await poll_once(records, secrets)
    assert await secrets_of(secrets) == {"KEY": SECOND_VALUE, "KEY.1": FIRST_VALUE}
    await other_process_store.delete("acme", "KEY")
    await poll_once(records, secrets)
    assert await secrets_of(secrets) == {"KEY.1": FIRST_VALUE, "KEY.2": SECOND_VALUE}

    clock.now += REPLACED_S + 1
    assert await secrets_of(secrets) == {}


async def test_an_older_reading_does_not_drop_a_secret_that_a_tool_got(
    secrets: SecretCache, other_process_store: SecretStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading began before the secret was set, and ends after the tool got it."""
    reading, go_on = asyncio.Event(), asyncio.Event()
    real = SecretStore.sealed

    async def slow(vault: SecretStore, tenants: Collection[str]) -> Mapping[str, Sequence[Entry]]:
        slow_reading = await real(vault, tenants)
        reading.set()
        await go_on.wait()
        return slow_reading

    monkeypatch.setattr(SecretStore, "sealed", slow)
    loading = asyncio.create_task(secrets.load("acme"))
    await reading.wait()
    await other_process_store.put("acme", "KEY", FIRST_VALUE)
    asking = asyncio.create_task(secrets.value("acme", "KEY"))
    go_on.set()

    assert await asking == BoundSecret(FIRST_VALUE)
    assert cached_secrets(secrets, "acme") == {"KEY": FIRST_VALUE}
    assert without_ring_keys((await loading).values) == {}


async def test_secrets_of_tenants_are_isolated(secrets: SecretCache, vault: SecretStore) -> None:
    """The same name is another secret for each tenant."""
    await vault.put("acme", "KEY", FIRST_VALUE)
    await vault.put("globex", "KEY", SECOND_VALUE)

    assert (await secrets_of(secrets, "acme"), await secrets_of(secrets, "globex")) == (
        {"KEY": FIRST_VALUE},
        {"KEY": SECOND_VALUE},
    )
    assert await secrets.value("globex", "KEY") == BoundSecret(SECOND_VALUE)
    assert cached_secrets(secrets, "initech") == {}
    assert cached_secrets(secrets, None) == {}


async def raise_unavailable(*_: object) -> None:
    raise StoreUnavailable("the database does not answer")


async def test_cached_tenants_survive_an_outage(
    secrets: SecretCache, vault: SecretStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each second the cache tries again; a tenant that was never read gets an error."""
    await vault.put("acme", "KEY", FIRST_VALUE)
    await secrets_of(secrets)
    with monkeypatch.context() as outage:
        for name in ("sealed", "get"):
            outage.setattr(SecretStore, name, raise_unavailable)
        clock.now += CACHED_S
        assert await secrets_of(secrets) == {"KEY": FIRST_VALUE}
        assert secrets.loaded("acme") is not None
        clock.now += RETRY_S
        assert secrets.loaded("acme") is None
        with pytest.raises(StoreUnavailable):
            await secrets.load("globex")
        with pytest.raises(StoreUnavailable):
            await secrets.value("acme", "KEY")
        with pytest.raises(StoreUnavailable):
            await secrets.take_up(2)
    assert await secrets_of(secrets, "globex") == {}


async def test_idle_tenants_are_forgotten(
    records: MemoryRecords, secrets: SecretCache, vault: SecretStore, clock: ManualClock
) -> None:
    """A process holds the secrets of those it serves."""
    await vault.put("acme", "KEY", FIRST_VALUE)
    await secrets_of(secrets)
    clock.now += IDLE_S - 1
    await secrets_of(secrets)
    clock.now += 2
    await poll_once(records, secrets)
    assert cached_secrets(secrets, "acme") == {"KEY": FIRST_VALUE}

    clock.now += IDLE_S
    await poll_once(records, secrets)
    assert cached_secrets(secrets, "acme") == {}
    assert await secrets_of(secrets) == {"KEY": FIRST_VALUE}


async def test_the_servers_own_secrets_are_redacted_for_every_tenant(
    secrets: SecretCache, vault: SecretStore
) -> None:
    """This includes tenants that it has not met yet; a reload changes the values for all."""
    await vault.put("acme", "KEY", FIRST_VALUE)
    await secrets_of(secrets)
    secrets.keep_own({"GATEPOST": "first own"})
    assert cached_secrets(secrets, "acme") == {"GATEPOST": "first own", "KEY": FIRST_VALUE}
    before = secrets.known_secrets("acme")
    secrets.keep_own({"GATEPOST": "first own"})
    assert secrets.known_secrets("acme") is before

    secrets.keep_own({"GATEPOST": "second own"})
    assert cached_secrets(secrets, "acme") == {"GATEPOST": "second own", "KEY": FIRST_VALUE}
    assert cached_secrets(secrets, "globex") == {"GATEPOST": "second own"}
    assert cached_secrets(secrets, None) == {"GATEPOST": "second own"}


async def test_the_keys_of_the_ring_are_redacted_for_every_tenant(
    records: MemoryRecords, tmp_path: Path
) -> None:
    """The cache knows the keys of the current ring; it takes up a rotation at the next poll."""
    path = tmp_path / "ring.json"
    first = create(path)
    ring = KeyRing.load(f"file:{path}")
    secrets = SecretCache(SecretStore(records, ring))
    assert secrets.known_secrets("acme").values == {f"GATEPOST.{first}": ring.current.text}
    assert ring.current.text in path.read_text()
    second = rotate(path, keep=1)
    ring.reread()
    await poll_once(records, secrets)

    assert set(secrets.known_secrets("acme").values) == {f"GATEPOST.{first}", f"GATEPOST.{second}"}
    assert secrets.known_secrets("acme").values[f"GATEPOST.{second}"] in path.read_text()


async def test_tenants_without_secrets_share_one_version(
    secrets: SecretCache, vault: SecretStore
) -> None:
    """Whatever is prepared for a version is prepared once for all of them."""
    for tenant in ("acme", "globex"):
        await secrets.load(tenant)
    secrets.keep_own({"GATEPOST": "own value"})
    assert (
        secrets.known_secrets("acme")
        is secrets.known_secrets("globex")
        is secrets.known_secrets(None)
    )

    await secrets.put("acme", "openapi_shop", FIRST_VALUE)
    assert secrets.known_secrets("acme").version != secrets.known_secrets("globex").version


async def test_a_secret_that_a_pack_stores_belongs_to_the_tenant(
    secrets: SecretCache, other_process_store: SecretStore
) -> None:
    """Known at once, here and at every replica; of any length, as its caller chose it."""
    await secrets.put("acme", "openapi_shop", "abc")
    other = SecretCache(other_process_store)

    assert cached_secrets(secrets, "acme") == {"openapi_shop": "abc"}
    assert await secrets_of(other) == {"openapi_shop": "abc"}
    assert await other.value("acme", "openapi_shop") == BoundSecret("abc")
    assert await other.names("acme") == []
    for value in ("", "x" * 65_537):
        with pytest.raises(SecretRefused):
            await secrets.put("acme", "openapi_shop", value)

    assert await secrets.delete("acme", "openapi_shop")
    assert not await secrets.delete("acme", "openapi_shop")
    assert await secrets.value("acme", "openapi_shop") is None


async def test_a_secret_that_cannot_be_opened_is_an_error(
    secrets: SecretCache, records: MemoryRecords
) -> None:
    """A caller that uses it gets an error; the other secrets are known."""
    await SecretStore(records, KeyRing.ephemeral()).put("acme", "LOST", FIRST_VALUE)
    await secrets.put("acme", "kept", SECOND_VALUE)

    assert await secrets_of(secrets) == {"kept": SECOND_VALUE}
    with pytest.raises(SecretUnreadable, match="LOST"):
        await secrets.value("acme", "LOST")


async def test_the_poll_for_changes_continues_after_an_outage(
    secrets: SecretCache,
    other_process_store: SecretStore,
    records: MemoryRecords,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The poll continues after an outage as well."""
    monkeypatch.setattr(change_poller, "POLL_S", 0.001)
    await secrets_of(secrets)
    looks = 0
    real = records.changes

    async def counted(subjects: Collection[str]) -> dict[str, int]:
        nonlocal looks
        looks += 1
        if looks < 3:
            raise StoreUnavailable("not now")
        return await real(subjects)

    monkeypatch.setattr(records, "changes", counted)
    await other_process_store.put("acme", "KEY", FIRST_VALUE)
    poller = ChangePoller(records, MemorySharedStore())
    async with poller.polling({SUBJECT: secrets.take_up}), asyncio.timeout(10):
        while cached_secrets(secrets, "acme") != {"KEY": FIRST_VALUE}:
            assert secrets.loaded("acme")
            await asyncio.to_thread(int)


async def test_a_user_name_is_available_and_not_redacted(
    secrets: SecretCache, vault: SecretStore, clock: ManualClock
) -> None:
    """It is never redacted in answers."""
    await vault.put("acme", "USER", "bob", username=True)
    await vault.put("acme", "KEY", FIRST_VALUE)
    value = await secrets.value("acme", "USER")

    assert value is not None
    assert (value.value, value.username) == ("bob", True)
    assert await secrets_of(secrets) == {"KEY": FIRST_VALUE}


async def test_marking_a_value_as_user_name_does_not_reveal_a_secret(
    secrets: SecretCache, vault: SecretStore, clock: ManualClock
) -> None:
    """A secret with the same text stays redacted, also for a while after its replacement."""
    await vault.put("acme", "KEY", FIRST_VALUE)
    await vault.put("acme", "SAME", FIRST_VALUE, username=True)
    await secrets.value("acme", "SAME")
    assert set((await secrets_of(secrets)).values()) == {FIRST_VALUE}

    await vault.put("acme", "OLD", SECOND_VALUE)
    await secrets.value("acme", "OLD")
    await vault.put("acme", "OLD", SECOND_VALUE, username=True)
    await secrets.value("acme", "OLD")
    assert set((await secrets_of(secrets)).values()) == {FIRST_VALUE, SECOND_VALUE}
