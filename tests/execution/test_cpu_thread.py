"""The queue in front of the computing thread: no caller takes the turns of another."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from gatepost.execution.cpu_thread import (
    MAX_WAITING,
    Admission,
    ThreadQueue,
    TooManyWaiting,
    in_cpu_thread,
)
from tests.support.endpoint import a_caller

SOON_S = 10.0
ALICE, ANN = a_caller(), a_caller(subject="ann")
BOB = a_caller(tenant_id="globex", subject="bob")


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Yield the event that the running work waits for; set it at the end to free the thread."""
    event = threading.Event()
    yield event
    event.set()


async def _started(gate: threading.Event) -> asyncio.Task[bool]:
    """Start work of a third tenant that occupies the thread until the gate opens."""
    begun = threading.Event()

    def keep() -> bool:
        begun.set()
        return gate.wait(SOON_S)

    task = asyncio.create_task(in_cpu_thread(a_caller(tenant_id="other"), keep))
    assert await asyncio.to_thread(begun.wait, SOON_S)
    return task


async def test_tenants_take_turns_and_so_do_the_callers_of_one() -> None:
    """A caller with many computations gets one turn before the next caller."""
    loop, queue = asyncio.get_running_loop(), ThreadQueue()
    names: dict[Admission, str] = {}
    alice, ann, bob = (principal.principal_key for principal in (ALICE, ANN, BOB))
    for name, who in [("a1", alice), ("a2", alice), ("a3", alice), ("n1", ann), ("b1", bob)]:
        turn: Admission = loop.create_future()
        names[turn] = name
        queue.add(who, turn)
    order = [names[turn] for turn in iter(queue.next, None)]
    assert order == ["a1", "b1", "n1", "a2", "a3"]
    assert queue.waiting(alice) == 0


async def test_a_caller_waits_for_at_most_one_computation_of_each_other_tenant(
    gate: threading.Event,
) -> None:
    """Many computations of the first caller run after the one of a later caller."""
    running = await _started(gate)
    order: list[str] = []
    computations = [
        asyncio.create_task(in_cpu_thread(ALICE, order.append, "alice")) for _ in range(20)
    ]
    await asyncio.sleep(0)
    computations.append(asyncio.create_task(in_cpu_thread(BOB, order.append, "bob")))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.wait_for(asyncio.gather(running, *computations), SOON_S)
    assert order.index("bob") <= 1
    assert len(order) == 21


async def test_a_caller_has_a_bounded_number_of_queued_computations(gate: threading.Event) -> None:
    """The next one is refused at once; other callers are not affected."""
    running = await _started(gate)
    done: list[str] = []
    computations = [
        asyncio.create_task(in_cpu_thread(ALICE, done.append, "kept")) for _ in range(MAX_WAITING)
    ]
    await asyncio.sleep(0)
    with pytest.raises(TooManyWaiting) as refused:
        await in_cpu_thread(ALICE, done.append, "refused")
    assert refused.value.failure.kind == "rate_limit"
    assert refused.value.failure.retry_after
    computations += [
        asyncio.create_task(in_cpu_thread(who, done.append, "other")) for who in (ANN, BOB)
    ]
    computations.append(
        asyncio.create_task(in_cpu_thread(ALICE, done.append, "answer", bounded=False))
    )
    await asyncio.sleep(0)
    gate.set()
    await asyncio.wait_for(asyncio.gather(running, *computations), SOON_S)
    assert sorted(set(done)) == ["answer", "kept", "other"]
    assert len(done) == MAX_WAITING + 3


async def test_a_queued_computation_of_an_ended_call_does_not_run(gate: threading.Event) -> None:
    """It leaves the queue, so that its caller may queue another one."""
    running = await _started(gate)
    done: list[str] = []
    gone = [
        asyncio.create_task(in_cpu_thread(ALICE, done.append, "gone")) for _ in range(MAX_WAITING)
    ]
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    kept_task = asyncio.create_task(in_cpu_thread(ALICE, done.append, "kept"))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.wait_for(asyncio.gather(running, kept_task), SOON_S)
    assert done == ["kept"]


async def test_a_cancelled_call_with_a_running_computation_starts_no_second_one(
    gate: threading.Event,
) -> None:
    """The next job begins when the thread is free, and not before."""
    running = await _started(gate)
    waiting = asyncio.create_task(in_cpu_thread(ALICE, gate.is_set))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    gate.set()
    assert await asyncio.wait_for(waiting, SOON_S)


async def test_the_turn_of_a_call_that_ends_at_that_moment_goes_to_the_next(
    gate: threading.Event,
) -> None:
    """Otherwise the thread would wait forever for a job that does not come."""
    running = await _started(gate)
    first = asyncio.create_task(in_cpu_thread(ALICE, int))
    second = asyncio.create_task(in_cpu_thread(BOB, int))
    running.add_done_callback(lambda _: asyncio.get_running_loop().call_soon(first.cancel))
    await asyncio.sleep(0)
    gate.set()
    assert await asyncio.wait_for(second, SOON_S) == 0
    assert await asyncio.wait_for(in_cpu_thread(BOB, int), SOON_S) == 0
    await asyncio.gather(first, return_exceptions=True)


async def test_an_error_of_a_computation_is_raised_and_the_next_one_runs() -> None:
    """A failure does not block the thread."""
    with pytest.raises(ZeroDivisionError):
        await in_cpu_thread(ALICE, divmod, 1, 0)
    assert await asyncio.wait_for(in_cpu_thread(ALICE, divmod, 3, 2), SOON_S) == (1, 1)
