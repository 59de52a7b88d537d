"""What a process knows of cut-offs: read at the start, kept in an outage, and dropped where due."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from gatepost.cutoffs import watch
from gatepost.cutoffs.order import SUSPENDED, suspension
from gatepost.cutoffs.watch import FRESH_S, CutOffs, tell
from gatepost.stores.api import StoreUnavailable
from gatepost.stores.cutoffs import CutOff
from gatepost.stores.memory.records import MemoryRecords
from gatepost.stores.memory.relay import MemoryRelay
from gatepost.streams import Streams
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import IssuerUnavailable, RevokedToken
from tests.cutoff.test_reach import BOB, NOW, order

pytestmark = pytest.mark.requirement("CO3")

CUT = order(subject="bob")


class Records(MemoryRecords):
    """A database that may be out of reach, and counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.is_out = False
        self.asked = {"changes": 0, "all": 0}
        store = self.cutoffs
        changes, everything = store.changes, store.all

        async def counted_changes() -> int:
            self._ask("changes")
            return await changes()

        async def counted_all() -> list[object]:
            self._ask("all")
            return [*await everything()]

        store.changes = counted_changes  # type: ignore[method-assign]
        store.all = counted_all  # type: ignore[method-assign,assignment]

    def _ask(self, what: str) -> None:
        if self.is_out:
            raise StoreUnavailable("it is out")
        self.asked[what] += 1


class Desk:
    """One process's knowledge, with clocks that a test moves."""

    def __init__(self) -> None:
        self.records, self.relay = Records(), MemoryRelay()
        self.now, self.told = NOW, 0
        self.new: tuple[CutOff, ...] = ()
        self.cutoffs = CutOffs(
            self.records,
            self.relay,
            ended=self._ended,
            clock=lambda: self.now,
            monotonic=lambda: self.now,
        )

    def _ended(self, new: tuple[CutOff, ...]) -> None:
        self.told += 1
        self.new += new


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_before_the_first_reading_nobody_passes(desk: Desk) -> None:
    """A start without a database lets nobody in, and says that this is no caller's doing."""
    with pytest.raises(IssuerUnavailable):
        desk.cutoffs.admit(BOB)
    assert not desk.cutoffs.is_ready

    await desk.cutoffs.look()
    desk.cutoffs.admit(BOB)
    assert desk.cutoffs.is_ready


async def test_a_poll_reads_one_number(desk: Desk) -> None:
    """The cut-offs themselves are read when it changes, and now and then all the same."""
    for _ in range(5):
        await desk.cutoffs.look()
    assert desk.records.asked == {"changes": 5, "all": 1}

    await desk.records.cutoffs.put(CUT)
    await desk.cutoffs.look()
    assert desk.records.asked == {"changes": 6, "all": 2}
    assert desk.told == 1
    with pytest.raises(RevokedToken):
        desk.cutoffs.admit(BOB)

    desk.now += FRESH_S
    await desk.cutoffs.look()
    assert desk.records.asked == {"changes": 7, "all": 3}
    assert desk.told == 1


async def test_what_is_new_is_told_once(desk: Desk) -> None:
    """To whoever withdraws what waits; at a start not what others have acted on long ago."""
    old = msgspec.structs.replace(CUT, id="old", made_at=NOW - 7 * 86_400)
    for cut in (old, CUT):
        await desk.records.cutoffs.put(cut)
    await desk.cutoffs.look()
    await desk.cutoffs.look()
    assert desk.new == (CUT,)

    later = suspension("acme", now=NOW + 1, by="root")
    await desk.records.cutoffs.put(later)
    await desk.cutoffs.look()
    await desk.records.cutoffs.delete(CUT.tenant, CUT.id)
    await desk.cutoffs.look()
    assert desk.new == (CUT, later)
    assert desk.told == 3


async def test_an_outage_changes_nothing(desk: Desk) -> None:
    """What was read last counts, however long it lasts."""
    await desk.records.cutoffs.put(CUT)
    await desk.cutoffs.look()
    desk.records.is_out = True
    desk.now += 3600
    with pytest.raises(StoreUnavailable):
        await desk.cutoffs.look()

    assert desk.cutoffs.is_revoked(BOB)
    assert desk.cutoffs.is_ready


async def test_the_suspended_are_one_set_for_good(desk: Desk) -> None:
    """Whoever serves holds it; what the configuration and what commands shut are told apart."""
    held = desk.cutoffs.suspended
    desk.cutoffs.configure(["acme"])
    for tenant in ("acme", "globex"):
        await desk.records.cutoffs.put(suspension(tenant, now=NOW, by="root"))
    await desk.cutoffs.look()
    assert held == {"acme", "globex"}

    for tenant in ("acme", "globex"):
        await desk.records.cutoffs.delete(tenant, SUSPENDED)
    await desk.cutoffs.look()
    assert held == {"acme"}
    desk.cutoffs.configure([])
    assert held == set()
    assert held is desk.cutoffs.suspended


async def told(desk: Desk, times: int) -> None:
    """Wait until the process has acted on so many changes."""
    async with asyncio.timeout(10):
        while desk.told < times:  # noqa: ASYNC110  # nothing else tells
            await asyncio.sleep(0.005)


@pytest.fixture
async def watching(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    """One that looks by itself only when it is woken."""
    monkeypatch.setattr(watch, "POLL_S", 3600.0)
    async with desk.cutoffs.watching():
        yield desk


async def test_a_wake_up_spares_the_wait(watching: Desk) -> None:
    """Word on the relay is a reason to look at once."""
    await watching.records.cutoffs.put(CUT)
    await tell(watching.relay)
    await told(watching, 1)

    assert watching.cutoffs.is_revoked(BOB)


@pytest.mark.parametrize("turns", range(6))
async def test_a_wake_up_does_not_outlive_the_stop(desk: Desk, turns: int) -> None:
    """However close the two come, watching ends."""
    async with asyncio.timeout(10):
        async with desk.cutoffs.watching():
            for _ in range(10):
                await asyncio.sleep(0)
            desk.cutoffs.wake()
            for _ in range(turns):
                await asyncio.sleep(0)


async def test_without_a_wake_up_it_looks_by_itself(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay may lose anything."""
    monkeypatch.setattr(watch, "POLL_S", 0.01)
    async with desk.cutoffs.watching():
        await desk.records.cutoffs.put(CUT)
        await told(desk, 1)

    assert desk.cutoffs.is_revoked(BOB)


class Opened:
    """A stream that was let through the gate just before its caller was shut out."""

    watches = False

    def __init__(self, caller: TenantContext) -> None:
        self.caller, self.ended = caller, 0

    def wake(self) -> None:
        """Nothing to say."""

    def beat(self) -> None:
        """Nothing to show."""

    def end(self) -> None:
        self.ended += 1


async def test_a_stream_that_opens_too_late_ends_at_once(desk: Desk) -> None:
    """It was not there when all the others ended."""
    await desk.records.cutoffs.put(CUT)
    await desk.cutoffs.look()
    streams = Streams()
    streams.is_cut = desk.cutoffs.is_cut
    late, other = Opened(BOB), Opened(msgspec.structs.replace(BOB, subject="carol"))
    for stream in (late, other):
        streams.enter(stream)

    assert (late.ended, other.ended) == (1, 0)
    streams.close()
