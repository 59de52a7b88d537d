"""What a test starts as a fork is the program that an interpreter of its own would be."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ForkedProcess, Process, python_environment

PROGRAM = """
import atexit, os, signal, sys, time
atexit.register(print, "the last word")
for shown in (
    sys.argv, os.getcwd(), sorted(os.environ.items()), sys.path, sys.flags, __name__, time.tzname,
    [signal.getsignal(number) for number in sorted(signal.valid_signals())],
    [number for number in range(1000) if os.path.exists(f"/proc/self/fd/{number}")],
):
    print(shown)
print(input(), file=sys.stderr)
"""
PROCESS_ENDINGS = {
    "by itself": "",
    "with a code": "sys.exit(7)",
    "with a sentence": "sys.exit('no')",
    "with an odd code": "sys.exit(-2)",
    "after its threads": """
import concurrent.futures, threading
concurrent.futures.ThreadPoolExecutor().submit(lambda: print("the pool")).result()
threading.Thread(target=lambda: (threading.main_thread().join(), print("the thread"))).start()
""",
    "without room for its words": "sys.stdout = open('/dev/full', 'w'); sys.exit(7)",
    "at once": "os._exit(3)",
    "killed": "os.kill(os.getpid(), 9)",
    "told to end": "os.kill(os.getpid(), 15)",
}


def ended_with(process: Process) -> tuple[int, list[str], str]:
    """Return the exit code, the lines of standard output, and standard error."""
    try:
        process.write_line("héllo")
        code = process.process.wait(20)
        process.stop()
    finally:
        process.kill()
    return code, process.stdout.splitlines(), process.stderr


@pytest.mark.parametrize("ends", PROCESS_ENDINGS.values(), ids=PROCESS_ENDINGS)
def test_a_forked_process_behaves_like_a_started_one(tmp_path: Path, ends: str) -> None:
    """Arguments, environment, folder, pipes, signals, last output and exit code are equal."""
    (tmp_path / "program.py").write_text(PROGRAM + ends)
    env = python_environment({"GREETING": "hello", "TZ": "Asia/Tokyo"})
    words = ["-m", "program", "one", "--two"]

    forked = Process([sys.executable, *words], env=env, cwd=tmp_path)
    started = Process([sys.executable, "-u", *words], env=env, cwd=tmp_path)

    assert isinstance(forked.process, ForkedProcess)
    assert isinstance(started.process, subprocess.Popen)
    assert ended_with(forked) == ended_with(started)


def test_a_process_with_interpreter_settings_is_started_and_not_forked(tmp_path: Path) -> None:
    """Settings of the interpreter take effect before a fork could apply them."""
    (tmp_path / "program.py").write_text("import sys; print(sys.flags.optimize, sys.path[1])")
    env = python_environment({"PYTHONOPTIMIZE": "2", "PYTHONPATH": "/elsewhere"})

    process = Process([sys.executable, "-m", "program"], env=env, cwd=tmp_path)

    assert process.process.wait(20) == 0
    assert process.stop() == 0
    assert process.stdout == "2 /elsewhere"
