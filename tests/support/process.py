"""A program under test: started, its output collected, waited for with a bound, stopped."""

import contextlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeVar

from tests.support import nursery

T = TypeVar("T")


def python_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment with this run's import path, so that an uninstalled checkout works too."""
    return nursery.environment() | dict(extra or {})


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
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=("out", self.process.stdout), daemon=True),
            threading.Thread(target=self._read, args=("err", self.process.stderr), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str, pipe: IO[str]) -> None:
        for line in pipe:
            with self._changed:
                self._lines[name].append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        with self._changed:
            return "\n".join(self._lines["out"])

    @property
    def stderr(self) -> str:
        """What it has complained about so far."""
        with self._changed:
            return "\n".join(self._lines["err"])

    @property
    def output(self) -> str:
        """Both, for looking through a log wherever it went."""
        return f"{self.stdout}\n{self.stderr}"

    def _wait(self, find: Callable[[], T | None], wanted: str, timeout_s: float) -> T:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while (found := find()) is None:
                # Looked at again below: a program may print its last words and end at once.
                ended = self.process.poll() is not None and not any(
                    reader.is_alive() for reader in self._readers
                )
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
        """The first match of *pattern* in any line printed so far or within the time."""
        expression = re.compile(pattern)

        def find() -> re.Match[str] | None:
            lines = (*self._lines["out"], *self._lines["err"])
            return next((match for line in lines if (match := expression.search(line))), None)

        return self._wait(find, f"line like {pattern!r}", timeout_s)

    def next_line(self, *, timeout_s: float = 30) -> str:
        """The next line of stdout that nobody has taken yet."""

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
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)
            raise AssertionError(
                f"{self.command} did not end in {timeout_s} s:\n{self._tail()}"
            ) from None
        finally:
            self._close()
        return code

    def kill(self) -> None:
        """End it in any case, for cleaning up after a failure."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(5)
        self._close()

    def _close(self) -> None:
        for reader in self._readers:
            reader.join(5)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                # What was written to one that had ended already is still in the pipe's buffer.
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _started(
    command: Sequence[str], *, env: Mapping[str, str], cwd: Path | None, user: str | None
) -> subprocess.Popen[str] | nursery.Child:
    ours = user is None and list(command[:2]) == [sys.executable, "-m"]
    if ours and nursery.nursery().takes(env):
        return nursery.nursery().start(*command[2:], env=env, cwd=cwd)
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
