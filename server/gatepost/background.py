"""Run the background tasks of a process, and restart them after unexpected errors."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import Context
from traceback import walk_tb
from typing import Any

PAUSE_S = 2.0
"""About how long a task pauses after an unexpected error."""
RANDOM = random.SystemRandom()

log = logging.getLogger(__name__)


async def always(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """
    Run *work*, which should not end by itself; if an error ends it, log that and run it again.

    To be cancelled, which reaches the work first. In a task of its own: an error there can be any.
    """
    while True:
        task = asyncio.create_task(work(), name=name)
        is_cancelled = True
        try:
            await asyncio.wait([task])
            is_cancelled = False
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
            # An error is logged also if this was cancelled: asyncio would log its text.
            if not is_cancelled or (not task.cancelled() and task.exception() is not None):
                extra = {"background_task": name, **reason_of(task)}
                log.error("background_task_ended", extra=extra)
        # Random, so that not all processes retry at the same moment: the database's answer may be
        # the cause.
        await asyncio.sleep(PAUSE_S * RANDOM.uniform(0.7, 1.3))


class TaskSet(set["asyncio.Task[None]"]):
    """
    Short tasks beside the requests. Each is kept until it ends, because the loop keeps none.

    An error that ends a task is logged.
    """

    __slots__ = ()

    def start(
        self, work: Coroutine[Any, Any, None], *, context: Context | None = None
    ) -> "asyncio.Task[None]":
        """Begin *work* in a task, and return the task."""
        task = asyncio.get_running_loop().create_task(work, context=context)
        self.track(task)
        return task

    def track(self, task: "asyncio.Task[None]") -> None:
        """Keep a task that was begun elsewhere."""
        self.add(task)
        task.add_done_callback(self._on_task_end)

    async def wait(self) -> None:
        """Wait until all tasks have ended, also if some of them fail."""
        if self:
            await asyncio.wait(tuple(self))

    def _on_task_end(self, task: "asyncio.Task[None]") -> None:
        self.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background_task_failed", extra=reason_of(task))


def started(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> "asyncio.Task[None]":
    """
    Return a task that does *work* always.

    Its context is empty: that of the call which happens to start the task would keep the call and
    its arguments in memory for the life of the process.
    """
    return asyncio.get_running_loop().create_task(always(name, work), context=Context())


@asynccontextmanager
async def during(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Do *work* always, for the time of a block; it has ended when the block has."""
    task = started(name, work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def reason_of(task: "asyncio.Task[None]") -> dict[str, str]:
    """
    Describe for the log why a task ended: the error's type and where it was raised.

    Not the error's text, which may quote whatever was at hand there.
    """
    if task.cancelled():
        return {"error": "cancelled", "where": ""}
    error = task.exception()
    if error is None:
        return {"error": "none", "where": ""}
    positions = [
        f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}:{line}"
        for frame, line in walk_tb(error.__traceback__)
    ]
    return {"error": type(error).__name__, "where": positions[-1] if positions else ""}
