"""A process reads revocations at its start, keeps them in an outage and drops expired ones."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager

import msgspec
import pytest

from gatepost.http.open_streams import OpenStreams
from gatepost.policy.revocation.revocation_records import SUSPENDED, hold, suspension
from gatepost.policy.revocation.watch import READ_WITHIN_S, Revocations
from gatepost.storage import change_poller
from gatepost.storage.change_poller import ChangePoller, notify
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.revocations import SUBJECT, RevocationRecord
from gatepost.storage.shared_store import MemorySharedStore
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import IssuerUnavailable, RevokedToken
from tests.policy.revocation.test_revocation_records import BOB, NOW, ordered_revocation

pytestmark = pytest.mark.requirement("CO3")

REVOCATION = ordered_revocation(subject="bob")


class UnreachableRecords(MemoryRecords):
    """A database that may be out of reach, and counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.is_out = False
        self.asked = {"changes": 0, "all": 0}
        everything = self.revocations.all

        async def counted_all() -> list[object]:
            self._ask("all")
            return [*await everything()]

        self.revocations.all = counted_all  # type: ignore[method-assign,assignment]

    async def changes(self, subjects: Collection[str]) -> dict[str, int]:
        """Count the read, and fail while the database is away."""
        self._ask("changes")
        return await super().changes(subjects)

    def _ask(self, what: str) -> None:
        if self.is_out:
            raise StoreUnavailable("it is out")
        self.asked[what] += 1


class WatchingProcess:
    """One process's knowledge, with clocks that a test moves."""

    def __init__(self) -> None:
        self.records, self.shared_store = UnreachableRecords(), MemorySharedStore()
        self.poller = ChangePoller(self.records, self.shared_store)
        self.now, self.told = NOW, 0
        self.new: tuple[RevocationRecord, ...] = ()
        self.revocations = Revocations(
            self.records,
            on_revoked=self._ended,
            clock=lambda: self.now,
            monotonic=lambda: self.now,
        )

    def watching(self) -> AbstractAsyncContextManager[None]:
        """Look during a block."""
        return self.poller.polling({SUBJECT: self.revocations.take_up})

    def _ended(self, new: tuple[RevocationRecord, ...]) -> None:
        self.told += 1
        self.new += new


@pytest.fixture
def process() -> WatchingProcess:
    return WatchingProcess()


async def test_before_the_first_read_no_caller_passes(process: WatchingProcess) -> None:
    """A server that starts without its database lets no caller in and blames no caller for it."""
    with pytest.raises(IssuerUnavailable):
        process.revocations.admit(BOB)
    assert not process.revocations.is_ready

    await process.revocations.read_changes()
    process.revocations.admit(BOB)
    assert process.revocations.is_ready


async def test_a_poll_reads_one_number(process: WatchingProcess) -> None:
    """The revocations themselves are read when that number changes, and also now and then."""
    for _ in range(5):
        await process.revocations.read_changes()
    assert process.records.asked == {"changes": 5, "all": 1}

    await process.records.revocations.put(REVOCATION)
    await process.revocations.read_changes()
    assert process.records.asked == {"changes": 6, "all": 2}
    assert process.told == 1
    with pytest.raises(RevokedToken):
        process.revocations.admit(BOB)

    process.now += READ_WITHIN_S
    await process.revocations.read_changes()
    assert process.records.asked == {"changes": 7, "all": 3}
    assert process.told == 1


async def test_a_new_revocation_is_passed_on_once(process: WatchingProcess) -> None:
    """
    New records are passed on once, for the withdrawal of waiting requests; at a start, old records
    are not.
    """
    old = msgspec.structs.replace(REVOCATION, id="old", created_at=NOW - 7 * 86_400)
    for record in (old, REVOCATION):
        await process.records.revocations.put(record)
    await process.revocations.read_changes()
    await process.revocations.read_changes()
    assert process.new == (REVOCATION,)

    later = suspension("acme", now=NOW + 1, by="root")
    await process.records.revocations.put(later)
    await process.revocations.read_changes()
    await process.records.revocations.delete(REVOCATION.tenant, REVOCATION.id)
    await process.revocations.read_changes()
    assert process.new == (REVOCATION, later)
    assert process.told == 3


async def test_a_hold_applies_to_one_caller_and_ends(process: WatchingProcess) -> None:
    """A machine that goes by a person's id is not that person; no token is refused for it."""
    machine = msgspec.structs.replace(BOB, subject_kind="client")
    record = hold(machine, now=NOW, for_s=600, by="approvals", reason="")
    await process.revocations.read_changes()
    notified_changes = process.told
    await process.records.revocations.put(record)
    await process.revocations.read_changes()

    assert (process.revocations.held_s(machine), process.revocations.held_s(BOB)) == (600, 0)
    assert process.revocations.holds("acme") == [record]
    assert not process.revocations.is_revoked(machine)
    assert (process.new, process.told) == ((), notified_changes)
    process.now += 600
    assert process.revocations.held_s(machine) == 0
    assert process.revocations.holds("acme") == []


async def test_the_last_revocations_count_during_an_outage(process: WatchingProcess) -> None:
    """This holds however long the outage lasts."""
    await process.records.revocations.put(REVOCATION)
    await process.revocations.read_changes()
    process.records.is_out = True
    process.now += 3600
    with pytest.raises(StoreUnavailable):
        await process.revocations.read_changes()

    assert process.revocations.is_revoked(BOB)
    assert process.revocations.is_ready


async def test_the_set_of_suspended_tenants_stays_the_same_object(process: WatchingProcess) -> None:
    """The gate keeps a reference to it; commands and the configuration change it separately."""
    suspended = process.revocations.suspended
    process.revocations.configure(["acme"])
    for tenant in ("acme", "globex"):
        await process.records.revocations.put(suspension(tenant, now=NOW, by="root"))
    await process.revocations.read_changes()
    assert suspended == {"acme", "globex"}

    for tenant in ("acme", "globex"):
        await process.records.revocations.delete(tenant, SUSPENDED)
    await process.revocations.read_changes()
    assert suspended == {"acme"}
    process.revocations.configure([])
    assert suspended == set()
    assert suspended is process.revocations.suspended


async def wait_for_changes(process: WatchingProcess, times: int) -> None:
    """Wait until the process has acted on so many changes."""
    async with asyncio.timeout(10):
        while process.told < times:  # noqa: ASYNC110  # nothing else tells
            await asyncio.sleep(0.005)


@pytest.fixture
async def watching(
    process: WatchingProcess, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[WatchingProcess]:
    """Yield a process that polls only when it is woken."""
    monkeypatch.setattr(change_poller, "POLL_S", 3600.0)
    async with process.watching():
        yield process


async def test_a_notification_triggers_a_read_at_once(watching: WatchingProcess) -> None:
    """A message on the shared store makes the process read at once."""
    await watching.records.revocations.put(REVOCATION)
    await notify(watching.shared_store)
    await wait_for_changes(watching, 1)

    assert watching.revocations.is_revoked(BOB)


@pytest.mark.parametrize("turns", range(6))
async def test_a_notification_during_the_stop_does_not_keep_the_watch_running(
    process: WatchingProcess, turns: int
) -> None:
    """The stop and the notification may come in any order."""
    async with asyncio.timeout(10):
        async with process.watching():
            for _ in range(10):
                await asyncio.sleep(0)
            process.poller.wake()
            for _ in range(turns):
                await asyncio.sleep(0)


async def test_without_a_notification_the_process_polls(
    process: WatchingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shared store may lose messages, so the process also polls."""
    monkeypatch.setattr(change_poller, "POLL_S", 0.01)
    async with process.watching():
        await process.records.revocations.put(REVOCATION)
        await wait_for_changes(process, 1)

    assert process.revocations.is_revoked(BOB)


class OpenedStream:
    """A stream that passed the gate just before its caller was revoked."""

    watches = False

    def __init__(self, caller: TenantContext) -> None:
        self.caller, self.ended = caller, 0

    def wake(self) -> None:
        """Do nothing."""

    def send_keep_alive(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        self.ended += 1


async def test_a_stream_that_opens_too_late_ends_at_once(process: WatchingProcess) -> None:
    """The stream opened after the others had ended."""
    await process.records.revocations.put(REVOCATION)
    await process.revocations.read_changes()
    streams = OpenStreams()
    streams.is_refused = process.revocations.is_refused
    late, other = OpenedStream(BOB), OpenedStream(msgspec.structs.replace(BOB, subject="carol"))
    for stream in (late, other):
        streams.enter(stream)

    assert (late.ended, other.ended) == (1, 0)
    streams.close()
