"""Who has called lately: little is written, little is kept, and nothing of whom it should not."""

import asyncio

import pytest

from gatepost.runtime import recent_callers as register
from gatepost.runtime.recent_callers import (
    AGAIN_S,
    KEPT_S,
    KEY,
    MOST,
    MOST_BYTES,
    SUBJECT,
    RecentCallers,
    forget_person,
)
from gatepost.storage.entries import Entry
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.memory.records import MemoryEntries, MemoryRecords
from tests.support.endpoint import a_caller

WITHIN_S = 10


class Place:
    """Two processes on one store, at a time of the test's own."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.cut: set[str] = set()
        self.out: set[str] = set()
        self.records = MemoryRecords()
        self.one, self.other = (
            RecentCallers(
                self.records,
                is_cut=lambda caller: caller.subject in self.cut,
                is_out=lambda caller: caller.subject in self.cut | self.out,
                clock=lambda: self.now,
            )
            for _ in range(2)
        )

    async def subjects(self, tenant: str = "acme", most: int = 100) -> list[str]:
        """Who is there, as the other process tells it."""
        return [one.subject for one in await self.other.lately(tenant, most)]

    async def entry(self) -> Entry:
        """What is kept; its revision is how often it was written."""
        found = await self.records.of("acme").entries(SUBJECT).get(KEY)
        assert found is not None
        return found


@pytest.fixture
def place() -> Place:
    return Place()


async def test_what_was_noted_comes_back_for_its_tenant(place: Place) -> None:
    """As rules judge it, the latest first, once for each client; no token's id is kept."""
    rich = a_caller(
        client_id="app",
        actor="robot",
        scopes=frozenset({"b", "a"}),
        acr="phr",
        auth_time=5,
        issued_at=7,
        token_id="the-token",
        session_id="the-session",
        claims={"preferred_username": "ally"},
    )
    place.one.note(rich)
    place.now += 1
    for caller in (a_caller(subject="bob"), a_caller(subject="bob", tenant_id="globex")):
        place.one.note(caller)
    await place.one.write()
    bob, alice = await place.other.lately("acme", 9)

    assert (bob.subject, alice.subject) == ("bob", "alice")
    for field in ("issuer", "subject_kind", "client_id", "actor", "scopes", "acr", "auth_time"):
        assert getattr(alice, field) == getattr(rich, field)
    assert (alice.tenant_id, alice.issued_at, alice.name) == ("acme", 7, "ally")
    assert b"the-" not in (await place.entry()).value
    assert await place.subjects("globex") == ["bob"]
    assert await place.subjects(most=1) == ["bob"]


async def test_who_calls_all_the_time_is_written_rarely(place: Place) -> None:
    """Once in a while, and when it comes with other permissions; never for a verdict alone."""
    for _ in range(10):
        place.one.note(a_caller())
        await place.one.write()
        place.now += AGAIN_S / 10
    assert (await place.entry()).revision == 1

    place.one.note(a_caller())
    await place.one.write()
    assert (await place.entry()).revision == 2

    place.one.note(a_caller(scopes=frozenset({"more"})))
    assert [one.scopes for one in await place.one.lately("acme", 9)] == [frozenset({"more"})]
    assert (await place.entry()).revision == 3


async def test_what_is_kept_has_a_bound(place: Place) -> None:
    """So many callers, so many bytes, for so long; the latest stay."""
    for at in range(MOST + 9):
        place.now += 1
        place.one.note(a_caller(subject=f"p{at}"))
        if at % 7 == 0:
            await place.one.write()
    await place.one.write()
    assert await place.subjects() == [f"p{at}" for at in range(MOST + 8, 8, -1)]

    for at in range(MOST):
        place.now += 1
        scopes = frozenset(f"{at} {number} {'x' * 250}" for number in range(250))
        place.one.note(a_caller(subject=f"q{at}", scopes=scopes))
    await place.one.write()
    entry = await place.entry()
    assert len(entry.value) <= MOST_BYTES
    assert (await place.subjects())[0] == f"q{MOST - 1}"
    assert entry.expires_at == place.now + KEPT_S

    place.now += KEPT_S - 1
    assert f"q{MOST - 1}" in await place.subjects()
    place.now += 1
    assert await place.subjects() == []


async def test_tenants_without_end_are_not_all_remembered(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before they are written; what is left out is noted the next time."""
    monkeypatch.setattr(register, "MOST_TENANTS", 2)
    monkeypatch.setattr(register, "MOST_TOLD", 2)
    tenants = ["acme", "globex", "initech"]
    for _ in range(2):
        for tenant in tenants:
            place.one.note(a_caller(tenant_id=tenant))
        await place.one.write()

    assert [await place.subjects(tenant) for tenant in tenants] == [["alice"]] * 3


async def test_processes_that_write_at_once_lose_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each writes behind what it has read, or reads again."""
    read = MemoryEntries.get

    async def slowly(entries: MemoryEntries, key: str) -> Entry | None:
        found = await read(entries, key)
        await asyncio.sleep(0)
        return found

    monkeypatch.setattr(MemoryEntries, "get", slowly)
    for at in range(4):
        place.one.note(a_caller(subject=f"a{at}"))
        place.other.note(a_caller(subject=f"b{at}"))
        await asyncio.gather(place.one.write(), place.other.write())

    assert sorted(await place.subjects()) == [f"{who}{at}" for who in "ab" for at in range(4)]


async def test_who_is_shut_out_is_neither_written_nor_told(place: Place) -> None:
    """Whatever came first; with another token they are noted at once."""
    place.one.note(a_caller())
    place.one.note(a_caller(subject="bob"))
    await place.one.write()
    place.one.note(a_caller(subject="carol"))
    place.cut = {"alice", "carol"}
    for process in (place.one, place.other):
        process.forget(lambda caller: caller.subject in place.cut)
    place.one.note(a_caller())
    assert await place.subjects() == ["bob"]
    place.one.note(a_caller(subject="dave"))
    await place.one.write()
    assert b"alice" not in (await place.entry()).value

    place.cut = set()
    place.one.note(a_caller())
    await place.one.write()
    assert sorted(await place.subjects()) == ["alice", "bob", "dave"]
    place.out.add("alice")
    assert sorted(await place.subjects()) == ["bob", "dave"]


async def test_a_token_without_its_time_is_as_old_as_its_caller(place: Place) -> None:
    """Else what refuses older tokens would let go of it before its caller is forgotten."""
    place.one.note(a_caller(issued_at=None))
    await place.one.write()
    found = await place.other.lately("acme", 1)

    assert [caller.issued_at for caller in found] == [int(place.now)]


async def test_a_person_is_forgotten_with_whom_they_acted_for(place: Place) -> None:
    """At their issuer only, and never by halves."""
    for caller in (
        a_caller(),
        a_caller(client_id="app"),
        a_caller(subject="bob", actor="alice"),
        a_caller(issuer="https://other.example"),
        a_caller(subject="carol"),
    ):
        place.one.note(caller)
    await place.one.write()

    assert await forget_person(place.records.of("acme"), a_caller().issuer, "alice") == 3
    assert await forget_person(place.records.of("acme"), a_caller().issuer, "alice") == 0
    assert await forget_person(place.records.of("globex"), a_caller().issuer, "alice") == 0
    left = await place.other.lately("acme", 9)
    assert {(one.issuer, one.subject) for one in left} == {
        ("https://other.example", "alice"),
        (a_caller().issuer, "carol"),
    }


async def test_what_cannot_be_read_is_written_anew(place: Place) -> None:
    """Another version may have kept something else there."""
    entries = place.records.of("acme").entries(SUBJECT)
    await entries.put(KEY, b"\xc1", now=0.0)
    assert await place.subjects() == []
    place.one.note(a_caller())
    await place.one.write()
    assert await place.subjects() == ["alice"]


async def test_an_outage_loses_nobody(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was noted meanwhile is written when the store answers, also at the end."""
    monkeypatch.setattr(register, "WRITE_S", 0.0)
    monkeypatch.setattr(register, "OUTAGE_S", 0.0)
    tried = asyncio.Event()

    async def away(entries: MemoryEntries, key: str) -> Entry | None:
        tried.set()
        raise StoreUnavailable("away")

    async with asyncio.timeout(WITHIN_S), place.one.writing():
        with monkeypatch.context() as outage:
            outage.setattr(MemoryEntries, "get", away)
            place.one.note(a_caller())
            await tried.wait()
            with pytest.raises(StoreUnavailable):
                await place.one.lately("acme", 9)
        while await place.subjects() != ["alice"]:  # noqa: ASYNC110  # the timeout bounds it
            await asyncio.sleep(0)
        place.one.note(a_caller(subject="bob"))

    assert sorted(await place.subjects()) == ["alice", "bob"]
