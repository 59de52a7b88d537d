"""Authors' plain functions run in threads, and their errors harm nothing else."""

import asyncio
import contextvars
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from weakref import WeakSet

import pytest

from gatepost.execution import threads
from gatepost.execution.threads import in_thread

SOON_S = 10.0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Yield the event that stuck functions wait for; set it at the end to free their threads."""
    event = threading.Event()
    yield event
    event.set()


class Argument:
    """A value that can be watched."""


def raising(error: BaseException) -> Callable[..., None]:
    def function(*_: object) -> None:
        raise error

    return function


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3), MemoryError()]
)
async def test_an_error_of_a_thread_is_raised_in_its_caller(error: BaseException) -> None:
    """This holds for any type of error; the thread prints nothing."""
    caught: list[BaseException] = []
    try:
        await in_thread(raising(error))
    except BaseException as raised:  # noqa: BLE001  # this is what is looked at
        caught.append(raised)

    assert [type(error) for error in caught] == [type(error)]


@pytest.mark.parametrize("error", [StopIteration(7), GeneratorExit()])
async def test_stop_iteration_of_a_thread_becomes_a_runtime_error(error: BaseException) -> None:
    """So does `GeneratorExit`; either one would otherwise look like the coroutine's end."""
    with pytest.raises(RuntimeError, match=type(error).__name__):
        await in_thread(raising(error))


async def test_context_variables_are_available_in_the_thread() -> None:
    """Libraries of a tool may keep data in them."""
    name = contextvars.ContextVar[str]("name")
    name.set("acme")

    assert await in_thread(name.get) == "acme"


async def test_stuck_functions_do_not_exhaust_the_servers_threads(gate: threading.Event) -> None:
    """The loop's own pool is free however many never return."""
    stuck = [asyncio.create_task(in_thread(gate.wait, SOON_S)) for _ in range(40)]
    async with asyncio.timeout(SOON_S):
        assert await asyncio.to_thread(int) == 0
        assert await in_thread(int) == 0
    for task in stuck:
        task.cancel()
    await asyncio.wait(stuck)


async def test_a_thread_holds_its_concurrency_until_it_ends(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it were free when the caller leaves, threads would gather without a bound."""
    monkeypatch.setattr(threads, "THREADS_AT_ONCE", 2)
    threads._threads.pop(asyncio.get_running_loop(), None)
    stuck = [asyncio.create_task(in_thread(gate.wait, SOON_S)) for _ in range(2)]
    await asyncio.sleep(0)
    for task in stuck:
        task.cancel()
    await asyncio.wait(stuck)
    waiting = asyncio.create_task(in_thread(int))
    await asyncio.to_thread(int)
    began = waiting.done()
    gate.set()
    async with asyncio.timeout(SOON_S):
        assert await waiting == 0

    assert not began
    threads._threads.pop(asyncio.get_running_loop(), None)


async def test_functions_one_after_another_share_threads() -> None:
    """Starting a thread takes longer than most tools."""
    used = {await in_thread(threading.current_thread) for _ in range(20)}

    # The next function may come before the threads of the last ones wait for it.
    assert len(used) < 10


async def test_functions_that_come_together_run_at_the_same_time() -> None:
    """Each may block: one that waits for another function must not keep it from running."""
    everyone = threading.Barrier(threads.THREADS_AT_ONCE)

    async with asyncio.timeout(SOON_S):
        calls = (in_thread(everyone.wait, SOON_S) for _ in range(threads.THREADS_AT_ONCE))
        assert len(set(await asyncio.gather(*calls))) == threads.THREADS_AT_ONCE


async def test_short_functions_do_not_wait_for_long_ones(gate: threading.Event) -> None:
    """However they follow each other, and however many threads wait."""
    stuck = []
    async with asyncio.timeout(SOON_S):
        for number in range(40):
            stuck.append(asyncio.create_task(in_thread(gate.wait, SOON_S)))
            assert await asyncio.gather(*(in_thread(int, at) for at in range(number))) == [
                *range(number)
            ]
        gate.set()
        assert await asyncio.gather(*stuck) == [True] * 40


async def test_a_thread_without_a_function_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not keep the last function's arguments while it waits."""
    monkeypatch.setattr(threads, "POOL", threads.FunctionThreads())
    monkeypatch.setattr(threads, "IDLE_S", 0.01)
    arguments = WeakSet[Argument]()

    async def call() -> threading.Thread:
        argument = Argument()
        arguments.add(argument)
        thread: threading.Thread = await in_thread(lambda _: threading.current_thread(), argument)
        return thread

    thread = await call()
    await asyncio.to_thread(thread.join, SOON_S)

    assert not thread.is_alive()
    assert not arguments
    assert await call() is not thread


async def test_functions_that_meet_an_ending_thread_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread may be woken at the moment in which it would end."""
    monkeypatch.setattr(threads, "POOL", threads.FunctionThreads())
    monkeypatch.setattr(threads, "IDLE_S", 0.0001)

    async with asyncio.timeout(SOON_S):
        for number in range(300):
            assert await asyncio.gather(*(in_thread(int, at) for at in range(number % 4))) == [
                *range(number % 4)
            ]


async def test_a_thread_that_cannot_be_started_is_an_error_of_its_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Later calls have threads again."""
    monkeypatch.setattr(threads, "POOL", threads.FunctionThreads())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="new thread"):
            await in_thread(int)

    assert await in_thread(int) == 0


def test_a_forked_process_has_threads_of_its_own() -> None:
    """Those of its parent do not run there, and a call that was handed to one would never end."""
    asyncio.run(in_thread(int))
    with warnings.catch_warnings():
        # Newer Pythons warn of just this: locks and threads of the parent.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os._exit(asyncio.run(asyncio.wait_for(in_thread(int, 7), SOON_S)))

    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_a_loop_closes_without_waiting_for_a_stuck_function(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends, too, and a thread that returns later has no effect."""
    monkeypatch.setattr(threads, "POOL", threads.FunctionThreads())
    monkeypatch.setattr(threads, "IDLE_S", 0.01)
    late: list[threading.Thread] = []
    began = threading.Event()

    def stuck() -> None:
        late.append(threading.current_thread())
        began.set()
        gate.wait(SOON_S)

    async def main() -> None:
        task = asyncio.create_task(in_thread(stuck))
        await asyncio.to_thread(began.wait, SOON_S)
        task.cancel()

    asyncio.run(main())
    assert late[0].daemon
    gate.set()
    late[0].join(SOON_S)
    assert not late[0].is_alive()
