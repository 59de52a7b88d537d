"""The way of a call does not get longer."""

import re
import subprocess
import sys

from tests.architecture.source import ROOT

WALK_LINE = re.compile(r"^(\w+)\b.*: (\d+) files, (\d+) functions$", re.MULTILINE)
MAX_FILES_AND_FUNCTIONS = {"warm": (32, 104), "approval": (60, 312), "approved": (64, 378)}
"""Files and functions of each walk: lower these when a walk gets shorter."""
WARM_RUNS = 3


def test_a_call_passes_through_no_more_files_and_functions_than_before() -> None:
    """
    A real server passes through at most the recorded number of files and functions.

    Background work may run during a call, so one run of several is enough.
    """
    longer = {}
    for _ in range(WARM_RUNS):
        longer = {
            name: walk
            for name, walk in walk_counts().items()
            if not is_within_limits(walk, MAX_FILES_AND_FUNCTIONS[name])
        }
        if not longer:
            break

    assert longer == {}


def walk_counts() -> dict[str, tuple[int, int]]:
    """Count the files and functions of each walk, in one run."""
    command = [sys.executable, "-m", "bench", "--walk"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    walks = {
        name: (int(files), int(number)) for name, files, number in WALK_LINE.findall(ran.stdout)
    }
    assert walks.keys() == MAX_FILES_AND_FUNCTIONS.keys(), ran.stderr
    return walks


def is_within_limits(walk: tuple[int, int], most: tuple[int, int]) -> bool:
    """Return whether neither figure is too high, and something ran at all."""
    return 20 < walk[0] <= most[0] and 50 < walk[1] <= most[1]
