"""Work that may be stopped while it waits; work that never waits pays nothing for that."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any, ClassVar, Generic, TypeVar

T = TypeVar("T")

HUNG_UP = "hung up"
"""Why a request ends whose connection broke: its client may well want the answer still."""


class Stop:
    """A way to cancel the task that made it, and to tell that cancellation from any other."""

    __slots__ = ("_before", "_pulled", "_task", "why")

    def __init__(self) -> None:
        self.why: str | None = None
        """What it was pulled with."""
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0
        self._pulled = False

    def pull(self, why: str | None = None) -> None:
        """Cancel the task, once; *why* travels in the CancelledError."""
        if self._task is not None and not self._pulled:
            self._pulled = True
            self.why = why
            self._task.cancel(why)

    def settle(self) -> bool:
        """End it; True when the cancellation under way was this one's and nobody else's."""
        task, self._task = self._task, None
        if task is None or not self._pulled:
            return False
        return task.uncancel() <= self._before


class Attended(ABC, Generic[T]):
    """
    Awaits *work* in the current task, with something that may stop it while it waits.

    A timer or a task per call costs as much as the rest of a small call (`asyncio.timeout` 3 µs),
    and most calls are over before it could matter: `begin` is called when the work first waits,
    `end` when it is over, and neither for work that never waits. An awaitable instead of an
    `async with` for the same reason.
    """

    __slots__ = ("_stop", "_work")

    stopped: ClassVar[type[Exception]]
    """Raised instead of CancelledError when the stop was pulled."""

    # Without a constructor: each class sets these two itself, since a call of this class's would
    # be a tenth of what all this costs.
    _work: Generator[Any, Any, T]
    _stop: Stop | None

    @abstractmethod
    def begin(self, stop: Stop) -> None:
        """The work waits: arrange for *stop* to be pulled."""

    @abstractmethod
    def end(self) -> None:
        """The work is over: undo what `begin` arranged."""

    def raised(self) -> type[Exception]:
        """What to raise, the stop having been pulled."""
        return self.stopped

    def __await__(self) -> Generator[Any, Any, T]:
        return self  # an iterator, which is all that PEP 492 asks for

    def __iter__(self) -> "Attended[T]":
        return self

    def __next__(self) -> Any:
        if self._stop is not None:
            return self._go_on(self._stop, self._work.__next__)
        waiting = next(self._work)  # StopIteration: done already, and its value is ours
        self._stop = Stop()
        self.begin(self._stop)
        return waiting

    def send(self, value: Any) -> Any:
        """As a generator; the loop sends nothing but None."""
        return self.__next__() if value is None else self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """As a generator; this is how a cancellation arrives."""
        if self._stop is None:
            return self._work.throw(*error)
        return self._go_on(self._stop, self._work.throw, *error)

    def close(self) -> None:
        """As a generator: the work is dropped."""
        self._work.close()
        if self._stop is not None:
            self._stop.settle()
            self.end()

    def _go_on(self, stop: Stop, step: Callable[..., Any], *arguments: Any) -> Any:
        over = True
        try:
            waiting = step(*arguments)
            over = False
        except asyncio.CancelledError:
            if stop.settle():
                raise self.raised() from None
            raise
        finally:
            if over:
                stop.settle()
                self.end()
        return waiting


class DeadlinePassed(Exception):
    """The work took longer than it may; not TimeoutError, which the work may raise itself."""


class Within(Attended[T]):
    """Awaits *work*; DeadlinePassed when it takes longer than *limit_s* seconds."""

    __slots__ = ("_limit_s", "_timer")

    stopped = DeadlinePassed

    def __init__(self, limit_s: float, work: Awaitable[T]) -> None:
        self._work = work.__await__()
        self._stop = None
        self._limit_s = limit_s

    def begin(self, stop: Stop) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._limit_s, stop.pull)

    def end(self) -> None:
        self._timer.cancel()


class Patient(Within[T]):
    """
    As `Within`, with a clock that can be stopped: it runs while a tool works, not while a person
    decides (design, decision 17). *allowed_s* passes all the while.
    """

    __slots__ = ("_all_s", "_began", "_holds", "_is_last", "_pull", "_since", "_used_s")

    late: ClassVar[type[DeadlinePassed]] = DeadlinePassed
    """Raised when *allowed_s* are over."""

    def __init__(self, limit_s: float, allowed_s: float, work: Awaitable[T]) -> None:
        super().__init__(limit_s, work)
        self._all_s = allowed_s
        self._pull: Callable[[], None] | None = None
        self._holds = 0
        self._used_s = 0.0

    def raised(self) -> type[Exception]:
        return self.late if self._is_last else DeadlinePassed

    def begin(self, stop: Stop) -> None:
        self._began = self._since = asyncio.get_running_loop().time()
        self._pull = stop.pull
        self._set(stop.pull)

    def end(self) -> None:
        self._pull = None
        self._timer.cancel()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Stop the clock for the time of a block; of several at once the last one starts it."""
        self._holds += 1
        if self._holds == 1:
            self._turn()
        try:
            yield
        finally:
            self._holds -= 1
            if self._holds == 0:
                self._turn()

    def _turn(self) -> None:
        """The clock stops, or goes on; nothing runs before the work first waits."""
        if self._pull is not None:
            now = asyncio.get_running_loop().time()
            if self._holds:
                self._used_s += now - self._since
            self._since = now
            self._timer.cancel()
            self._set(self._pull)

    def _set(self, pull: Callable[[], None]) -> None:
        last = self._began + self._all_s
        own = last if self._holds else self._since + self._limit_s - self._used_s
        self._is_last = last <= own
        self._timer = asyncio.get_running_loop().call_at(min(last, own), pull)
