"""The admission queue of a process: which call runs next when there are too many."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Hashable

import pytest

from gatepost.policy.limits.admission_queue import AdmissionQueue
from gatepost.policy.limits.rules import ANY
from gatepost.storage.rate_limits import ConcurrencyCounter

WITHIN_S = 10


class AdmissionFloor:
    """A queue and its counters; `entered` names the admitted calls in order."""

    def __init__(self, most: int, **settings: float) -> None:
        self.calls: defaultdict[Hashable, ConcurrencyCounter] = defaultdict(
            lambda: ConcurrencyCounter(ANY)
        )
        self.queue = AdmissionQueue(self.calls)
        self.queue.max_running = most
        for name, value in settings.items():
            setattr(self.queue, name, value)
        self.entered: list[str] = []
        self.tasks: dict[str, asyncio.Task[bool]] = {}

    async def come(self, name: str, tenant: str, caller: str = "one") -> "asyncio.Task[bool]":
        """Begin a call; it is admitted or waits when this returns."""
        self.calls[tenant].running += 1
        task = asyncio.create_task(self._enter(name, tenant, caller))
        self.tasks[name] = task
        await asyncio.sleep(0)
        return task

    async def _enter(self, name: str, tenant: str, caller: str) -> bool:
        if self.queue.running < self.queue.max_running:
            self.queue.running += 1
        else:
            try:
                let_in = await self.queue.enter(tenant, caller)
            except asyncio.CancelledError:
                self.calls[tenant].running -= 1
                raise
            if not let_in:
                self.calls[tenant].running -= 1
                return False
        self.entered.append(name)
        return True

    async def go(self, tenant: str) -> None:
        """End a call of *tenant*; the next admitted calls have entered when this returns."""
        self.calls[tenant].running -= 1
        self.queue.leave()
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.mark.requirement("P12")
async def test_a_flooding_tenant_does_not_overtake_others() -> None:
    """A tenant that came last and runs nothing is admitted first; then both take turns."""
    floor = AdmissionFloor(2)
    for number in range(8):
        await floor.come(f"flood-{number}", "flood")
    await floor.come("quiet-0", "quiet")
    await floor.come("quiet-1", "quiet")
    assert floor.entered == ["flood-0", "flood-1"]

    await floor.go("flood")
    assert floor.entered[2:] == ["quiet-0"]
    await floor.go("quiet")
    assert floor.entered[3:] == ["quiet-1"]
    await floor.go("quiet")
    assert floor.entered[4:] == ["flood-2"]


async def test_within_a_tenant_callers_take_turns() -> None:
    """A busy colleague's calls do not all run first."""
    floor = AdmissionFloor(1)
    for number in range(4):
        await floor.come(f"busy-{number}", "acme", "busy")
    for number in range(2):
        await floor.come(f"calm-{number}", "acme", "calm")
    for _ in range(5):
        await floor.go("acme")

    assert floor.entered == ["busy-0", "busy-1", "calm-0", "busy-2", "calm-1", "busy-3"]


async def test_equal_tenants_take_turns() -> None:
    """Three tenants that want more than there is get equal shares, in any order of arrival."""
    floor = AdmissionFloor(1)
    for tenant in ("a", "b", "c"):
        for number in range(3):
            await floor.come(f"{tenant}{number}", tenant)
    for _ in range(8):
        await floor.go(floor.entered[-1][0])

    assert [Counter(name[0] for name in floor.entered[i : i + 3]) for i in (1, 4)] == [
        {"a": 1, "b": 1, "c": 1}
    ] * 2


async def test_a_full_queue_refuses_the_caller_with_the_most_waiting_calls() -> None:
    """One caller's backlog keeps no colleague out; further calls of that caller are refused."""
    floor = AdmissionFloor(1, max_waiting_per_tenant=4)
    for number in range(5):
        await floor.come(f"busy-{number}", "acme", "busy")
    assert not await (await floor.come("busy-5", "acme", "busy"))

    calm = await floor.come("calm-0", "acme", "calm")
    assert not await floor.tasks["busy-4"]
    assert not calm.done()
    for _ in range(2):
        await floor.go("acme")
    assert await calm
    assert floor.queue.waiting == 2


@pytest.mark.parametrize("each", [0, 1])
async def test_the_queue_of_a_tenant_is_bounded(each: int) -> None:
    """A limit of zero means no queue; each tenant has its own."""
    floor = AdmissionFloor(1, max_waiting_per_tenant=each)
    await floor.come("first", "acme")
    tasks = [await floor.come(f"more-{number}", "acme", f"{number}") for number in range(3)]
    assert [task.done() for task in tasks] == [*([False] * each), *([True] * (3 - each))]
    other = await floor.come("other", "globex")
    assert other.done() is (each == 0)


async def test_no_call_waits_longer_than_configured() -> None:
    """A call that is not admitted in time is refused and leaves nothing behind."""
    floor = AdmissionFloor(1, within_s=0.01)
    await floor.come("first", "acme")
    async with asyncio.timeout(WITHIN_S):
        assert not await (await floor.come("second", "acme"))
    assert floor.queue.waiting == 0

    await floor.go("acme")
    assert floor.queue.running == 0
    assert floor.entered == ["first"]


@pytest.mark.parametrize("granted", [False, True])
async def test_a_cancelled_queued_call_holds_no_concurrency(granted: bool) -> None:
    """It may be cancelled before or at the moment of its admission."""
    floor = AdmissionFloor(1)
    await floor.come("first", "acme")
    stopped = await floor.come("second", "acme")
    third = await floor.come("third", "globex")
    if granted:
        floor.queue.let_in()
        floor.calls["acme"].running -= 1
        floor.calls["globex"].running += 5  # so that it is the other's turn
        floor.queue.leave()
    stopped.cancel()
    await asyncio.wait([stopped])
    assert stopped.cancelled()

    if not granted:
        await floor.go("acme")
    async with asyncio.timeout(WITHIN_S):
        assert await third
    assert (floor.queue.running, floor.queue.waiting) == (1, 0)


async def test_more_concurrency_admits_waiting_calls() -> None:
    """A reload counts at once."""
    floor = AdmissionFloor(1)
    for number in range(4):
        await floor.come(f"{number}", "acme")
    floor.queue.max_running = 3
    floor.queue.let_in()
    for _ in range(3):
        await asyncio.sleep(0)

    assert (floor.queue.running, floor.queue.waiting) == (3, 1)
    floor.queue.max_running = 1
    await floor.go("acme")
    await floor.go("acme")
    assert (floor.queue.running, floor.queue.waiting) == (1, 1)
    await floor.go("acme")
    assert floor.entered == ["0", "1", "2", "3"]


class Simulation:
    """
    Tenants that call over and over, in steps instead of seconds: each has so many workers, each
    worker calls again as soon as it is answered, and each call takes so many steps.
    """

    def __init__(self, places: int, **tenants: tuple[int, int]) -> None:
        self.floor = AdmissionFloor(places, within_s=WITHIN_S * 10)
        self.tenants = tenants
        self.done: Counter[str] = Counter()
        self._ending: dict[int, list[asyncio.Event]] = defaultdict(list)

    async def run(self, steps: int) -> Counter[str]:
        """Return how many calls each tenant completed within so many steps."""
        workers = [
            asyncio.create_task(self._work(tenant, number))
            for tenant, (count, _) in self.tenants.items()
            for number in range(count)
        ]
        for step in range(steps):
            self._step = step
            for ended in self._ending.pop(step, []):
                ended.set()
            for _ in range(4):
                await asyncio.sleep(0)
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)
        return self.done

    _step = 0

    async def _until(self, step: int) -> None:
        ended = asyncio.Event()
        self._ending[step].append(ended)
        await ended.wait()

    async def _work(self, tenant: str, number: int) -> None:
        queue, calls = self.floor.queue, self.floor.calls
        takes = self.tenants[tenant][1]
        while True:
            calls[tenant].running += 1
            if queue.running < queue.max_running:
                queue.running += 1
            elif not await queue.enter(tenant, number):
                calls[tenant].running -= 1
                await self._until(self._step + 1)
                continue
            await self._until(self._step + takes)
            self.done[tenant] += 1
            calls[tenant].running -= 1
            queue.leave()


FLOOD_SIZES = [
    pytest.param((200, 20), id="as many calls as it likes, each as long as the other's"),
    pytest.param((90, 20), id="just more than there are places"),
    pytest.param((200, 2), id="very short ones, over and over"),
    pytest.param((200, 60), id="ones that take three times as long"),
]


@pytest.mark.requirement("P12")
@pytest.mark.parametrize("flood", FLOOD_SIZES)
async def test_a_flood_costs_another_tenant_less_than_a_tenth(flood: tuple[int, int]) -> None:
    """Counted in completed calls, against the same time without the flood."""
    places, steps, calm = 64, 400, (16, 20)
    alone = await Simulation(places, calm=calm).run(steps)
    together = await Simulation(places, calm=calm, flood=flood).run(steps)

    assert alone["calm"] == pytest.approx(16 * steps / 20, rel=0.06)
    assert together["calm"] >= 0.9 * alone["calm"]
    assert together["flood"] > together["calm"] * 20 / flood[1]
