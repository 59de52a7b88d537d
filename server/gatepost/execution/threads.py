"""Run the plain functions of authors in threads of their own."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

THREADS_AT_ONCE = 64
"""Maximum number of plain functions that run at once in a process; others wait."""

_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


async def in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """
    Run *function* in a thread of its own; return its result or raise its exception.

    It does not use the event loop's pool. A few functions that never return would block all other
    users of the pool. They would also keep the process from ending, which waits for the pool.
    """
    loop = asyncio.get_running_loop()
    threads = _threads.setdefault(loop, asyncio.Semaphore(THREADS_AT_ONCE))
    await threads.acquire()
    answer: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function, *args, **kwargs)
        except BaseException as raised:  # noqa: BLE001  # passed on to the awaiting caller
            error = raised
        try:
            loop.call_soon_threadsafe(_tell, threads, answer, result, error)
        except RuntimeError:
            return  # the loop is closed, so nothing awaits the result

    try:
        threading.Thread(target=work, name="gatepost-tool", daemon=True).start()
    except RuntimeError:
        threads.release()
        raise
    return await answer


def _tell(
    threads: asyncio.Semaphore,
    answer: asyncio.Future[Any],
    result: Any,
    error: BaseException | None,
) -> None:
    threads.release()
    if answer.done():
        return  # the call was cancelled
    if error is None:
        answer.set_result(result)
    elif isinstance(error, StopIteration | GeneratorExit):
        # Raised from a coroutine, these would mean that it has returned or is being closed.
        stopped = RuntimeError(f"the function raised {type(error).__name__}")
        stopped.__cause__ = error
        answer.set_exception(stopped)
    else:
        answer.set_exception(error)
