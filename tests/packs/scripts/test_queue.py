"""ScriptQueue at workers: few at once, fairly, and never lost."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from gatepost.execution.failure import ToolFailure
from gatepost_packs.scripts.script_queue import ScriptQueue
from gatepost_packs.scripts.settings import ScriptsSettings

pytestmark = pytest.mark.requirement("P10")

QUEUE_SETTINGS = ScriptsSettings(workers=3, workers_per_tenant=2, queue_per_tenant=2)


class QueuedScripts:
    """ScriptQueue, and those who want one."""

    def __init__(self) -> None:
        self.queue = ScriptQueue()
        self.entered: list[str] = []
        self.leave: dict[str, asyncio.Event] = {}

    async def take(self, who: str, *, patient: bool = True) -> None:
        self.leave[who] = asyncio.Event()
        async with self.queue.admitted(who.partition("-")[0], QUEUE_SETTINGS, may_wait=patient):
            self.entered.append(who)
            await self.leave[who].wait()

    async def come(self, *names: str) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.take(name)) for name in names]
        await settle()
        return tasks


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_tenant_never_has_all_turns() -> None:
    """A run of another tenant starts before the third run of the tenant that came first."""
    floor = QueuedScripts()
    tasks = await floor.come("a-1", "a-2", "a-3", "b-1", "b-2", "c-1")
    at_first = list(floor.entered)
    floor.leave["a-1"].set()
    await settle()
    then = list(floor.entered)
    floor.leave["b-1"].set()
    await settle()

    assert at_first == ["a-1", "a-2", "b-1"]
    assert then == [*at_first, "a-3"]
    assert floor.entered == [*then, "b-2"]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert floor.queue.running.total() == 0


async def test_too_many_waiting_runs_are_refused() -> None:
    """The refusal has a retry time; a run of another tenant may still wait."""
    floor = QueuedScripts()
    tasks = await floor.come("a-1", "a-2", "a-3", "a-4", "b-1", "b-2")

    with pytest.raises(ToolFailure) as refused:
        await floor.take("a-5")

    assert (refused.value.failure.kind, refused.value.failure.retry_after) == ("rate_limit", 1)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_nested_run_does_not_wait_for_a_turn() -> None:
    """It would wait for the turn of its own caller, which never ends."""
    floor = QueuedScripts()
    tasks = await floor.come("a-1", "a-2")

    with pytest.raises(ToolFailure):
        await floor.take("a-3", patient=False)

    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_turn_of_a_cancelled_run_goes_to_the_next_one() -> None:
    """This holds even if the chosen run is cancelled at that moment."""
    floor = QueuedScripts()
    tasks = await floor.come("a-1", "a-2", "a-3", "a-4")
    floor.leave["a-1"].set()
    await asyncio.sleep(0)
    tasks[2].cancel()
    await settle()
    entered = set(floor.entered)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)

    assert "a-4" in entered
    assert floor.queue.running.total() == 0
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(floor.queue.admitted("a", QUEUE_SETTINGS))
