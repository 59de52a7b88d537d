"""Cases in one test, bounded waits, what code costs, what holds the loop up, logs and stops."""

import asyncio
import gc
import inspect
import io
import json
import logging
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any

import pytest
import uvicorn

from gatepost.config.telemetry import LogFormat
from gatepost.telemetry.logs import configure, details


def eventually(condition: Callable[[], object], *, within: float, every: float = 0.05) -> None:
    """Return once *condition* holds; fail when it does not within so many seconds."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"not within {within} seconds"
        Event().wait(every)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended may wait for its parent."""
    with suppress(OSError):
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return False


class _Events(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname.lower()
        self.events.append({"event": record.getMessage(), "log_level": level, **details(record)})


@contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """Yield the events that Gatepost logs in a block, at every level, with their members."""
    handler, logger = _Events(), logging.getLogger("gatepost")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield handler.events
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


def count_lines(work: Callable[[], object]) -> int:
    """Count the lines of Python that *work* runs, including everything it calls."""
    taken = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal taken
        taken += event == "line"
        return count

    _trace(count, work)
    return taken


def functions_called(work: Callable[[], object]) -> list[str]:
    """List the functions of Python that *work* calls; a coroutine each time it continues."""
    made: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            made.append(frame.f_code.co_qualname)

    _trace(note, work)
    return made


def _trace(tracer: Callable[[FrameType, str, Any], Any], work: Callable[[], object]) -> None:
    before, collects = sys.gettrace(), gc.isenabled()
    # Garbage that is collected meanwhile finalizes what tests before have left: their steps.
    gc.disable()
    sys.settrace(tracer)
    try:
        work()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()


REFERENCE_S = 0.14
"""What `slowness` reads its list in on the machine that limits in seconds are meant for."""
_LARGE_LIST = b"[" + b"1," * 1_999_998 + b"1]"


def slowness() -> float:
    """Return this machine's current time as a multiple of the reference; 1 where it is faster."""
    began = time.thread_time()
    json.loads(_LARGE_LIST)
    return max((time.thread_time() - began) / REFERENCE_S, 1.0)


async def longest_turn(work: Coroutine[Any, Any, object]) -> float:
    """
    Return the most CPU time, in seconds, between two turns of the loop during *work*.

    That of the whole process: another thread that does not let go of the interpreter holds the
    loop up just as well. What other processes do meanwhile does not count.
    """
    running, longest = asyncio.ensure_future(work), 0.0
    before = time.process_time()
    while not running.done():
        await asyncio.sleep(0)
        now = time.process_time()
        longest, before = max(longest, now - before), now
    running.result()
    return longest


async def shortest_hold(
    work: Callable[[], Coroutine[Any, Any, object]], limit_s: float, tries: int = 3
) -> tuple[float, float]:
    """
    Return the smallest `longest_turn` of some tries, and the limit for this machine.

    One below *limit_s* is enough. Others are held against what the machine does at that moment.
    """
    best, limit = (await longest_turn(work())), limit_s
    while best >= limit and (tries := tries - 1):
        limit = limit_s * slowness()
        best = min(best, await longest_turn(work()))
    return best, limit


@contextmanager
def server_garbage_collection() -> Iterator[None]:
    """Set up the garbage collector as a server does: it does not walk older objects."""
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(20_000, 10, 10)
    try:
        yield
    finally:
        gc.set_threshold(*before)


HOLD_S = 0.050


Test = Callable[..., Any]


Row = tuple[str, dict[str, Any]]


def each(
    names: str | tuple[str, ...], rows: Iterable[Any], ids: Any = None
) -> Callable[[Test], Test]:
    """
    Try every row in one test, with the arguments of `pytest.mark.parametrize`.

    A row that fails does not keep the others from being tried; all that failed are told by name.
    Fixtures are made once for all rows.
    """
    rows = list(rows)
    cases = list(_rows(names, rows, ids if ids is None or callable(ids) else list(ids)))
    marks = [mark for row in rows for mark in getattr(row, "marks", ())]
    assert cases
    assert {mark.name for mark in marks} <= {"requirement"}, "such a row needs a test of its own"

    def decorate(test: Test) -> Test:
        if inspect.iscoroutinefunction(test):

            @wraps(test)
            async def run(**fixtures: Any) -> None:
                failures = _Failures()
                for name, values in cases:
                    with failures.of(name):
                        await test(**fixtures, **values)
                failures.tell(len(cases))
        else:

            @wraps(test)
            def run(**fixtures: Any) -> None:
                failures = _Failures()
                for name, values in cases:
                    with failures.of(name):
                        test(**fixtures, **values)
                failures.tell(len(cases))

        signature = inspect.signature(test)
        given = cases[0][1]
        left = [one for name, one in signature.parameters.items() if name not in given]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        for mark in marks:
            pytest.mark.requirement(*mark.args)(run)
        return run

    return decorate


class _Failures:
    def __init__(self) -> None:
        self._found: list[BaseException] = []
        self._name = ""

    def of(self, name: str) -> "_Failures":
        self._name = name
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> bool:
        if not isinstance(failure, (Exception, pytest.fail.Exception)):
            return False
        failure.add_note(f"in the case {self._name}")
        self._found.append(failure)
        return True

    def tell(self, of: int) -> None:
        if self._found:
            names = [one.__notes__[-1].removeprefix("in the case ") for one in self._found]
            message = f"{len(names)} of {of} cases failed: {'; '.join(names)}"
            raise BaseExceptionGroup(message, self._found)


def _rows(names: str | tuple[str, ...], rows: list[Any], ids: Any) -> Iterator[Row]:
    keys = [name.strip() for name in (names.split(",") if isinstance(names, str) else names)]
    for place, row in enumerate(rows):
        name: Any = None
        if hasattr(row, "marks"):  # a pytest.param
            name, row = row.id, row.values if len(keys) > 1 else row.values[0]
        values = list(row) if len(keys) > 1 else [row]
        if name is None:
            given_id = ids(values[0]) if callable(ids) and len(values) == 1 else None
            name = ids[place] if ids and not callable(ids) else given_id or repr(row)
        yield str(name)[:120], dict(zip(keys, values, strict=True))


class ManualClock:
    """Seconds, moved by hand; since the epoch unless *now* says otherwise."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@contextmanager
def formatted_logs(form: LogFormat) -> Iterator[io.StringIO]:
    """Yield what the process logs in a block, as the server formats it."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    configure(level="debug", form=form)
    stream = io.StringIO()
    for handler in root.handlers:
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(stream)
    try:
        yield stream
    finally:
        root.handlers = handlers
        root.setLevel(level)


class _ShortSleepAsyncio:
    """`asyncio`, whose `sleep` takes a twentieth of the time."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 20)


class _StopSignals:
    """The loops of uvicorn's servers, each of which waits to be told that it should stop."""

    def __init__(self) -> None:
        self._stop_events: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Event]] = {}

    def tell(self, server: uvicorn.Server, should_exit: bool) -> None:
        """Set `should_exit`, from any thread."""
        server.__dict__["should_exit"] = should_exit
        if should_exit and (found := self._stop_events.get(id(server))):
            loop, stop = found
            # A loop that has ended by itself needs no word.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(stop.set)

    async def main_loop(self, server: uvicorn.Server) -> None:
        """Do what uvicorn does each second, until the server should stop."""
        stop = asyncio.Event()
        self._stop_events[id(server)] = asyncio.get_running_loop(), stop
        try:
            while not await server.on_tick(0):
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), 1.0)
        finally:
            del self._stop_events[id(server)]


@pytest.fixture(scope="session", autouse=True)
def immediate_server_stop() -> Iterator[None]:
    """
    Let a server in this process stop at once.

    uvicorn asks every 100 ms whether it should stop, which a test would wait for. To ask more often
    costs more than many tests do: hundreds of servers run all the time.
    """
    stops = _StopSignals()
    flag = property(lambda server: server.__dict__["should_exit"], stops.tell)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvicorn.server.asyncio", _ShortSleepAsyncio())
        patch.setattr(uvicorn.Server, "should_exit", flag, raising=False)
        patch.setattr(uvicorn.Server, "main_loop", lambda server: stops.main_loop(server))
        yield
