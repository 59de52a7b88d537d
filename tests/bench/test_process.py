"""What a server used, seen from outside."""

import os
import sys
import time
from pathlib import Path

import pytest

from bench.process import BenchProcess, Cores, read_ps, read_stat, usage

UNPINNED_CORES = Cores(None, None)
BURN_PROGRAM = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import time
while time.process_time() < 0.3: pass
print("burnt", flush=True)
time.sleep(60)
'''])
child.wait()
"""


def wait_for(process: BenchProcess, text: str) -> None:
    deadline = time.monotonic() + 20
    while text not in process.output:
        assert time.monotonic() < deadline, process.output
        assert process.running, process.output
        os.sched_yield()


def test_cpu_time_of_child_processes_is_counted(tmp_path: Path) -> None:
    """A server that works in child processes must not look free."""
    process = BenchProcess.start(
        [sys.executable, "-c", BURN_PROGRAM], log=tmp_path / "log", cores=UNPINNED_CORES
    )
    try:
        wait_for(process, "burnt")
        used = process.usage()
    finally:
        process.stop()

    assert used.cpu_s >= 0.28
    assert used.resident > 2_000_000


def test_stopping_a_server_ends_its_process(tmp_path: Path) -> None:
    """A server left over from one round would disturb the next round."""
    process = BenchProcess.start(["sleep", "60"], log=tmp_path / "log", cores=UNPINNED_CORES)
    assert process.running

    process.stop()

    assert not process.running
    assert usage(process.pid).resident == 0


def test_a_process_name_with_spaces_and_brackets_is_parsed() -> None:
    """The second field of /proc/PID/stat is any name that the program has chosen."""
    fields = ["S", "7", *["0"] * 9, "100", "50", "25", "25", *["0"] * 6, "10", "0"]
    row = read_stat(f"42 (a) b (c) {' '.join(fields)}")

    assert (row.pid, row.parent) == (42, 7)
    assert row.cpu_s == 200 / os.sysconf("SC_CLK_TCK")
    assert row.resident == 10 * os.sysconf("SC_PAGE_SIZE")


def test_the_ps_output_of_macos_is_parsed() -> None:
    """macOS has no /proc; ps prints minutes, seconds and hundredths."""
    row = read_ps("  42     7  20480   1:02.50")

    assert (row.pid, row.parent, row.cpu_s, row.resident) == (42, 7, 62.5, 20_971_520)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot pin")
def test_server_and_load_generator_run_on_different_cores(tmp_path: Path) -> None:
    """On one core they would measure each other."""
    cores = Cores.choose()
    if cores.server is None:
        pytest.skip("one core only")
    process = BenchProcess.start(["sleep", "60"], log=tmp_path / "log", cores=cores)
    try:
        assert os.sched_getaffinity(process.pid) == {cores.server}
        assert cores.load != cores.server
    finally:
        process.stop()
