"""Entries of tenants by subject and key, on every backend."""

import asyncio
import time

import pytest

from gatepost.storage.entries import MAX_KEY, MAX_VALUE, Entry, EntryRefused
from gatepost.storage.records import Records
from gatepost.storage.sql.entries import REMEMBERED_S

NOW = 1_000.25
HOSTILE_KEYS = ["", "a\x00b", "\ud800", "\\u0000", "'; DROP TABLE entries; --", "%", "é" * MAX_KEY]


async def test_a_missing_entry_can_be_neither_read_nor_deleted(records: Records) -> None:
    """No list names it."""
    entries = records.for_tenant("acme").entries("notes")

    assert await entries.get("k") is None
    assert await entries.all() == []
    assert await entries.count() == 0
    assert not await entries.delete("k")


async def test_an_entry_is_read_as_it_was_written(records: Records) -> None:
    """Each write has the next revision and its time."""
    entries = records.for_tenant("acme").entries("notes")

    assert await entries.put("k", bytes(range(256)), now=NOW)
    first = Entry(key="k", value=bytes(range(256)), revision=1, updated_at=NOW)
    assert await entries.get("k") == first

    assert await entries.put("k", b"", now=NOW + 1)
    assert await entries.all() == [Entry(key="k", value=b"", revision=2, updated_at=NOW + 1)]


async def test_any_text_can_be_a_key(records: Records) -> None:
    """Texts that no database accepts unchanged are read back, in the order of their characters."""
    entries = records.for_tenant("acme\x00").entries("notes\\")
    for key in HOSTILE_KEYS:
        assert await entries.put(key, key.encode("utf-8", "surrogatepass"), now=NOW, revision=0)

    assert [entry.key for entry in await entries.all()] == sorted(HOSTILE_KEYS)
    assert await entries.count() == len(HOSTILE_KEYS)
    for key in HOSTILE_KEYS:
        entry = await entries.get(key)
        assert entry is not None
        assert entry.value == key.encode("utf-8", "surrogatepass")
        assert await entries.delete(key)
    assert await entries.all() == []
    assert await entries.count() == 0


async def test_entries_of_different_subjects_are_isolated(records: Records) -> None:
    """Subject and key are separate: ("a", "bc") differs from ("ab", "c")."""
    acme = records.for_tenant("acme")
    for subject, key in (("a", "bc"), ("ab", "c"), ("", "abc")):
        assert await acme.entries(subject).put(key, subject.encode(), now=NOW, revision=0)

    assert await acme.entries("a").delete("bc")
    assert [entry.value for entry in await acme.entries("ab").all()] == [b"ab"]
    assert [entry.value for entry in await acme.entries("").all()] == [b""]
    assert await acme.entries("a").all() == []


async def test_the_tenants_of_a_subject_are_found(records: Records) -> None:
    """Each is listed once, but not tenants that deleted all or have only other subjects."""
    for tenant, subject in (("b", "x"), ("a\x00", "x"), ("c", "y"), ("d", "x")):
        for key in ("1", "2"):
            await records.for_tenant(tenant).entries(subject).put(key, b"", now=NOW)
    for key in ("1", "2"):
        await records.for_tenant("d").entries("x").delete(key)

    assert await records.tenants("x") == ["a\x00", "b"]
    assert await records.tenants("z") == []


async def test_the_latest_entries_of_all_tenants_are_found(records: Records) -> None:
    """They have one key of one subject; the newest come first, up to a number."""
    for number, (tenant, key) in enumerate(
        (("b", "k"), ("a\x00", "k"), ("c", "other"), ("d", "k"))
    ):
        await records.for_tenant(tenant).entries("x").put(key, tenant.encode(), now=NOW + number)
    await records.for_tenant("e").entries("y").put("k", b"", now=NOW + 9)
    await records.for_tenant("d").entries("x").delete("k")
    await records.for_tenant("b").entries("x").put("k", b"again", now=NOW + 8)
    entries = await records.latest("x", "k", 9)

    assert [(tenant, entry.value) for tenant, entry in entries] == [
        ("b", b"again"),
        ("a\x00", b"a\x00"),
    ]
    assert entries[0][1] == await records.for_tenant("b").entries("x").get("k")
    assert await records.latest("x", "k", 1) == entries[:1]


async def test_entries_of_several_tenants_are_read_together(records: Records) -> None:
    """Tenants without entries of that subject are left out."""
    for tenant, key in (("a\x00", "1"), ("a\x00", "2"), ("b", "1"), ("c", "1"), ("d", "1")):
        await records.for_tenant(tenant).entries("x").put(key, tenant.encode(), now=NOW)
        await records.for_tenant(tenant).entries("y").put(key, b"", now=NOW)
    await records.for_tenant("c").entries("x").delete("1")

    entries = await records.entries_of(["a\x00", "b", "c", "nobody"], "x")
    assert {tenant: sorted(entry.key for entry in entries[tenant]) for tenant in entries} == {
        "a\x00": ["1", "2"],
        "b": ["1"],
    }
    assert entries["b"] == await records.for_tenant("b").entries("x").all()
    assert await records.entries_of([], "x") == {}


async def test_entries_of_several_tenants_are_replaced_together(records: Records) -> None:
    """Each entry is replaced if it has the revision that was read; the others stay."""
    for tenant in ("a\x00", "b", "c", "d"):
        await records.for_tenant(tenant).entries("x").put("k", b"old", now=NOW)
    await records.for_tenant("c").entries("x").put("k", b"newer", now=NOW)
    await records.for_tenant("d").entries("x").delete("k")
    values = {"a\x00": (b"1", 1), "b": (b"2", 0), "c": (b"3", 1), "d": (b"4", 0), "e": (b"5", 0)}
    values |= {"f": (b"6", 7)}
    stored = await records.replace_entries("x", "k", values, now=NOW + 1, until=NOW + 9)

    assert stored == {"a\x00", "d", "e"}
    entries = await records.entries_of(values, "x")
    read_back = {
        tenant: (entries[tenant][0].value, entries[tenant][0].updated_at) for tenant in entries
    }
    assert read_back == {
        "a\x00": (b"1", NOW + 1),
        "b": (b"old", NOW),
        "c": (b"newer", NOW),
        "d": (b"4", NOW + 1),
        "e": (b"5", NOW + 1),
    }
    assert entries["a\x00"][0].revision == 2
    assert entries["e"][0].expires_at == NOW + 9
    assert await records.replace_entries("x", "k", {}, now=NOW, until=NOW) == set()


OLD_VERSIONS = {"none": 0, "the first": 1, "one to come": 3, "of a deleted one": -1}


@pytest.mark.parametrize("revision", OLD_VERSIONS.values(), ids=OLD_VERSIONS)
async def test_a_change_with_an_outdated_revision_is_refused(
    records: Records, revision: int
) -> None:
    """The writer must have read the current revision."""
    entries = records.for_tenant("acme").entries("notes")
    await entries.put("k", b"1", now=NOW)
    assert await entries.put("k", b"2", now=NOW, revision=1)

    assert not await entries.put("k", b"x", now=NOW, revision=revision)
    assert not await entries.put("other", b"x", now=NOW, revision=revision or 1)
    assert await entries.all() == [Entry(key="k", value=b"2", revision=2, updated_at=NOW)]


async def test_a_recreated_entry_refuses_the_old_revision(records: Records) -> None:
    """A deleted and recreated entry refuses a write with the old revision."""
    entries = records.for_tenant("acme").entries("notes")
    await entries.put("k", b"read", now=NOW)
    assert await entries.delete("k")
    assert not await entries.delete("k")
    assert not await entries.put("k", b"x", now=NOW, revision=1)

    assert await entries.put("k", b"another", now=NOW, revision=0)
    assert not await entries.put("k", b"x", now=NOW, revision=1)
    entry = await entries.get("k")
    assert entry is not None
    assert (entry.value, entry.revision) == (b"another", 2)


@pytest.mark.parametrize("revision", [0, 1])
async def test_one_of_many_writers_with_the_same_revision_succeeds(
    records: Records, revision: int
) -> None:
    """This holds whether the entry exists or not."""
    entries = records.for_tenant("acme").entries("notes")
    if revision:
        await entries.put("k", b"", now=NOW)

    won = await asyncio.gather(
        *(entries.put("k", b"%d" % number, now=NOW, revision=revision) for number in range(20))
    )

    assert won.count(True) == 1
    entry = await entries.get("k")
    assert entry is not None
    assert (entry.value, entry.revision) == (b"%d" % won.index(True), revision + 1)


async def test_a_write_without_a_revision_always_succeeds(records: Records) -> None:
    """Any number of concurrent writes succeed."""
    entries = records.for_tenant("acme").entries("notes")

    assert all(await asyncio.gather(*(entries.put("k", b"%d" % n, now=NOW) for n in range(10))))
    entry = await entries.get("k")
    assert entry is not None
    assert entry.revision == 10


async def test_a_sweep_keeps_entries_without_expiry(records: Records) -> None:
    """A caller has to delete them; a later sweep removes what the deletion leaves."""
    entries = records.for_tenant("acme").entries("notes")
    await entries.put("kept", b"1", now=0.0)
    await entries.put("gone", b"2", now=0.0)
    await entries.put("back", b"3", now=0.0)
    for key in ("gone", "back"):
        await entries.delete(key)
    assert await entries.put("back", b"4", now=0.0, revision=0)

    for now in (time.time(), time.time() + 2 * REMEMBERED_S):
        await records.sweep(now)
        assert [(entry.key, entry.value) for entry in await entries.all()] == [
            ("back", b"4"),
            ("kept", b"1"),
        ]


async def test_expired_entries_are_swept(records: Records) -> None:
    """Entries stay before their expiry, and if they were put again with a later one or none."""
    entries = records.for_tenant("acme").entries("notes")
    for key in ("over", "later", "kept", "renewed"):
        await entries.put(key, b"1", now=0.0, expires_at=10.0)
    await entries.put("later", b"2", now=0.0, expires_at=30.0)
    await entries.put("kept", b"2", now=0.0)
    await entries.put("renewed", b"2", now=0.0, revision=1, expires_at=30.0)
    assert [entry.expires_at for entry in await entries.all()] == [None, 30.0, 10.0, 30.0]

    await records.sweep(9.0)
    assert len(await entries.all()) == 4
    await records.sweep(10.0)
    assert [entry.key for entry in await entries.all()] == ["kept", "later", "renewed"]
    await records.sweep(30.0)
    assert [entry.key for entry in await entries.all()] == ["kept"]
    assert await entries.put("over", b"1", now=0.0, revision=0)


TOO_LARGE = {
    "a value": ("k", bytes(MAX_VALUE + 1), "a value has 64000001 bytes and may have 64000000"),
    "a key": ("k" * (MAX_KEY + 1), b"", "a key has 257 characters and may have 256"),
}


@pytest.mark.parametrize(("key", "value", "expected_text"), TOO_LARGE.values(), ids=TOO_LARGE)
async def test_a_too_large_key_or_value_is_refused(
    records: Records, key: str, value: bytes, expected_text: str
) -> None:
    """The error is a sentence and not that of the database."""
    entries = records.for_tenant("acme").entries("notes")

    with pytest.raises(EntryRefused, match=expected_text):
        await entries.put(key, value, now=NOW)
    assert await entries.get(key) is None
    assert not await entries.delete(key)


async def test_the_largest_value_is_kept(records: Records) -> None:
    """64 MB, in one piece."""
    entries = records.for_tenant("acme").entries("notes")

    assert await entries.put("k", bytes(MAX_VALUE), now=NOW)
    entry = await entries.get("k")
    assert entry is not None
    assert entry.value == bytes(MAX_VALUE)
