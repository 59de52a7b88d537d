"""Authors' plain functions run in threads, and their errors harm nothing else."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator

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


def raising(error: BaseException) -> Callable[[], None]:
    def function() -> None:
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


def test_a_loop_closes_without_waiting_for_a_stuck_function(gate: threading.Event) -> None:
    """The process ends, too, and a thread that returns later has no effect."""
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
