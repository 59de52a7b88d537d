"""Authors' plain functions run in threads, and their errors harm nothing else."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator

import pytest

from gatepost.tools import threads
from gatepost.tools.threads import in_thread

SOON_S = 10.0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What stuck functions wait for; opened at the end, so that no thread outlives its test."""
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
async def test_what_is_raised_is_raised(error: BaseException) -> None:
    """The task that awaits the function gets the error, of any type; the thread prints nothing."""
    caught: list[BaseException] = []
    try:
        await in_thread(raising(error))
    except BaseException as raised:  # noqa: BLE001  # this is what is looked at
        caught.append(raised)

    assert [type(error) for error in caught] == [type(error)]


@pytest.mark.parametrize("error", [StopIteration(7), GeneratorExit()])
async def test_what_ends_coroutines_is_an_error_like_others(error: BaseException) -> None:
    """Raised on, it would look like a coroutine's return, or its end."""
    with pytest.raises(RuntimeError, match=type(error).__name__):
        await in_thread(raising(error))


async def test_context_goes_along() -> None:
    """What a tool's libraries keep in context variables is there."""
    name = contextvars.ContextVar[str]("name")
    name.set("acme")

    assert await in_thread(name.get) == "acme"


async def test_stuck_functions_keep_no_thread_from_the_server(gate: threading.Event) -> None:
    """The loop's own pool is free however many never return."""
    stuck = [asyncio.create_task(in_thread(gate.wait, SOON_S)) for _ in range(40)]
    async with asyncio.timeout(SOON_S):
        assert await asyncio.to_thread(int) == 0
        assert await in_thread(int) == 0
    for task in stuck:
        task.cancel()
    await asyncio.wait(stuck)


async def test_the_concurrency_of_a_thread_is_free_when_it_ends(
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
    """So does the process. A thread that returns too late disturbs nothing."""
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
