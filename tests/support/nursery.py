"""
Programs of ours that start at once: forks of a process that has imported Gatepost already.

A start of `python -m gatepost` is a second of imports, and the tests make hundreds. A fork has its
arguments, environment, folder, pipes, signals and exit code, and it ends as every interpreter does.
A test about the start itself (what is imported, say) starts an interpreter: `subprocess`.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from gatepost.cli.main import COMMANDS

START_WITHIN_S = 30
ALSO = ["gatepost.app", "gatepost.serve", "gatepost.runtime.metrics_server", "gatepost_packs.demo"]
ALSO += ["gatepost.storage.sql.records", "gatepost.telemetry.exposition"]
"""What the commands import by name once they run."""


class Child:
    """A fork, with those parts of `subprocess.Popen` that `Process` uses."""

    def __init__(self, pipes: Sequence[int], status: int) -> None:
        self.stdin = os.fdopen(pipes[0], "w", encoding="utf-8", errors="replace")
        self.stdout = os.fdopen(pipes[1], encoding="utf-8", errors="replace")
        self.stderr = os.fdopen(pipes[2], encoding="utf-8", errors="replace")
        self.returncode: int | None = None
        self._status = os.fdopen(status, "rb", buffering=0)
        self._asking = threading.Lock()
        self.pid = self._told(START_WITHIN_S)

    def _told(self, timeout_s: float | None) -> int:
        looking = select.poll()
        looking.register(self._status, select.POLLIN)
        if not looking.poll(None if timeout_s is None else timeout_s * 1000):
            raise TimeoutError
        return int(self._status.readline())

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, minus the number of the signal that ended it; TimeoutExpired."""
        with self._asking:
            if self.returncode is None:
                try:
                    self.returncode = self._told(timeout)
                except TimeoutError:
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
                self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing happens to one that has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that forks; one for each process of the tests."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        self._settings = _settings(environment())
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                env=environment(),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._one_by_one = threading.Lock()
        atexit.register(self.close)

    def takes(self, env: Mapping[str, str]) -> bool:
        """Whether an interpreter with that environment would be set up as this one is."""
        return _settings(env) == self._settings

    def start(self, module: str, *words: str, env: Mapping[str, str], cwd: Path | None) -> Child:
        """`python -m MODULE WORDS…`."""
        ends = [os.pipe(), os.pipe(), os.pipe(), os.pipe()]
        ours = [ends[0][1], *(read for read, _ in ends[1:])]
        theirs = [ends[0][0], *(write for _, write in ends[1:])]
        task = {"words": [module, *words], "env": dict(env), "cwd": str(cwd or Path.cwd())}
        data = json.dumps(task).encode() + b"\n"
        try:
            with self._one_by_one:
                sent = socket.send_fds(self._ours, [data], theirs)
                self._ours.sendall(data[sent:])
        finally:
            for end in theirs:
                os.close(end)
        return Child(ours[:3], ours[3])

    def close(self) -> None:
        """It ends with the connection; its forks do not."""
        self._ours.close()
        self._process.wait(START_WITHIN_S)


def nursery() -> Nursery:
    """The one of this process, started when it is first wanted."""
    with _STARTING:
        return _nursery()


@cache
def _nursery() -> Nursery:
    return Nursery()


_STARTING = threading.Lock()


def environment() -> dict[str, str]:
    """Ours with this run's import path, so that an uninstalled checkout works too."""
    path = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def _settings(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith("PYTHON")}


def main(number: int) -> None:
    """Fork for every task that comes by the socket with that number; the forks go on from here."""
    for name in (*(row.place.partition(":")[0] for row in COMMANDS.values()), *ALSO):
        importlib.import_module(name)
    # What is never looked through again is not copied into the forks, nor taken apart as they end.
    gc.collect()
    gc.freeze()
    task = _fork_until_told(socket.socket(fileno=number))
    if task is not None:
        os.chdir(task["cwd"])
        os.environ.clear()
        os.environ.update(task["env"])
        time.tzset()
        sys.path[0] = task["cwd"]
        sys.argv = task["words"]
        runpy.run_module(task["words"][0], run_name="__main__", alter_sys=True)


def _fork_until_told(link: socket.socket) -> dict[str, Any] | None:
    """In a fork: what it has to become. In the first process: None, when nobody wants more."""
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    # Ignored from the start where a shell has put all this into the background.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    children: dict[int, int] = {}
    while True:
        ready = select.select([link, wake], [], [])[0]
        if wake in ready:
            os.read(wake, 4096)
            _tell(children)
        if link not in ready:
            continue
        data, ends, _, _ = socket.recv_fds(link, 65536, 4)
        while data and not data.endswith(b"\n"):
            data += link.recv(65536)
        if not data:
            return None
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, interrupt)
            for place, end in enumerate(ends[:3]):
                os.dup2(end, place)
            link.detach()
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            task: dict[str, Any] = json.loads(data)
            return task
        for end in ends[:3]:
            os.close(end)
        children[pid] = ends[3]
        _write(ends[3], pid)


def _tell(children: dict[int, int]) -> None:
    """The exit codes of those that have ended."""
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            end = children.pop(pid)
            _write(end, os.waitstatus_to_exitcode(status))
            os.close(end)


def _write(end: int, number: int) -> None:
    with suppress(BrokenPipeError):
        os.write(end, b"%d\n" % number)


if __name__ == "__main__":
    main(int(sys.argv[1]))
