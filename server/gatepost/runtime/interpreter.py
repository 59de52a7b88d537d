"""Configure the Python interpreter for a server process."""

import gc
import sys

COLLECT_AFTER = 20_000
"""Allocations before a collection; buffered access log lines alone must not cause one."""
SWITCH_INTERVAL_S = 0.0005
"""
The time after which a thread that computes lets another one run. Each call waits several times for
its turn. With Python's own 5 ms a call takes 40 ms while a tool of another caller computes in a
thread, and with this a few milliseconds.
"""


def configure() -> None:
    """
    Freeze all current objects, raise the collection threshold, and have threads take short turns.

    Objects from the start live until the end, so the collector need not traverse them. Requests
    leave no reference cycles behind.
    """
    # Do not collect before: a collection takes 40 to 100 ms, a tenth of a start, finds only about a
    # thousand objects, and writes into each object that a worker shares with its parent.
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 10, 10)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
