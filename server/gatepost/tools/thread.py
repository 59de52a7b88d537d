"""Threads for authors' plain functions, apart from those that the server itself needs."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

MOST = 64
"""Plain functions that run at once in a process; more of them wait."""

_places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


async def in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """
    What *function* answers or raises, run in a thread of its own.

    Not in the loop's pool: a handful of functions that never return would keep it from everything
    else that uses threads, and the process from ending, which waits for each of the pool's.
    """
    loop = asyncio.get_running_loop()
    places = _places.setdefault(loop, asyncio.Semaphore(MOST))
    await places.acquire()
    answer: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function, *args, **kwargs)
        except BaseException as raised:  # noqa: BLE001  # a thread has nobody above it: all is told
            error = raised
        try:
            loop.call_soon_threadsafe(_tell, places, answer, result, error)
        except RuntimeError:
            return  # the loop is closed, and nobody waits any more

    try:
        threading.Thread(target=work, name="gatepost-tool", daemon=True).start()
    except RuntimeError:
        places.release()
        raise
    return await answer


def _tell(
    places: asyncio.Semaphore,
    answer: asyncio.Future[Any],
    result: Any,
    error: BaseException | None,
) -> None:
    places.release()
    if answer.done():
        return  # whoever waited has left
    if error is None:
        answer.set_result(result)
    elif isinstance(error, StopIteration | GeneratorExit):
        # Out of a coroutine these would mean that it has returned, or is being thrown away.
        stopped = RuntimeError(f"the function raised {type(error).__name__}")
        stopped.__cause__ = error
        answer.set_exception(stopped)
    else:
        answer.set_exception(error)
