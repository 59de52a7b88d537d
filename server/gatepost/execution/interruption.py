"""
Stop work while it waits: a request whose client leaves, a tool that takes too long.

docs/decisions/0007-deadlines-of-tools.md says why this is not `asyncio.timeout`.
"""

import asyncio
import contextlib
import enum
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextvars import Context, copy_context
from typing import Any, ClassVar, Generic, TypeVar

T = TypeVar("T")

FUTURE = asyncio.Future
"""A future that learns of a cancellation at once."""


class StopCause(enum.StrEnum):
    """A reason for `Stop.pull` that is not the end of a caller's access."""

    DISCONNECTED = "disconnected"
    """The connection broke; the client may still want the answer."""


class Stop:
    """A way to cancel the task that made it, and to tell that cancellation from any other."""

    __slots__ = ("_before", "_pulled", "_task", "abandoned", "cancelled_again", "reason")

    def __init__(self) -> None:
        self.reason: str | None = None
        """The reason that `pull` was given."""
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0
        self._pulled = False
        self.cancelled_again = False
        """Whether the task was cancelled once more because it went on."""
        self.abandoned = False
        """Whether work that did not stop was left unfinished."""

    @property
    def is_cancelling(self) -> bool:
        """Return whether the task is being cancelled, by this or by other code."""
        return self._task is not None and self._task.cancelling() > self._before

    def cancel_again(self) -> None:
        """Cancel the task once more if it still is to stop."""
        if self._task is not None and self.is_cancelling:
            self.cancelled_again = True
            self._task.cancel()

    def pull(self, reason: str | None = None) -> None:
        """Cancel the task, once; *reason* travels in the CancelledError."""
        if self._task is not None and not self._pulled:
            self._pulled = True
            self.reason = reason
            self._task.cancel(reason)

    def finish(self) -> bool:
        """End it; return True if this stop alone has cancelled the task."""
        task, self._task = self._task, None
        if task is not None and self.cancelled_again:
            task.uncancel()
        if task is None or not self._pulled:
            return False
        return task.uncancel() <= self._before


def timer(delay_s: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
    """
    Call *callback* later, in an empty context.

    A timer keeps its context even after it was cancelled, asyncio's loop until the time it was set
    for. The context of a call holds the call with its arguments.
    """
    loop = asyncio.get_running_loop()
    return loop.call_later(delay_s, callback, *args, context=Context())


class Interruptible(ABC, Generic[T]):
    """
    Awaits *work* in the current task, and may stop it while it waits.

    A timer or a task per call would cost as much as the rest of a small call (`asyncio.timeout` 3
    µs), and most calls end before it could matter. Therefore `begin` is called when the work first
    waits, `end` when it is over, and neither for work that never waits. For the same reason this is
    an awaitable and not an `async with`.
    """

    __slots__ = ("_stop", "_work")

    stopped: ClassVar[type[Exception]]
    """The exception that is raised instead of CancelledError when the stop was pulled."""

    # This class has no constructor: each subclass sets these two itself, because the call of a
    # constructor here would be a tenth of the whole cost.
    _work: Generator[Any, Any, T]
    _stop: Stop | None

    @abstractmethod
    def begin(self, stop: Stop) -> None:
        """Register *stop*, because the work waits."""

    @abstractmethod
    def end(self) -> None:
        """Undo what `begin` registered."""

    def raised(self) -> type[Exception]:
        """Return the exception to raise after the stop."""
        return self.stopped

    def endable(self, stop: Stop, waiting: Any) -> Any:
        """Return what the task is to wait for in place of *waiting*, which is no plain future."""
        return waiting

    def __await__(self) -> Generator[Any, Any, T]:
        return self  # PEP 492 asks for an iterator and no more

    def __iter__(self) -> "Interruptible[T]":
        return self

    def __next__(self, *error: Any) -> Any:
        """Continue the work, by raising *error* in it if there is one."""
        stop = self._stop
        if stop is None:
            try:
                waiting = next(self._work)  # StopIteration: the work is done, and its value is ours
            except GeneratorExit as raised:
                raise failed_with(raised) from raised
            stop = self._stop = Stop()
            self.begin(stop)
        else:
            over = True
            try:
                waiting = self._work.throw(*error) if error else next(self._work)
                over = False
            except asyncio.CancelledError:
                if stop.finish():
                    raise self.raised() from None
                raise
            except GeneratorExit as raised:
                raise failed_with(raised) from raised
            finally:
                if over:
                    del error  # as in `throw`
                    stop.finish()
                    self.end()
        if waiting is None or type(waiting) is FUTURE:
            return waiting  # the rest of a turn, or a future that learns of a cancellation at once
        return self.endable(stop, waiting)

    def send(self, value: Any) -> Any:
        """Resume, as a generator; the event loop sends only None."""
        return self.__next__() if value is None else self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise in the work, as a generator; a cancellation arrives this way."""
        try:
            return self._work.throw(*error) if self._stop is None else self.__next__(*error)
        finally:
            # The traceback of the error keeps this frame. If the frame kept the error, this
            # reference cycle would hold the whole call in memory.
            del error

    def close(self) -> None:
        """Close the work, as a generator."""
        self._work.close()
        if self._stop is not None:
            self._stop.finish()
            self.end()


def failed_with(raised: GeneratorExit) -> RuntimeError:
    """
    Return the failure of work that raises GeneratorExit by itself.

    In a coroutine, GeneratorExit means that Python closes it, which `close` handles. The awaiting
    code would mistake the work's own GeneratorExit for that, and the answer would be lost.
    """
    return RuntimeError(f"the work raised {type(raised).__name__}")


class DeadlinePassed(Exception):
    """The tool took longer than it may; not TimeoutError, which the tool may raise itself."""


class TokenExpired(DeadlinePassed):
    """The caller's token expired while the tool ran."""


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """Suppress Python's message about work that ignores even GeneratorExit."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = hook


class WorkDeadline(Interruptible[T]):
    """
    Awaits a tool; raises DeadlinePassed when it works for longer than *limit_s* seconds.

    It raises TokenExpired after *allowed_s* seconds. These pass also while a person decides, when
    the tool's own clock stops. A tool that goes on for `abandon_s` after it was cancelled is left
    unfinished, and this ends as if the tool had stopped.
    """

    __slots__ = (
        "_abandon_timer",
        "_allowed_s",
        "_began",
        "_is_token_over",
        "_limit_s",
        "_pauses",
        "_since",
        "_timer",
        "_used_s",
    )

    abandon_s: ClassVar[float] = 5.0
    """How long a tool may go on after it was cancelled, to undo or close what it has begun."""

    def __init__(self, limit_s: float, allowed_s: float, work: Awaitable[T]) -> None:
        self._work = work.__await__()
        self._stop = None
        self._limit_s = limit_s
        self._allowed_s = allowed_s
        self._pauses = 0

    def raised(self) -> type[Exception]:
        return TokenExpired if self._is_token_over else DeadlinePassed

    def begin(self, stop: Stop) -> None:
        self._abandon_timer: asyncio.TimerHandle | None = None
        self._used_s = 0.0
        self._began = self._since = asyncio.get_running_loop().time()
        self._timer: asyncio.TimerHandle | None = None
        self._set_timer(stop)

    def end(self) -> None:
        for handle in (self._timer, self._abandon_timer):
            if handle is not None:
                handle.cancel()
        self._timer = self._abandon_timer = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock for the time of a block; of several at once the last one starts it."""
        self._pauses += 1
        if self._pauses == 1:
            self._restart()
        try:
            yield
        finally:
            self._pauses -= 1
            if self._pauses == 0:
                self._restart()

    def _restart(self) -> None:
        """Stop the clock, or let it go on; it does not run before the tool first waits."""
        stop = self._stop
        if stop is not None and self._timer is not None:
            now = asyncio.get_running_loop().time()
            if self._pauses:
                self._used_s += now - self._since
            self._since = now
            self._timer.cancel()
            self._set_timer(stop)

    def _set_timer(self, stop: Stop) -> None:
        last = self._began + self._allowed_s
        tool_deadline = last if self._pauses else self._since + self._limit_s - self._used_s
        self._is_token_over = last <= tool_deadline
        now = asyncio.get_running_loop().time()
        self._timer = timer(min(last, tool_deadline) - now, stop.pull)

    def endable(self, stop: Stop, waiting: Any) -> Any:
        """Return a wait for another task that can be given up; see `Interruptible`."""
        return WaitForTask(waiting, self, stop).begin() if asyncio.isfuture(waiting) else waiting

    def start_abandon_timer(self, stop: Stop) -> None:
        """Let a stopped tool continue for `abandon_s` and no longer."""
        if self._abandon_timer is None:
            self._abandon_timer = timer(self.abandon_s, self._cancel_again, stop)

    def _cancel_again(self, stop: Stop) -> None:
        self._abandon_timer = None
        stop.cancel_again()

    def throw(self, *error: Any) -> Any:
        try:
            waiting = super().throw(*error)
        finally:
            del error
        stop = self._stop
        if stop is None:
            return waiting
        if stop.cancelled_again:
            self._abandon(stop)
        if stop.is_cancelling:
            self.start_abandon_timer(stop)
        return waiting

    def leave(self, stop: Stop) -> None:
        """Note that the tool goes on, or a task that it waits for; told once."""
        if not stop.abandoned:
            stop.abandoned = True
            self.abandoned()

    @abstractmethod
    def abandoned(self) -> None:
        """Report that the tool goes on although it was cancelled."""

    def _abandon(self, stop: Stop) -> None:
        is_own = stop.finish()
        self.end()
        with _without_log(), contextlib.suppress(BaseException):  # no code waits for what it raises
            self._work.close()
        with _without_log():
            del self._work
        self.leave(stop)
        raise self.raised() if is_own else asyncio.CancelledError


class WaitForTask(asyncio.Future[None]):
    """
    Waits for a task (or for several, as `gather` makes it) on behalf of the work that awaits it.

    A task that is cancelled while it awaits another one cancels that one and waits on: if the other
    one ignores it, the first never receives its own cancellation. When the stop insists, this
    object cancels itself, and the work receives the cancellation.
    """

    def __init__(self, task: "asyncio.Future[Any]", work: "WorkDeadline[Any]", stop: Stop) -> None:
        super().__init__()
        self._task, self._work, self._stop = task, work, stop
        self._context = copy_context()

    def begin(self) -> "WaitForTask":
        """Return this, to be awaited by the running task."""
        # Marked as `Future.__await__` marks the future that it hands to a task.
        self._task._asyncio_future_blocking = False
        self._asyncio_future_blocking = True
        self._task.add_done_callback(self._over)
        return self

    def cancel(self, msg: Any = None) -> bool:
        """Cancel, as a future; the task is cancelled first."""
        if self.done():
            return False
        if not self._stop.cancelled_again:
            self._work.start_abandon_timer(self._stop)
            return self._task.cancel(msg)
        self._task.remove_done_callback(self._over)
        self._context.run(self._work.leave, self._stop)
        return super().cancel(msg)

    def _over(self, task: "asyncio.Future[Any]") -> None:
        # The work asks the task itself how it ended.
        if not self.done():
            self.set_result(None)


def is_cancelled() -> bool:
    """Return whether the running task itself was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
