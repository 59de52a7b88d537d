"""Counts what code costs in steps: the same on every machine, whoever else is busy there."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(work: Callable[[], object]) -> int:
    """How many lines of Python *work* runs through, those of everything it calls included."""
    taken = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal taken
        taken += event == "line"
        return count

    _trace(count, work)
    return taken


def calls(work: Callable[[], object]) -> list[str]:
    """The functions of Python that *work* calls, in order; a coroutine's each time it goes on."""
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
