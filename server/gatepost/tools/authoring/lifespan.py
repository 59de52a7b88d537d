"""Run what a pack starts before the server serves and stops after the last call."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")

log = logging.getLogger("gatepost.packs")

START_S = 60.0
STOP_S = 10.0
"""How long the code before and after the `yield` may take."""


class LifespanFailed(Exception):
    """A pack could not start; the message names it and the error."""


class Lifespan(Generic[T]):
    """
    A start-up and shut-down hook of a pack; what it yields is its value while the server runs.

    Each server process runs it once, in a task of its own, so that its context managers are entered
    and left by the same task.
    """

    def __init__(self, pack: str, function: Callable[[], AsyncIterator[T]]) -> None:
        self.owner = f"pack {pack}, lifespan {function.__name__}"
        self._manager: Callable[[], AbstractAsyncContextManager[T]] = asynccontextmanager(function)
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._started: asyncio.Future[T] | None = None
        self._users = 0
        self._unused = asyncio.Event()

    @property
    def value(self) -> T:
        """Return what the function yielded; RuntimeError while the server does not run."""
        if self._started is None or not self._started.done():
            raise RuntimeError(f"{self.owner}: the server is not running")
        return self._started.result()

    async def start(self) -> None:
        """Run the function up to its `yield`, unless it has run; raises LifespanFailed."""
        if self._task is not None:
            return
        self._stop, self._unused = asyncio.Event(), asyncio.Event()
        started: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._run(started))
        self._started, self._task = started, task
        either: set[asyncio.Future[Any]] = {task, started}
        first = asyncio.FIRST_COMPLETED
        await asyncio.wait(either, timeout=START_S, return_when=first)
        if started.done():
            return
        self._task = None
        if not task.done():
            task.cancel()
            raise LifespanFailed(f"{self.owner} did not start within {START_S:g} s")
        error = task.exception()
        reason = "it did not yield" if error is None else f"{type(error).__name__}: {error}"
        raise LifespanFailed(f"{self.owner} failed: {reason}") from error

    async def stop(self) -> None:
        """Run the rest of the function once no call uses the value; bounded."""
        task, self._task = self._task, None
        if task is None:
            return
        if self._users:
            await self._unused.wait()
        self._stop.set()
        await asyncio.wait({task}, timeout=STOP_S)
        task.cancel()
        await asyncio.wait({task}, timeout=STOP_S)
        self._started = None
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            log.error("lifespan_failed", extra={"owner": self.owner}, exc_info=error)

    def enter(self) -> T:
        """Return the value for a call, which has to `leave`."""
        value = self.value
        self._users += 1
        return value

    def leave(self) -> None:
        """End the use of a call."""
        self._users -= 1
        if not self._users:
            self._unused.set()

    async def _run(self, started: "asyncio.Future[T]") -> None:
        async with self._manager() as value:
            started.set_result(value)
            await self._stop.wait()
