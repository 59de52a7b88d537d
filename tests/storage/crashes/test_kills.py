"""
Processes killed at any moment of asking, approving, claiming, having an effect and recording it.

Two processes go through the same calls, on SQLite and on PostgreSQL with Valkey, and are killed by
the clock or at a statement of their database; `yard.py` kills as many as wanted.
"""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.architecture.source import ROOT
from tests.storage.crashes.yard import Report, Task

A_FEW, MANY = 12, 200
"""Half of them die at a statement, so that many kills are at each statement in turn, and more."""
WITHIN_S = 580
"""Two idle cores need a tenth of that; a machine that others use must not look like a hang."""


def kills(folder: Path, database: str, shared: str, number: int) -> Report:
    """Kill so many processes, and say what came of it."""
    task = Task(str(folder), database, shared, number)
    path = os.pathsep.join(str(ROOT / name) for name in (".", "authz", "server", "keys"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.storage.crashes.yard", msgspec.json.encode(task).decode()],
        check=True,
        capture_output=True,
        timeout=WITHIN_S,
        env={**os.environ, "PYTHONPATH": path},
    )
    return msgspec.json.decode(done.stdout, type=Report)


def holds(report: Report, number: int) -> None:
    """Nothing was done twice, nothing that was acknowledged is lost, and the chain is whole."""
    assert report.problems == []
    assert report.kills >= number
    assert report.done > 0
    assert report.approved > 0


@pytest.mark.requirement("A7", "O12")
def test_a_kill_now_and_then_breaks_no_promise(tmp_path: Path) -> None:
    """No approval used twice, no effect twice for one key, no acknowledged record missing."""
    holds(kills(tmp_path, "sqlite:///gatepost.db", "", A_FEW), A_FEW)


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S + 20)
@pytest.mark.requirement("A7", "O12")
def test_hundreds_of_kills_break_no_promise_on_sqlite(tmp_path: Path) -> None:
    """The same, so often that rare moments are among them."""
    holds(kills(tmp_path, "sqlite:///gatepost.db", "", MANY), MANY)


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S + 20)
@pytest.mark.requirement("A7", "O12")
def test_hundreds_of_kills_break_no_promise_on_postgresql(
    tmp_path: Path, migrated_postgres: str, valkey: str
) -> None:
    """The same with servers that outlive all of their clients."""
    holds(kills(tmp_path, migrated_postgres, valkey, MANY), MANY)
