"""Counts what code costs in steps: the same on every machine, whoever else is busy there."""

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

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return taken


def calls(work: Callable[[], object]) -> list[str]:
    """The functions of Python that *work* calls, in order; a coroutine's each time it goes on."""
    made: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            made.append(frame.f_code.co_qualname)

    before = sys.gettrace()
    sys.settrace(note)
    try:
        work()
    finally:
        sys.settrace(before)
    return made
