"""Settings of Python's garbage collector for a server process."""

import gc

COLLECT_AFTER = 20_000
"""Allocations before a collection; buffered access log lines alone must not cause one."""


def settle() -> None:
    """
    Freeze all current objects and raise the collection threshold.

    Objects from the start live until the end, so the collector need not traverse them. Requests
    leave no reference cycles behind.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 10, 10)
