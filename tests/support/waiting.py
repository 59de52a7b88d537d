"""Waiting for something to come true, never longer than said."""

import time
from collections.abc import Callable
from threading import Event


def eventually(condition: Callable[[], object], *, within: float, every: float = 0.05) -> None:
    """Return once *condition* holds; fail when it does not within so many seconds."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"not within {within} seconds"
        Event().wait(every)
