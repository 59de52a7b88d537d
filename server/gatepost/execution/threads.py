"""Run the plain functions of authors in threads that only they use."""

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

THREADS_AT_ONCE = 64
"""Maximum number of plain functions that run at once in a process; others wait."""
IDLE_S = 10.0
"""How long a thread waits for its next function before it ends."""

_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


async def in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """
    Run *function* in a thread that runs nothing else; return its result or raise its exception.

    It does not use the event loop's pool. A few functions that never return would block all other
    users of the pool. They would also keep the process from ending, which waits for the pool.
    """
    loop = asyncio.get_running_loop()
    threads = _threads.setdefault(loop, asyncio.Semaphore(THREADS_AT_ONCE))
    await threads.acquire()
    answer: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def work(error: BaseException | None = None) -> None:
        result = None
        if error is None:
            try:
                result = context.run(function, *args, **kwargs)
            except BaseException as raised:  # noqa: BLE001  # passed on to the awaiting caller
                error = raised
        with suppress(RuntimeError):  # the loop is closed, so nothing awaits the result
            loop.call_soon_threadsafe(_set_result, threads, answer, result, error)
        # The error's traceback refers to this frame.
        error = None

    POOL.submit(work)
    return await answer


FunctionWork = Callable[..., None]
"""Runs a function, or passes on the error that it is called with."""


class FunctionThreads:
    """
    Threads that take functions from one queue; one that finds none for `IDLE_S` ends.

    Starting a thread for each function takes five times as much CPU. Waking a thread for each one
    takes as much when many come at once: the threads wait for each other, because only one of them
    can run Python. So only one woken thread at a time looks for a function. If it leaves functions
    behind, it wakes the next thread, which takes them unless a thread is done before.
    """

    def __init__(self) -> None:
        self._begin_empty()
        # In a forked process, the threads of its parent do not run.
        os.register_at_fork(after_in_child=self._begin_empty)

    def _begin_empty(self) -> None:
        self._lock = threading.Lock()
        self._works: deque[FunctionWork] = deque()
        self._idle: list[FunctionThread] = []
        self._is_looking = False
        """Whether a thread that runs nothing will look into the queue."""

    def submit(self, work: FunctionWork) -> None:
        """Run *work* in a thread, or call it with the error if no thread can be started."""
        with self._lock:
            self._works.append(work)
            if self._is_looking:
                return
            self._is_looking = True
        self._wake()

    def take(self, thread: "FunctionThread") -> FunctionWork | None:
        """Return the next function; None if there is none, and *thread* is idle now."""
        with self._lock:
            if thread.is_looking:
                thread.is_looking = self._is_looking = False
            if not self._works:
                self._idle.append(thread)
                return None
            work = self._works.popleft()
            if self._is_looking or not self._works:
                return work
            self._is_looking = True
        self._wake()
        return work

    def leave(self, thread: "FunctionThread") -> bool:
        """Return whether an idle thread may end; False if it is woken at this moment."""
        with self._lock:
            if thread in self._idle:
                self._idle.remove(thread)
                return True
        return False

    def _wake(self) -> None:
        """Let another thread look; if none can be started, fail what waits."""
        with self._lock:
            thread = self._idle.pop() if self._idle else None
        if thread is not None:
            thread.is_looking = True
            thread.wake_up.release()
            return
        try:
            FunctionThread(self).start()
        except BaseException as error:  # noqa: BLE001  # passed on to the awaiting callers
            with self._lock:
                self._is_looking = False
                works, self._works = self._works, deque()
            for work in works:
                work(error)


class FunctionThread(threading.Thread):
    """One of the threads."""

    def __init__(self, pool: FunctionThreads) -> None:
        super().__init__(name="gatepost-tool", daemon=True)
        self._pool = pool
        self.is_looking = True
        self.wake_up = threading.Lock()
        self.wake_up.acquire()

    def run(self) -> None:
        """Run functions until there are none."""
        while True:
            while work := self._pool.take(self):
                work()
                # Do not keep its arguments while waiting.
                del work
            if not self.wake_up.acquire(timeout=IDLE_S):
                if self._pool.leave(self):
                    return
                self.wake_up.acquire()


POOL = FunctionThreads()


def _set_result(
    threads: asyncio.Semaphore,
    answer: asyncio.Future[Any],
    result: Any,
    error: BaseException | None,
) -> None:
    threads.release()
    settle(answer, result, error)


def settle(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Give a caller the result or the error of what ran in a thread, unless it has left."""
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    elif isinstance(error, StopIteration | GeneratorExit):
        # Raised from a coroutine, these would mean that it has returned or is being closed.
        stopped = RuntimeError(f"the function raised {type(error).__name__}")
        stopped.__cause__ = error
        answer.set_exception(stopped)
    else:
        answer.set_exception(error)
