"""Who has called lately: little is written, little is kept, and nothing of whom it should not."""

import asyncio
from sys import getrefcount
from typing import Any

import pytest

from gatepost.runtime import recent_callers
from gatepost.runtime.recent_callers import (
    AGAIN_S,
    CALLERS_PER_TENANT,
    KEPT_S,
    KEY,
    MAX_BYTES,
    SUBJECT,
    RecentCallers,
    forget_person,
)
from gatepost.storage.entries import Entry
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.memory.records import MemoryEntries, MemoryRecords
from tests.support.endpoint import a_caller

WITHIN_S = 10


class TwoProcesses:
    """Two processes on one store, at a time of the test's own."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.cut: set[str] = set()
        self.out: set[str] = set()
        self.records = MemoryRecords()
        self.one, self.other = (
            RecentCallers(
                self.records,
                is_refused=lambda caller: caller.subject in self.cut,
                is_out=lambda caller: caller.subject in self.cut | self.out,
                clock=lambda: self.now,
            )
            for _ in range(2)
        )

    async def subjects(self, tenant: str = "acme", max_subjects: int = 100) -> list[str]:
        """Return the recent subjects, as the other process reads them."""
        return [caller.subject for caller in await self.other.lately(tenant, max_subjects)]

    async def entry(self) -> Entry:
        """Return the stored entry, whose revision says how often it was written."""
        entry = await self.records.for_tenant("acme").entries(SUBJECT).get(KEY)
        assert entry is not None
        return entry


@pytest.fixture
def processes() -> TwoProcesses:
    return TwoProcesses()


async def test_recent_callers_are_read_back_for_their_tenant(processes: TwoProcesses) -> None:
    """They have the claims that rules read, one entry per client, and no token id."""
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
    processes.one.note(rich)
    processes.now += 1
    for caller in (a_caller(subject="bob"), a_caller(subject="bob", tenant_id="globex")):
        processes.one.note(caller)
    await processes.one.write()
    bob, alice = await processes.other.lately("acme", 9)

    assert (bob.subject, alice.subject) == ("bob", "alice")
    for field in ("issuer", "subject_kind", "client_id", "actor", "scopes", "acr", "auth_time"):
        assert getattr(alice, field) == getattr(rich, field)
    assert (alice.tenant_id, alice.issued_at, alice.name) == ("acme", 7, "ally")
    assert b"the-" not in (await processes.entry()).value
    assert await processes.subjects("globex") == ["bob"]
    assert await processes.subjects(max_subjects=1) == ["bob"]


async def test_operators_see_the_latest_callers_of_all_tenants(processes: TwoProcesses) -> None:
    """The latest come first, each with its tenant; callers without access are left out."""
    for name, tenant in (("alice", "acme"), ("bob", "globex"), ("carol", "acme"), ("eve", "acme")):
        processes.now += 1
        processes.one.note(a_caller(subject=name, tenant_id=tenant))
        await processes.one.write()
    processes.out.add("eve")
    callers = [(tenant, caller.subject) for tenant, caller in await processes.other.everywhere(9)]

    assert callers == [("acme", "carol"), ("globex", "bob"), ("acme", "alice")]
    assert len(await processes.other.everywhere(2)) == 2


async def test_a_busy_caller_is_written_once_per_interval(processes: TwoProcesses) -> None:
    """A change of its permissions is written at once."""
    for _ in range(10):
        processes.one.note(a_caller())
        await processes.one.write()
        processes.now += AGAIN_S / 10
    assert (await processes.entry()).revision == 1

    processes.one.note(a_caller())
    await processes.one.write()
    assert (await processes.entry()).revision == 2

    processes.one.note(a_caller(scopes=frozenset({"more"})))
    assert [caller.scopes for caller in await processes.one.lately("acme", 9)] == [
        frozenset({"more"})
    ]
    assert (await processes.entry()).revision == 3


async def test_earlier_callers_are_dropped_from_memory(processes: TwoProcesses) -> None:
    """The memory holds only callers of one interval."""
    caller = a_caller()
    unknown = getrefcount(caller)
    processes.one.note(caller)
    await processes.one.write()
    assert getrefcount(caller) > unknown

    processes.now += AGAIN_S
    processes.one.note(a_caller(subject="bob"))
    await processes.one.write()
    assert getrefcount(caller) == unknown


async def test_the_stored_callers_are_bounded(processes: TwoProcesses) -> None:
    """Callers, bytes and time have a limit; the latest callers stay."""
    for at in range(CALLERS_PER_TENANT + 9):
        processes.now += 1
        processes.one.note(a_caller(subject=f"p{at}"))
        if at % 7 == 0:
            await processes.one.write()
    await processes.one.write()
    assert await processes.subjects() == [f"p{at}" for at in range(CALLERS_PER_TENANT + 8, 8, -1)]

    for at in range(CALLERS_PER_TENANT):
        processes.now += 1
        scopes = frozenset(f"{at} {number} {'x' * 250}" for number in range(250))
        processes.one.note(a_caller(subject=f"q{at}", scopes=scopes))
    await processes.one.write()
    entry = await processes.entry()
    assert len(entry.value) <= MAX_BYTES
    assert (await processes.subjects())[0] == f"q{CALLERS_PER_TENANT - 1}"
    assert entry.expires_at == processes.now + KEPT_S

    processes.now += KEPT_S - 1
    assert f"q{CALLERS_PER_TENANT - 1}" in await processes.subjects()
    processes.now += 1
    assert await processes.subjects() == []


@pytest.mark.parametrize("noted", [1, 2, recent_callers.MAX_NOTED])
async def test_the_memory_for_unwritten_callers_is_bounded(
    processes: TwoProcesses, monkeypatch: pytest.MonkeyPatch, noted: int
) -> None:
    """Memory for unwritten callers is bounded; those left out are noted the next time."""
    monkeypatch.setattr(recent_callers, "MAX_NOTED", noted)
    monkeypatch.setattr(recent_callers, "MAX_TENANTS", 2)
    monkeypatch.setattr(recent_callers, "MAX_WRITTEN", 2)
    tenants = ["acme", "globex", "initech"]
    for _ in range(2):
        for tenant in tenants:
            processes.one.note(a_caller(tenant_id=tenant))
        await processes.one.write()

    assert [await processes.subjects(tenant) for tenant in tenants] == [["alice"]] * 3


async def test_many_tenants_are_written_together(
    processes: TwoProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write has a few tenants; unchanged tenants are not written."""
    monkeypatch.setattr(recent_callers, "TENANTS_PER_WRITE", 3)
    written: list[set[str]] = []
    real = MemoryRecords.replace_entries

    async def counted(records: MemoryRecords, *args: Any, **more: Any) -> set[str]:
        written.append(set(args[2]))
        return await real(records, *args, **more)

    monkeypatch.setattr(MemoryRecords, "replace_entries", counted)
    for tenant in ("acme", "umbrella", "globex", "initech", "hooli"):
        processes.one.note(a_caller(tenant_id=tenant, subject=f"one of {tenant}"))
    processes.cut.add("one of umbrella")
    await processes.one.write()

    assert written == [{"acme", "globex", "initech"}, {"hooli"}]
    assert await processes.subjects("initech") == ["one of initech"]
    assert await processes.subjects("umbrella") == []


async def test_concurrent_writes_of_two_processes_keep_all_callers(
    processes: TwoProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that lost the race reads again."""
    read = MemoryEntries.all

    async def slowly(entries: MemoryEntries) -> list[Entry]:
        entry = await read(entries)
        await asyncio.sleep(0)
        return entry

    monkeypatch.setattr(MemoryEntries, "all", slowly)
    for at in range(4):
        processes.one.note(a_caller(subject=f"a{at}"))
        processes.other.note(a_caller(subject=f"b{at}"))
        await asyncio.gather(processes.one.write(), processes.other.write())

    assert sorted(await processes.subjects()) == [f"{who}{at}" for who in "ab" for at in range(4)]


async def test_revoked_callers_are_neither_stored_nor_listed(processes: TwoProcesses) -> None:
    """The order of events does not matter; once access is back, they are noted at once."""
    processes.one.note(a_caller())
    processes.one.note(a_caller(subject="bob"))
    await processes.one.write()
    processes.one.note(a_caller(subject="carol"))
    processes.cut = {"alice", "carol"}
    for process in (processes.one, processes.other):
        process.forget(lambda caller: caller.subject in processes.cut)
    processes.one.note(a_caller())
    assert await processes.subjects() == ["bob"]
    processes.one.note(a_caller(subject="dave"))
    await processes.one.write()
    assert b"alice" not in (await processes.entry()).value

    processes.cut = set()
    processes.one.note(a_caller())
    await processes.one.write()
    assert sorted(await processes.subjects()) == ["alice", "bob", "dave"]
    processes.out.add("alice")
    assert sorted(await processes.subjects()) == ["bob", "dave"]


async def test_a_token_without_issue_time_is_stored_with_the_time_of_its_call(
    processes: TwoProcesses,
) -> None:
    """Otherwise the refusal of older tokens would expire before its caller is forgotten."""
    processes.one.note(a_caller(issued_at=None))
    await processes.one.write()
    callers = await processes.other.lately("acme", 1)

    assert [caller.issued_at for caller in callers] == [int(processes.now)]


async def test_the_erasure_of_a_person_removes_entries_that_name_them_as_actor(
    processes: TwoProcesses,
) -> None:
    """It covers one issuer and one tenant."""
    for caller in (
        a_caller(),
        a_caller(client_id="app"),
        a_caller(subject="bob", actor="alice"),
        a_caller(issuer="https://other.example"),
        a_caller(subject="carol"),
    ):
        processes.one.note(caller)
    await processes.one.write()

    assert (
        await forget_person(processes.records.for_tenant("acme"), a_caller().issuer, "alice") == 3
    )
    assert (
        await forget_person(processes.records.for_tenant("acme"), a_caller().issuer, "alice") == 0
    )
    assert (
        await forget_person(processes.records.for_tenant("globex"), a_caller().issuer, "alice") == 0
    )
    callers = await processes.other.lately("acme", 9)
    assert {(caller.issuer, caller.subject) for caller in callers} == {
        ("https://other.example", "alice"),
        (a_caller().issuer, "carol"),
    }


async def test_an_unreadable_entry_is_replaced(processes: TwoProcesses) -> None:
    """Another version may have stored it."""
    entries = processes.records.for_tenant("acme").entries(SUBJECT)
    await entries.put(KEY, b"\xc1", now=0.0)
    assert await processes.subjects() == []
    processes.one.note(a_caller())
    await processes.one.write()
    assert await processes.subjects() == ["alice"]


async def test_an_outage_loses_no_caller(
    processes: TwoProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers noted during the outage are written when the store is back."""
    monkeypatch.setattr(recent_callers, "WRITE_S", 0.0)
    monkeypatch.setattr(recent_callers, "OUTAGE_S", 0.0)
    tried = asyncio.Event()

    async def away(entries: MemoryEntries) -> list[Entry]:
        tried.set()
        raise StoreUnavailable("away")

    async with asyncio.timeout(WITHIN_S), processes.one.writing():
        with monkeypatch.context() as outage:
            outage.setattr(MemoryEntries, "all", away)
            processes.one.note(a_caller())
            await tried.wait()
            with pytest.raises(StoreUnavailable):
                await processes.one.lately("acme", 9)
        while await processes.subjects() != ["alice"]:  # noqa: ASYNC110  # the timeout bounds it
            await asyncio.sleep(0)
        processes.one.note(a_caller(subject="bob"))

    assert sorted(await processes.subjects()) == ["alice", "bob"]
