"""Runs one scenario of the official conformance suite and reads what it found."""

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.support.node import FOLDER, command, environment

RUN_WITHIN_S = 60
PROGRAM = str(FOLDER / "node_modules/@modelcontextprotocol/conformance/dist/index.js")


class Check(NamedTuple):
    """One check of a scenario: its id, its status, and what the suite says about it."""

    id: str
    status: str
    said: str


def run(url: str, revision: str, scenario: str, folder: Path) -> list[Check]:
    """
    The checks of one scenario at *revision*; an AssertionError when there are none.

    A scenario that crashes leaves an empty folder, and a selection that matches nothing ends well:
    both would look like a success.
    """
    done = subprocess.run(
        [
            *command(PROGRAM, "server", "--url", url, "--scenario", scenario),
            *("--spec-version", revision, "-o", str(folder)),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=RUN_WITHIN_S,
        check=False,
    )
    checks = [check for file in folder.glob("*/checks.json") for check in read(file)]
    assert checks, f"{scenario} crashed or did not run:\n{done.stdout}\n{done.stderr}"
    return checks


def read(file: Path) -> list[Check]:
    """The checks of one `checks.json`."""
    return [
        Check(each["id"], each["status"], str(each.get("errorMessage") or each.get("details", "")))
        for each in json.loads(file.read_text(encoding="utf-8"))
    ]
