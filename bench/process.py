"""Server processes: started on their core, accounted from outside, ended with their children."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

PROC = Path("/proc")
STOP_S = 15


@dataclass(frozen=True)
class Cores:
    """Which core serves and which loads; None where the system cannot pin."""

    server: int | None
    load: int | None
    note: str = ""

    @classmethod
    def choose(cls) -> "Cores":
        """Choose the last two cores that this process may use."""
        if not hasattr(os, "sched_setaffinity"):
            return cls(None, None, "this system cannot pin a process to a core: expect more noise")
        usable = sorted(os.sched_getaffinity(0))
        if len(usable) < 2:
            return cls(None, None, "only one core: server and load share it, ratios are distorted")
        return cls(usable[0], usable[1])

    def pin_server(self, pid: int) -> None:
        """Keep a server and all it starts on the serving core."""
        self._pin(pid, self.server)

    def pin_load(self, pid: int) -> None:
        """Keep the load, and what belongs to it, off the serving core."""
        self._pin(pid, self.load)

    @staticmethod
    def _pin(pid: int, core: int | None) -> None:
        if core is not None:
            os.sched_setaffinity(pid, {core})


@dataclass(frozen=True)
class Usage:
    """What a process and its children have used: CPU seconds so far, resident bytes now."""

    cpu_s: float
    resident: int


@dataclass(frozen=True)
class ProcessRow:
    """One process of the system's table."""

    pid: int
    parent: int
    cpu_s: float
    resident: int


def read_stat(text: str) -> ProcessRow:
    """Parse a line of /proc/PID/stat (proc(5)), CPU including children that were waited for."""
    pid, _, after_name = text.partition(" (")
    # The name may hold spaces and brackets; the last bracket ends it.
    fields = after_name.rpartition(") ")[2].split()
    ticks = sum(int(field) for field in fields[11:15])
    pages = int(fields[21])
    return ProcessRow(
        int(pid),
        int(fields[1]),
        ticks / os.sysconf("SC_CLK_TCK"),
        pages * os.sysconf("SC_PAGE_SIZE"),
    )


def read_ps(line: str) -> ProcessRow:
    """Parse a line of `ps -o pid=,ppid=,rss=,time=` of macOS: kilobytes, [[hh:]mm:]ss.cc."""
    pid, parent, kilobytes, time = line.split()
    seconds = 0.0
    for part in time.split(":"):
        seconds = seconds * 60 + float(part)
    return ProcessRow(int(pid), int(parent), seconds, int(kilobytes) * 1024)


def table() -> list[ProcessRow]:
    """Return every process that can be seen."""
    if not (PROC / "self/stat").exists():
        command = ["ps", "-axo", "pid=,ppid=,rss=,time="]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [read_ps(line) for line in output.splitlines() if line.strip()]
    rows = []
    for path in PROC.glob("[0-9]*/stat"):
        try:
            rows.append(read_stat(path.read_text(encoding="utf-8", errors="replace")))
        except (FileNotFoundError, ProcessLookupError):
            # It ended between the listing and the reading.
            continue
    return rows


def usage(pid: int) -> Usage:
    """Return what a process and its descendants have used; zero once it is gone."""
    rows = table()
    family = {pid}
    grew = True
    while grew:
        children = {row.pid for row in rows if row.parent in family}
        grew = not children <= family
        family |= children
    members = [row for row in rows if row.pid in family]
    return Usage(sum(row.cpu_s for row in members), sum(row.resident for row in members))


class BenchProcess:
    """A server process in a session of its own, its output in a file."""

    def __init__(self, popen: subprocess.Popen[bytes], log: Path) -> None:
        self._popen = popen
        self.log = log
        self.pid = popen.pid

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        log: Path,
        cores: Cores,
        env: Mapping[str, str] | None = None,
    ) -> Self:
        """Start a command with more environment, output appended to *log*."""
        with log.open("ab") as output:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        cores.pin_server(popen.pid)
        return cls(popen, log)

    @property
    def running(self) -> bool:
        """Return whether the process has not ended yet."""
        return self._popen.poll() is None

    @property
    def output(self) -> str:
        """Return everything that the process has printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def usage(self) -> Usage:
        """Return what the process and its children have used."""
        return usage(self.pid)

    def stop(self) -> int:
        """Ask it to end, and end its whole session if it does not; its exit status."""
        if self.running:
            self._popen.send_signal(signal.SIGTERM)
            try:
                self._popen.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.pid, signal.SIGKILL)
        return self._popen.wait(STOP_S)
