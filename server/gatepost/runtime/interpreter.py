"""Configure the Python interpreter for a server process."""

import codecs
import gc
import importlib
import sys
from contextlib import suppress

COLLECT_AFTER = 20_000
"""Allocations before a collection; buffered access log lines alone must not cause one."""
SWITCH_INTERVAL_S = 0.0005
"""
The time after which a thread that computes lets another one run. Each call waits several times for
its turn. With Python's own 5 ms a call takes 40 ms while a tool of another caller computes in a
thread, and with this a few milliseconds.
"""

CODECS = (
    "ascii", "cp1252", "idna", "latin-1", "punycode", "unicode_escape", "utf-8", "utf-8-sig",
    "utf-16", "utf-16-be", "utf-16-le", "utf-32",
)  # fmt: skip
MODULES = (
    "anyio._backends._asyncio", "anyio._core._sockets", "anyio._core._streams",
    "anyio._core._synchronization", "anyio.lowlevel", "anyio.streams.memory",
    "anyio.streams.stapled",
)  # fmt: skip


def load_late_modules() -> None:
    """
    Load what Python would load at its first use: codecs, and what the HTTP client runs on.

    Each is a file, which needs a descriptor: without one a name cannot be looked up, and a text
    that could always be written is a LookupError.
    """
    for codec in CODECS:
        codecs.lookup(codec)
    for module in MODULES:
        # Not every release of the library has all of them.
        with suppress(ImportError):
            importlib.import_module(module)


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
