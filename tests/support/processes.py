"""Programs under test: started, their output collected, waited for with a bound, stopped."""

import atexit
import gc
import importlib
import json
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeVar

from gatepost.cli.main import COMMANDS

START_WITHIN_S = 30
LATE_MODULES = ["gatepost.storage.sql.postgresql_audit_writer", "gatepost.rest.management.routes"]
LATE_MODULES += ["sqlalchemy.dialects.postgresql.asyncpg", "gatepost.storage.valkey.shared_store"]
LATE_MODULES += ["gatepost.telemetry.exposition", "gatepost.storage.sql.records"]
LATE_MODULES += ["gatepost_packs.scripts.tools", "gatepost_packs.vault.tools"]
LATE_MODULES += ["gatepost.dashboard.routes", "gatepost.check.upstreams", "gatepost.check.agents"]
LATE_MODULES += ["gatepost_packs.memory", "uvicorn.lifespan.off", "gatepost_packs.demo"]
"""What the commands import by name once they run."""


class ForkedProcess:
    """A fork, with those parts of `subprocess.Popen` that `Process` uses."""

    def __init__(self, pipes: Sequence[int], status: int) -> None:
        self.stdin = os.fdopen(pipes[0], "w", encoding="utf-8", errors="replace")
        self.stdout = os.fdopen(pipes[1], encoding="utf-8", errors="replace")
        self.stderr = os.fdopen(pipes[2], encoding="utf-8", errors="replace")
        self.returncode: int | None = None
        self._status = os.fdopen(status, "rb", buffering=0)
        self._wait_lock = threading.Lock()
        self.pid = self._read_number(START_WITHIN_S)

    def _read_number(self, timeout_s: float | None) -> int:
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        if not poll.poll(None if timeout_s is None else timeout_s * 1000):
            raise subprocess.TimeoutExpired("a fork", timeout_s or 0)
        return int(self._status.readline())

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code, negative for a signal; raise TimeoutExpired if it still runs."""
        with self._wait_lock:
            if self.returncode is None:
                self.returncode = self._read_number(timeout)
                self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """
    A process that has imported Gatepost and forks; one for each process of the tests.

    A start of `python -m gatepost` is a second of imports, and the tests make hundreds. A fork has
    its arguments, environment, folder, pipes, signals and exit code, and ends as interpreters do.
    A test about the start itself (what is imported, say) starts an interpreter: `subprocess`.
    """

    def __init__(self) -> None:
        self.link, child_link = socket.socketpair()
        self._settings = _settings(python_environment())
        with child_link:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(child_link.fileno())],
                env=python_environment(),
                stdin=subprocess.DEVNULL,
                pass_fds=[child_link.fileno()],
            )
        self._one_by_one = threading.Lock()
        atexit.register(self.close)

    def can_fork(self, env: Mapping[str, str]) -> bool:
        """Return whether an interpreter with that environment would be set up as this one is."""
        return _settings(env) == self._settings

    def start(
        self, module: str, *words: str, env: Mapping[str, str], cwd: Path | None
    ) -> ForkedProcess:
        """Start `python -m MODULE WORDS…`."""
        ends = [os.pipe(), os.pipe(), os.pipe(), os.pipe()]
        own_ends = [ends[0][1], *(read for read, _ in ends[1:])]
        child_ends = [ends[0][0], *(write for _, write in ends[1:])]
        task = {"words": [module, *words], "env": dict(env), "cwd": str(cwd or Path.cwd())}
        data = json.dumps(task).encode() + b"\n"
        try:
            with self._one_by_one:
                sent = socket.send_fds(self.link, [data], child_ends)
                self.link.sendall(data[sent:])
        finally:
            for end in child_ends:
                os.close(end)
        return ForkedProcess(own_ends[:3], own_ends[3])

    def close(self) -> None:
        """Close the connection, which ends the server but not its forks."""
        self.link.close()
        self._process.wait(START_WITHIN_S)


def fork_server() -> ForkServer:
    """Return the server of this process, started when it is first wanted."""
    with _STARTING_LOCK:
        return _FORK_SERVER()


_FORK_SERVER, _STARTING_LOCK = cache(ForkServer), threading.Lock()


def _settings(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith("PYTHON")}


def main(number: int) -> None:
    """Fork for every task that comes by the socket with that number; the forks go on from here."""
    for name in (*(row.target.partition(":")[0] for row in COMMANDS.values()), *LATE_MODULES):
        importlib.import_module(name)
    importlib.import_module("gatepost.runtime.interpreter").load_late_modules()
    # What is never looked through again is not copied into the forks, nor taken apart as they end.
    gc.collect()
    gc.freeze()
    task = _fork_until_closed(socket.socket(fileno=number))
    if task is not None:
        os.chdir(task["cwd"])
        os.environ.clear()
        os.environ.update(task["env"])
        time.tzset()
        sys.path[0] = task["cwd"]
        sys.argv = task["words"]
        _run(task["words"][0])


def _run(module: str) -> None:
    """
    Run a module as the program, and end as interpreters do, except that nothing is taken apart.

    That would copy every page shared with the first process: it takes longer than a server's start.
    """
    code: object = None
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    if code is None or isinstance(code, int):
        threading._shutdown()
        atexit._run_exitfuncs()
        # For words that find no room, the interpreter's own end has an exit code.
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit((code or 0) & 0xFF)
    sys.exit(code)


def _fork_until_closed(link: socket.socket) -> dict[str, Any] | None:
    """Return a fork's orders in the fork, or None in the first process when no more are wanted."""
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
            _exit_codes(children)
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
            return dict(json.loads(data))
        for end in ends[:3]:
            os.close(end)
        children[pid] = ends[3]
        _write(ends[3], pid)


def _exit_codes(children: dict[int, int]) -> None:
    """Write the exit codes of the children that have ended."""
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            end = children.pop(pid)
            _write(end, os.waitstatus_to_exitcode(status))
            os.close(end)


def _write(end: int, number: int) -> None:
    with suppress(BrokenPipeError):
        os.write(end, b"%d\n" % number)


T = TypeVar("T")


def free_port() -> int:
    """Return a loopback port that was free a moment ago, for programs that need one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def python_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return our environment with this run's import path, so that a checkout works uninstalled."""
    path = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **(extra or {})}


class Process:
    """
    One program and everything it prints.

    Threads empty its pipes, so that a chatty program never blocks on a full one. Every wait is
    bounded and ends in an AssertionError that shows the output.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        user: str | None = None,
    ) -> None:
        self.command = command
        self._changed = threading.Condition()
        self._lines: dict[str, list[str]] = {"out": [], "err": []}
        self._seen = 0
        self.process = _started(command, env=env, cwd=cwd, user=user)
        self._readers = []
        for name, pipe in (("out", self.process.stdout), ("err", self.process.stderr)):
            assert pipe is not None
            reader = threading.Thread(target=self._read, args=(name, pipe), daemon=True)
            reader.start()
            self._readers.append(reader)

    def _read(self, name: str, pipe: IO[str]) -> None:
        for line in pipe:
            with self._changed:
                self._lines[name].append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def stdout(self) -> str:
        """Return what it has printed so far."""
        with self._changed:
            return "\n".join(self._lines["out"])

    @property
    def stderr(self) -> str:
        """Return its standard error so far."""
        with self._changed:
            return "\n".join(self._lines["err"])

    @property
    def output(self) -> str:
        """Return both outputs, for looking through a log wherever it went."""
        return f"{self.stdout}\n{self.stderr}"

    def _wait(self, find: Callable[[], T | None], wanted: str, timeout_s: float) -> T:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while (found := find()) is None:
                # Looked at again below: a program may print its last words and end at once.
                reading = any(reader.is_alive() for reader in self._readers)
                ended = not reading and self.process.poll() is not None
                left = deadline - time.monotonic()
                if ended or left <= 0:
                    why = f"ended with {self.process.returncode}" if ended else f"{timeout_s} s"
                    raise AssertionError(
                        f"no {wanted} ({why}) from {self.command}:\n{self._tail()}"
                    )
                self._changed.wait(min(left, 0.2))
        return found

    def _tail(self) -> str:
        return "\n".join([*self._lines["out"][-40:], "--- stderr", *self._lines["err"][-40:]])

    def wait_for(self, pattern: str, *, timeout_s: float = 30) -> re.Match[str]:
        """Return the first match of *pattern* in any line printed so far or within the time."""
        expression = re.compile(pattern)

        def find() -> re.Match[str] | None:
            lines = (*self._lines["out"], *self._lines["err"])
            return next((match for line in lines if (match := expression.search(line))), None)

        return self._wait(find, f"line like {pattern!r}", timeout_s)

    def next_line(self, *, timeout_s: float = 30) -> str:
        """Return the next line of stdout that has not been taken yet."""

        def find() -> str | None:
            lines = self._lines["out"]
            return lines[self._seen] if self._seen < len(lines) else None

        line = self._wait(find, "further line", timeout_s)
        self._seen += 1
        return line

    def write_line(self, line: str) -> None:
        """Give it a line on its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def stop(self, *, with_signal: int = signal.SIGTERM, timeout_s: float = 15) -> int:
        """Ask it to end and answer its exit code; one that does not end in time is an error."""
        self.process.send_signal(with_signal)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)
            late = f"{self.command} did not end in {timeout_s} s:\n{self._tail()}"
            raise AssertionError(late) from None
        finally:
            self._close()

    def kill(self) -> None:
        """End it in any case, for cleaning up after a failure."""
        self.process.kill()
        self.process.wait(5)
        self._close()

    def _close(self) -> None:
        for reader in self._readers:
            reader.join(5)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                # What was written to one that had ended already is still in the pipe's buffer.
                with suppress(BrokenPipeError):
                    pipe.close()


def _started(
    command: Sequence[str], *, env: Mapping[str, str], cwd: Path | None, user: str | None
) -> subprocess.Popen[str] | ForkedProcess:
    is_own_module = user is None and list(command[:2]) == [sys.executable, "-m"]
    if is_own_module and fork_server().can_fork(env):
        return fork_server().start(*command[2:], env=env, cwd=cwd)
    return subprocess.Popen(
        command,
        env=dict(env),
        cwd=cwd,
        user=user,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
