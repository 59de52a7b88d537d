"""Secrets at rest: sealed, bound to their place, and never lost by a rotation."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gatepost.secrets.cache import SecretCache
from gatepost.secrets.hosts import BoundSecret
from gatepost.secrets.keyring import KeyRing, create, rotate
from gatepost.secrets.names import (
    MAX_BYTES,
    MAX_SECRETS,
    SecretRefused,
    checked_name,
    checked_value,
)
from gatepost.secrets.store import SUBJECT, SecretStore, SecretUnreadable
from gatepost.storage.change_poller import ChangePoller
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.shared_store import MemorySharedStore
from tests.support.measuring import ManualClock, each


async def poll_once(records: MemoryRecords, secrets: SecretCache) -> None:
    """Poll for changes once, as a server does."""
    poller = ChangePoller(records, MemorySharedStore())
    async with poller.polling({SUBJECT: secrets.take_up}):
        return


async def change_count(records: MemoryRecords) -> int:
    """Return the change counter that other processes poll."""
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


SECRET_VALUE = "hunter2-hunter2-\N{SNOWMAN}"
NAMES = {
    "A": True,
    "API_KEY": True,
    "A1_": True,
    "A" * 64: True,
    "": False,
    "a": False,
    "api_key": False,
    "1A": False,
    "_A": False,
    "A-B": False,
    "A\n": False,
    "Ä": False,
    "A" * 65: False,
}


@each(("name", "is_valid"), NAMES.items(), ids=[repr(name) for name in NAMES])
def test_a_secret_name_is_readable_in_its_marker(name: str, is_valid: bool) -> None:
    """`[REDACTED:NAME]` shows it; a refusal does not repeat what may be the value."""
    if is_valid:
        assert checked_name(name) == name
    else:
        with pytest.raises(SecretRefused, match="capital letter") as refused:
            checked_name(name)
        assert len(name) < 2 or name not in str(refused.value)


REFUSED_VALUES = {
    "too short": ("1234567", "7 characters"),
    "empty": ("", "0 characters"),
    "too long": ("é" * (MAX_BYTES // 2 + 1), f"{MAX_BYTES + 2} bytes"),
    "half a character": ("\ud800" * 8, "UTF-8"),
}


@pytest.mark.parametrize(("value", "expected_text"), REFUSED_VALUES.values(), ids=REFUSED_VALUES)
def test_a_value_that_could_not_be_redacted_is_refused(value: str, expected_text: str) -> None:
    """The message says why, without the value."""
    with pytest.raises(SecretRefused, match=expected_text):
        checked_value(value)


async def test_a_secret_is_read_by_its_own_tenant_only(
    vault: SecretStore, records: MemoryRecords
) -> None:
    """Other tenants cannot read it, and the stored entry does not contain it."""
    for tenant in ("acme", "globex"):
        await vault.put(tenant, "API_KEY", f"{SECRET_VALUE} of {tenant}")
    await vault.put("acme", "LONGEST", "x" * MAX_BYTES)

    assert await vault.get("acme", "API_KEY") == BoundSecret(f"{SECRET_VALUE} of acme")
    assert await vault.get("globex", "API_KEY") == BoundSecret(f"{SECRET_VALUE} of globex")
    assert await vault.get("globex", "LONGEST") is None
    assert await vault.get("initech", "API_KEY") is None
    assert (await vault.all("acme"))["LONGEST"] == "x" * MAX_BYTES
    for entry in await records.for_tenant("acme").entries(SUBJECT).all():
        assert b"hunter2" not in entry.value
    assert [row.name for row in await vault.rows("acme")] == ["API_KEY", "LONGEST"]


async def test_a_deleted_secret_is_gone(vault: SecretStore) -> None:
    """A second deletion says that there is no such secret."""
    await vault.put("acme", "API_KEY", SECRET_VALUE)

    assert await vault.delete("acme", "API_KEY")
    assert not await vault.delete("acme", "API_KEY")
    assert await vault.get("acme", "API_KEY") is None


async def test_every_change_increases_the_change_counter(
    records: MemoryRecords, vault: SecretStore
) -> None:
    """Other processes poll this number."""
    counters = [await change_count(records)]
    await vault.put("acme", "API_KEY", SECRET_VALUE)
    counters.append(await change_count(records))
    await vault.delete("globex", "API_KEY")
    assert await change_count(records) == counters[-1]
    await vault.delete("acme", "API_KEY")
    counters.append(await change_count(records))

    assert counters == sorted(set(counters))


async def test_the_number_of_secrets_of_a_tenant_is_bounded(vault: SecretStore) -> None:
    """Existing secrets can still be replaced at the limit."""
    for number in range(MAX_SECRETS):
        await vault.put("acme", f"S{number}", SECRET_VALUE)

    with pytest.raises(SecretRefused, match=str(MAX_SECRETS)):
        await vault.put("acme", "ANOTHER", SECRET_VALUE)
    await vault.put("acme", "S0", SECRET_VALUE + "2")
    await vault.put("globex", "ANOTHER", SECRET_VALUE)


Tampering = Callable[[bytes], bytes]
TAMPERED_ROWS: dict[str, tuple[Tampering, str]] = {
    "another letter": (lambda sealed: sealed[:-3] + b"AAA", "was changed"),
    "cut": (lambda sealed: sealed[:20], "was changed"),
    "nothing": (lambda sealed: b"", "not in the ring"),
    "another key": (lambda sealed: b"00000000" + sealed[8:], "the key 00000000 .* not in the ring"),
    "plain text": (lambda sealed: b"password", "not in the ring"),
    "no text": (lambda sealed: b"\xff\xfe\x00", r"the key \? "),
    "too much": (lambda sealed: sealed + b"A" * 300_000, "was changed"),
}


@pytest.mark.parametrize(("tamper", "expected_text"), TAMPERED_ROWS.values(), ids=TAMPERED_ROWS)
async def test_a_tampered_secret_is_named(
    vault: SecretStore, records: MemoryRecords, tamper: Tampering, expected_text: str
) -> None:
    """The secret does not open, and the others still do."""
    await vault.put("acme", "API_KEY", SECRET_VALUE)
    await vault.put("acme", "OTHER", SECRET_VALUE)
    entries = records.for_tenant("acme").entries(SUBJECT)
    entry = await entries.get("API_KEY")
    assert entry is not None
    await entries.put("API_KEY", tamper(entry.value), now=0.0)

    with pytest.raises(SecretUnreadable, match=f"API_KEY .*{expected_text}"):
        await vault.get("acme", "API_KEY")
    assert await vault.all("acme") == {"OTHER": SECRET_VALUE}
    assert [row.unreadable is None for row in await vault.rows("acme")] == [False, True]


MOVED_ROWS = {
    "to another tenant": ("globex", "API_KEY"),
    "to another name": ("acme", "OTHER"),
    "to both": ("globex", "OTHER"),
}


@pytest.mark.parametrize(("tenant", "name"), MOVED_ROWS.values(), ids=MOVED_ROWS)
async def test_a_secret_moved_to_another_tenant_cannot_be_opened(
    vault: SecretStore, records: MemoryRecords, tenant: str, name: str
) -> None:
    """An attacker who can write to the database cannot give one tenant's secret to another."""
    await vault.put("acme", "API_KEY", SECRET_VALUE)
    entry = await records.for_tenant("acme").entries(SUBJECT).get("API_KEY")
    assert entry is not None
    await records.for_tenant(tenant).entries(SUBJECT).put(name, entry.value, now=0.0)

    with pytest.raises(SecretUnreadable, match="another place"):
        await vault.get(tenant, name)


async def test_other_requests_have_turns_while_many_secrets_are_opened(
    vault: SecretStore,
) -> None:
    """A tenant's secrets are read again each minute, and may have 64 megabytes together."""
    for number in range(12):
        await vault.put("acme", f"KEY_{number}", SECRET_VALUE + "x" * 60_000)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    assert len(await vault.all("acme")) == 12
    other.cancel()

    assert turns >= 6


async def test_secrets_outlive_rotations_of_the_ring(
    records: MemoryRecords, tmp_path: Path
) -> None:
    """Old ones open, new ones use the new key; sealed anew, they need no older key."""
    path = tmp_path / "ring.json"
    first = create(path)
    await SecretStore(records, KeyRing.load(f"file:{path}")).put("acme", "OLD", SECRET_VALUE)
    await SecretStore(records, KeyRing.load(f"file:{path}")).put(
        "globex", "inner_one", SECRET_VALUE
    )
    second = rotate(path, keep=1)
    vault = SecretStore(records, KeyRing.load(f"file:{path}"))
    await vault.put("acme", "NEW", SECRET_VALUE)
    before = await vault.rows("acme")

    assert [(row.name, row.key_id) for row in before] == [("NEW", second), ("OLD", first)]
    assert await vault.get("acme", "OLD") == BoundSecret(SECRET_VALUE)

    done = await vault.reseal()
    assert (done.sealed, done.current, done.unreadable) == (2, 1, ())
    assert (await vault.reseal()).sealed == 0
    after = await vault.rows("acme")
    assert {row.key_id for row in after} == {second}
    assert [row.changed_at for row in after] == [row.changed_at for row in before]

    rotate(path, keep=1)
    vault = SecretStore(records, KeyRing.load(f"file:{path}"))
    assert set(await vault.all("acme")) == {"OLD", "NEW"}
    assert await vault.get("globex", "inner_one") == BoundSecret(SECRET_VALUE)


async def test_a_secret_whose_key_was_dropped_is_named(
    records: MemoryRecords, tmp_path: Path
) -> None:
    """`reseal` reports it and seals the others; setting the secret again repairs it."""
    path = tmp_path / "ring.json"
    gone = create(path)
    await SecretStore(records, KeyRing.load(f"file:{path}")).put("acme", "LOST", SECRET_VALUE)
    rotate(path, keep=1)
    await SecretStore(records, KeyRing.load(f"file:{path}")).put("acme", "KEPT", SECRET_VALUE)
    rotate(path, keep=1)
    vault = SecretStore(records, KeyRing.load(f"file:{path}"))

    done = await vault.reseal()

    ((tenant, message),) = done.unreadable
    assert (done.sealed, tenant) == (1, "acme")
    assert (
        message
        == f"the secret LOST cannot be opened: the key {gone} that encrypted it is not in the ring"
    )
    await vault.put("acme", "LOST", SECRET_VALUE + "2")
    assert (await vault.reseal()).unreadable == ()


async def test_sealing_anew_does_not_undo_a_change(
    records: MemoryRecords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret that is set in the middle of it has the value that was set."""
    path = tmp_path / "ring.json"
    create(path)
    vault = SecretStore(records, KeyRing.load(f"file:{path}"))
    await vault.put("acme", "API_KEY", SECRET_VALUE)
    rotate(path, keep=1)
    vault.keyring.reread()
    seal = vault.keyring.seal

    def interrupted(purpose: str, payload: bytes, *, context: bytes = b"") -> str:
        monkeypatch.setattr(vault.keyring, "seal", seal)
        payload = msgspec.msgpack.encode(BoundSecret("set meanwhile"))
        meanwhile = seal(purpose, payload, context=context).encode()
        entries = records.for_tenant("acme").entries(SUBJECT)
        entry = entries.records["API_KEY"]
        entries.records["API_KEY"] = type(entry)(
            key="API_KEY", value=meanwhile, revision=entry.revision + 1, updated_at=5.0
        )
        return seal(purpose, payload, context=context)

    monkeypatch.setattr(vault.keyring, "seal", interrupted)

    await vault.reseal()
    assert await vault.get("acme", "API_KEY") == BoundSecret("set meanwhile")
