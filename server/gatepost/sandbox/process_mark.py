"""
Find all processes that a program has started by a limit that they inherit (`launch.MARK_LIMIT`).

The launcher imports this too, so it imports only the standard library.
"""

from __future__ import annotations

import os
import signal

# The same as in `typing`, whose import takes 10 milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MARK_BITS = 62
"""The size of a mark: a limit has 63 bits, and the highest means that there is none."""
ROUNDS = 5
"""How many times processes are searched that were started while others were killed."""


def kill_marked(mark: int) -> None:
    """Kill all processes that have a mark, except for this one, if the system shows it (Linux)."""
    for _ in range(ROUNDS):
        pids = list(_marked(mark))
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        if not pids:
            break


def _marked(mark: int) -> Iterator[int]:
    """Yield the processes that have a mark among their limits."""
    limit = str(mark).encode()
    try:
        names = os.listdir("/proc")
    except OSError:
        return  # not Linux
    for name in filter(str.isdigit, names):
        try:
            # Unbuffered, because there are many.
            with open(f"/proc/{name}/limits", "rb", buffering=0) as limits:
                if limit in limits.read().split() and int(name) != os.getpid():
                    yield int(name)
        except OSError:
            continue  # it is gone
