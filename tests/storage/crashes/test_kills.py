"""
Processes killed at any moment of asking, approving, claiming, having an effect and recording it.

Two processes go through the same calls, on SQLite and on PostgreSQL with Valkey, and are killed by
the clock or at a statement of their database. `python -m tests.storage.crashes.test_kills` is the
process that forks and kills them: it loads everything once, so that a process costs milliseconds.
Later processes try again the keys that were not answered. It prints what came of it.
"""

import asyncio
import gc
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from gatepost.check.pack_loading import LoadedPacks
from gatepost.config.settings import Config
from gatepost.runtime.startup import opened
from gatepost.secrets.keyring import KeyRing
from gatepost.telemetry.logs import configure
from tests.architecture.source import ROOT
from tests.storage.crashes.workload import WorkOrder, broken_promises, pack, work

RANDOM_DELAYS = random.SystemRandom()
# Nothing that is not killed may take longer; it would be stuck.
STUCK_S = 20.0
TRIAL_RUNS = 4
AT_A_STATEMENT = 0.85
"""The share of kills at a statement of the database; the others come by the clock."""
AT_ONCE = 6
"""Rounds that run at the same time: a process that waits for a lease uses no processor time."""


class CrashRun(msgspec.Struct, frozen=True):
    """What to do, and where."""

    folder: str
    database: str
    shared: str
    kills: int
    """How many processes to kill."""


class CrashReport(msgspec.Struct):
    """The counts and the broken promises of a run."""

    kills: int = 0
    runs: int = 0
    answered: int = 0
    done: int = 0
    approved: int = 0
    problems: list[str] = []
    seconds: float = 0.0


class CrashProcess(msgspec.Struct):
    """A process that was forked."""

    pid: int
    order: WorkOrder
    kill_after_s: float | None
    """Seconds from when it was ready; None: it is not killed by the clock."""
    kill_at: float | None = None


class Killer:
    """Forks, kills and counts."""

    def __init__(self, task: CrashRun) -> None:
        self.task, self.report = task, CrashReport()
        self._config = msgspec.convert(_tree(task), Config)
        self._loaded_packs = LoadedPacks((pack,), ())
        self._ring = KeyRing.ephemeral()
        self._numbers, self._keys = count(1), count(1)
        self._left: list[str] = []
        """Keys whose calls got no answer."""
        self._told: list[dict[str, Any]] = []
        self._pipe, self._tell = os.pipe()
        os.set_blocking(self._pipe, False)
        self._rest = b""
        self._workload_s = 0.5
        self._statements = 40
        self._moments: list[tuple[int, bool]] = []
        """Statements to die at, before or after; each once until all have been."""

    def run(self) -> CrashReport:
        """Kill as many processes as the task says, and return the report."""
        began = time.monotonic()
        # Once here, so that everything is loaded before the first fork.
        asyncio.run(self._open())
        gc.freeze()
        self._try_out()
        while self.report.kills < self.task.kills and not self.report.problems:
            self._round()
        self._finish()
        self._check()
        self.report.seconds = time.monotonic() - began
        return self.report

    async def _open(self) -> None:
        async with opened(self._config, self._loaded_packs, self._ring):
            pass

    def _try_out(self) -> None:
        """Find out how long a process takes that is not killed."""
        took = []
        for _ in range(TRIAL_RUNS):
            began = time.monotonic()
            self._go([self._fork([self._key()], kill=False), self._fork([self._key()], kill=False)])
            took.append(time.monotonic() - began)
        self._workload_s = sorted(took)[TRIAL_RUNS // 2]
        self._statements = max(
            entry["statements"] for entry in self._told if entry["what"] == "ended"
        )
        self._check()

    def _round(self) -> None:
        """Run pairs of processes with the same keys, and kill one or both of each pair."""
        used, processes = list[str](), list[CrashProcess]()
        for _ in range(AT_ONCE):
            keys = [self._key()]
            if self._left and RANDOM_DELAYS.random() < 0.5:
                keys.append(self._left.pop(RANDOM_DELAYS.randrange(len(self._left))))
            both = RANDOM_DELAYS.random() < 0.5
            processes += [self._fork(keys, kill=True), self._fork(keys, kill=both)]
            used += keys
        self._go(processes)
        answered = {entry["key"] for entry in self._told if entry["what"] == "answered"}
        self._left += [key for key in used if key not in answered]

    def _finish(self) -> None:
        """Finish the calls that are left, and report those that were never answered."""
        keys, self._left = self._left, []
        if keys:
            self._go([self._fork(keys, kill=False)])
        answered = {entry["key"] for entry in self._told if entry["what"] == "answered"}
        self.report.problems += [f"{key} was never answered" for key in keys if key not in answered]

    def _key(self) -> str:
        # With an idempotency key, or told apart by its arguments alone.
        return f"{RANDOM_DELAYS.choice('rp')}{next(self._keys)}"

    def _fork(self, keys: list[str], *, kill: bool) -> CrashProcess:
        way: Literal["mcp", "rest"] = RANDOM_DELAYS.choice(("mcp", "rest"))
        order = WorkOrder(next(self._numbers), keys, way)
        after: float | None = None
        if kill and RANDOM_DELAYS.random() < AT_A_STATEMENT:
            statement, done = self._moment()
            order = msgspec.structs.replace(order, statement=statement, after=done)
        elif kill:
            after = RANDOM_DELAYS.uniform(0.0, 1.2 * self._workload_s)
        pid = self._child(
            lambda: work(self._config, self._loaded_packs, self._ring, order, self._tell)
        )
        return CrashProcess(pid, order, after)

    def _moment(self) -> tuple[int, bool]:
        if not self._moments:
            numbers = range(1, self._statements + 1)
            self._moments = [(number, after) for number in numbers for after in (False, True)]
            RANDOM_DELAYS.shuffle(self._moments)
        return self._moments.pop()

    def _child(self, what: Callable[[], object]) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            what()
            code = 0
        except BaseException:  # noqa: BLE001 - nothing of a child may go on in its parent's name
            traceback.print_exc()
        finally:
            os._exit(code)

    def _go(self, processes: list[CrashProcess]) -> None:
        """Wait until all processes have ended or have been killed."""
        self.report.runs += 1
        alive = {process.pid: process for process in processes}
        stuck_at = time.monotonic() + STUCK_S
        while alive:
            self._listen(alive)
            now = time.monotonic()
            for process in alive.values():
                if now >= stuck_at:
                    self.report.problems.append(f"stuck: {process.order}")
                if now >= stuck_at or (process.kill_at is not None and now >= process.kill_at):
                    os.kill(process.pid, signal.SIGKILL)
            for pid in [*alive]:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self._ended(alive.pop(pid), os.waitstatus_to_exitcode(status))
        self._listen({})

    def _ended(self, process: CrashProcess, code: int) -> None:
        if code == -signal.SIGKILL:
            self.report.kills += 1
        elif code:
            self.report.problems.append(f"ended with {code}: {process.order}")

    def _listen(self, alive: dict[int, CrashProcess]) -> None:
        """Take what was told, for a moment at most."""
        select.select([self._pipe], [], [], 0.002)
        try:
            *lines, self._rest = (self._rest + os.read(self._pipe, 1_000_000)).split(b"\n")
        except BlockingIOError:
            return
        for line in lines:
            self._hear(json.loads(line), alive)

    def _hear(self, message: dict[str, Any], alive: dict[int, CrashProcess]) -> None:
        self._told.append(message)
        self.report.answered += message["what"] == "answered"
        self.report.done += message.get("done", False)
        self.report.approved += message["what"] == "approved"
        if message["what"] == "ready":
            for process in alive.values():
                if process.order.number == message["number"] and process.kill_after_s is not None:
                    process.kill_at = time.monotonic() + process.kill_after_s

    def _check(self) -> None:
        """Check the records in a process of its own, which sees only what is durable."""
        reader, tell = os.pipe()

        def look() -> None:
            os.write(tell, json.dumps(asyncio.run(self._broken())).encode())

        pid = self._child(look)
        os.close(tell)
        with os.fdopen(reader, "rb") as pipe:
            text = pipe.read()
        os.waitpid(pid, 0)
        if not text:
            self.report.problems.append("the stores could not be looked at")
            return
        self.report.problems += json.loads(text)

    async def _broken(self) -> list[str]:
        async with opened(self._config, self._loaded_packs, self._ring) as services:
            return await broken_promises(services, self._told)


def _tree(task: CrashRun) -> dict[str, Any]:
    return {
        "resource": "http://127.0.0.1:8000/mcp",
        "mode": "development",
        "issuers": [],
        "storage": {"database": task.database, "shared": task.shared},
        "workspace": {"root": f"{task.folder}/workspaces"},
        "approvals": {
            "require": ["take_effect"],
            "timeout_s": 60,
            "max_waiting_per_caller": 10_000,
            "max_waiting_per_tenant": 10_000,
        },
        "limits": {"requests_per_second": 0},
        "log": {"level": "error"},
    }


def main() -> None:
    task = msgspec.json.decode(sys.argv[1], type=CrashRun)
    Path(task.folder).mkdir(exist_ok=True)
    os.chdir(task.folder)
    configure(level="error", form="console")
    sys.stdout.write(msgspec.json.encode(Killer(task).run()).decode())


A_FEW, MANY_ROUNDS = 12, 100
"""So many that each statement in turn has a kill before it and one after it, and more."""
WITHIN_S = 580
"""Two idle cores need a tenth of that; a machine that others use must not look like a hang."""


def kills(folder: Path, database: str, shared: str, number: int) -> CrashReport:
    """Kill so many processes, and say what came of it."""
    task = CrashRun(str(folder), database, shared, number)
    path = os.pathsep.join(str(ROOT / name) for name in (".", "authz", "server", "keys"))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.storage.crashes.test_kills",
            msgspec.json.encode(task).decode(),
        ],
        check=True,
        capture_output=True,
        timeout=WITHIN_S,
        env={**os.environ, "PYTHONPATH": path},
    )
    return msgspec.json.decode(done.stdout, type=CrashReport)


def holds(report: CrashReport, number: int) -> None:
    """Assert that no call ran twice, no acknowledged record is lost, and the chain is whole."""
    assert report.problems == []
    assert report.kills >= number
    assert report.done > 0
    assert report.approved > 0


@pytest.mark.requirement("A7", "O12")
def test_occasional_kills_lose_no_acknowledged_data(tmp_path: Path) -> None:
    """No approval used twice, no effect twice for one key, no acknowledged record missing."""
    holds(kills(tmp_path, "sqlite:///gatepost.db", "", A_FEW), A_FEW)


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S + 20)
@pytest.mark.requirement("A7", "O12")
def test_many_kills_lose_no_acknowledged_data_on_sqlite(tmp_path: Path) -> None:
    """The kills are so many that they hit rare moments, too."""
    holds(kills(tmp_path, "sqlite:///gatepost.db", "", MANY_ROUNDS), MANY_ROUNDS)


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S + 20)
@pytest.mark.requirement("A7", "O12")
def test_many_kills_lose_no_acknowledged_data_on_postgresql(
    tmp_path: Path, migrated_postgres: str, valkey: str
) -> None:
    """The database servers outlive all of their clients."""
    holds(kills(tmp_path, migrated_postgres, valkey, MANY_ROUNDS), MANY_ROUNDS)


if __name__ == "__main__":
    main()
