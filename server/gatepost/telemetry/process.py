"""What this process takes from its machine."""

import os
import resource
import sys
import time
from pathlib import Path

STATM, FILES = Path("/proc/self/statm"), Path("/proc/self/fd")
PAGE = resource.getpagesize()


def cpu_seconds() -> float:
    """CPU time so far, system time included."""
    return time.process_time()


def resident_bytes() -> int:
    """Memory in use; where the system does not say, the most that ever was."""
    try:
        return int(STATM.read_text(encoding="ascii").split()[1]) * PAGE
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def open_files() -> int:
    """Open file descriptors; 0 where the system does not say."""
    try:
        return len(os.listdir(FILES))
    except OSError:
        return 0
