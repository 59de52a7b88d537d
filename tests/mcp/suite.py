"""Runs the official conformance suite and reads what it found."""

import json
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.support.node import FOLDER, command, environment

RUN_WITHIN_S = 110
PROGRAM = str(FOLDER / "node_modules/@modelcontextprotocol/conformance/dist/index.js")
RESULT = re.compile(r"server-(?P<scenario>.+)-\d{4}-\d{2}-\d{2}T[\d-]+Z")


class Check(NamedTuple):
    """One check of a scenario: its id, its status, and what the suite says about it."""

    id: str
    status: str
    said: str


def run(url: str, folder: Path, *selection: str) -> dict[str, list[Check]]:
    """
    The checks of every selected scenario, by its name; an empty list for one that crashed.

    A scenario that crashes leaves an empty folder, and a selection that matches nothing ends well:
    both would look like a success to whoever reads the exit code alone.
    """
    done = subprocess.run(
        [*command(PROGRAM, "server", "--url", url, *selection, "-o", str(folder))],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=RUN_WITHIN_S,
        check=False,
    )
    found = {}
    for result in folder.iterdir():
        match = RESULT.fullmatch(result.name)
        assert match is not None, f"not the name of a result: {result.name}"
        found[match["scenario"]] = read(result / "checks.json")
    assert found, f"nothing ran:\n{done.stdout}\n{done.stderr}"
    return found


def read(file: Path) -> list[Check]:
    """The checks of one `checks.json`; none when there is no such file."""
    if not file.exists():
        return []
    return [
        Check(each["id"], each["status"], str(each.get("errorMessage") or each.get("details", "")))
        for each in json.loads(file.read_text(encoding="utf-8"))
    ]


def listed(*selection: str) -> list[str]:
    """The scenarios for servers that a selection has."""
    done = subprocess.run(
        [*command(PROGRAM, "list", "--server", *selection)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=RUN_WITHIN_S,
        check=True,
    )
    server_half = done.stdout.partition("Client scenarios")[0]
    return re.findall(r"^  - ([a-z0-9-]+)", server_half, re.MULTILINE)
