"""One poller reads all change counters, and each follower gets its own."""

import asyncio
from collections.abc import Collection

import pytest

from gatepost.storage import change_poller
from gatepost.storage.change_poller import ChangePoller, notify
from gatepost.storage.entries import CHANGE_COUNTER, NO_TENANT
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.records import Records
from gatepost.storage.shared_store import MemorySharedStore
from tests.support.measuring import capture_logs


async def count_change(records: Records, subject: str) -> None:
    """Count a change."""
    await records.for_tenant(NO_TENANT).entries(subject).put(CHANGE_COUNTER, b"", now=1.0)


class Taken:
    """The counters that a follower got; it can be made to wait or to fail."""

    def __init__(self) -> None:
        self.counters: list[int] = []
        self.may_go = asyncio.Event()
        self.may_go.set()
        self.is_out = False
        self._news = asyncio.Event()

    async def __call__(self, counter: int) -> None:
        self.counters.append(counter)
        self._news.set()
        await self.may_go.wait()
        if self.is_out:
            raise StoreUnavailable("it is out")

    async def until(self, counter: int) -> None:
        """Return once it has got this counter."""
        async with asyncio.timeout(10):
            while counter not in self.counters:
                self._news.clear()
                await self._news.wait()


class CountedRecords(MemoryRecords):
    """Count the readings of the counters; they may be out of reach."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[set[str]] = []
        self.is_out = False

    async def changes(self, subjects: Collection[str]) -> dict[str, int]:
        """Return the counters of `Records`, and count the reading."""
        self.asked.append({*subjects})
        if self.is_out:
            raise StoreUnavailable("it is out")
        return await super().changes(subjects)


@pytest.fixture
def counted_records() -> CountedRecords:
    return CountedRecords()


@pytest.fixture
def shared_store() -> MemorySharedStore:
    return MemorySharedStore()


@pytest.fixture
def poller(counted_records: CountedRecords, shared_store: MemorySharedStore) -> ChangePoller:
    return ChangePoller(counted_records, shared_store)


@pytest.fixture
def rare_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll only when notified."""
    monkeypatch.setattr(change_poller, "POLL_S", 3_600)


@pytest.fixture
def frequent_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_poller, "POLL_S", 0.001)


async def test_each_subject_counts_its_own_changes(records: Records) -> None:
    """This holds on every backend; an unchanged subject has no number."""
    for subject in ("one", "one", "two"):
        await count_change(records, subject)
    await records.for_tenant("acme").entries("three").put(CHANGE_COUNTER, b"", now=1.0)

    assert await records.changes({"one", "two", "three"}) == {"one": 2, "two": 1}
    assert await records.changes({"two"}) == {"two": 1}
    assert await records.changes(()) == {}


@pytest.mark.usefixtures("rare_polls")
async def test_all_followers_share_one_reading_after_a_notification(
    counted_records: CountedRecords, shared_store: MemorySharedStore, poller: ChangePoller
) -> None:
    first, two, late = Taken(), Taken(), Taken()
    async with poller.polling({"one": first, "two": two}):
        assert (first.counters, two.counters) == ([0], [0])  # before the block begins
        async with poller.following("late", late), asyncio.timeout(10):
            await asyncio.sleep(0)
            for subject in ("one", "late"):
                await count_change(counted_records, subject)
            while not late.counters:  # the subscription begins a little after the block
                await notify(shared_store)
                await asyncio.sleep(0)
            await first.until(1)
            await late.until(1)

    assert 1 not in two.counters
    assert counted_records.asked[0] == {"one", "two"}
    assert {frozenset(subjects) for subjects in counted_records.asked[1:]} == {
        frozenset({"one", "two", "late"})
    }


@pytest.mark.usefixtures("frequent_polls")
async def test_a_slow_follower_delays_no_other(
    counted_records: CountedRecords, poller: ChangePoller
) -> None:
    """A revocation takes effect however long secrets take to read."""
    slow, other = Taken(), Taken()
    async with poller.polling({"slow": slow, "other": other}):
        slow.may_go.clear()
        await count_change(counted_records, "slow")
        await slow.until(1)
        for _ in range(5):
            await count_change(counted_records, "other")
            await count_change(counted_records, "slow")
            await other.until((await counted_records.changes({"other"}))["other"])
        assert slow.counters[-1] == 1
        slow.may_go.set()
        await slow.until(6)


@pytest.mark.usefixtures("frequent_polls")
@pytest.mark.parametrize("what", ["poll", "follower"])
async def test_an_outage_is_logged_once_and_ends(
    counted_records: CountedRecords, poller: ChangePoller, what: str
) -> None:
    """Either the counters or the changed data cannot be read."""
    taken = Taken()
    breaks: CountedRecords | Taken = counted_records if what == "poll" else taken
    with capture_logs() as logs:
        async with poller.polling({"one": taken}), asyncio.timeout(10):
            breaks.is_out = True
            polls = len(counted_records.asked)
            while len(counted_records.asked) < polls + 5:  # noqa: ASYNC110  # nothing else tells
                await asyncio.sleep(0)
            breaks.is_out = False
            while len(logs) < 2:  # noqa: ASYNC110  # nothing else tells
                await asyncio.sleep(0)

    assert [log["event"] for log in logs] == ["changes_not_read", "changes_read_again"]
