"""The official conformance suite, whole, against the shipped server with the gate on."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.architecture.source import ROOT
from tests.support import commands
from tests.support.processes import Process, free_port, python_environment
from tests.support.programs import Program, environment, loaded
from tests.support.proxies import with_token

RUN_WITHIN_S = 110
PROGRAM = "node_modules/@modelcontextprotocol/conformance/dist/index.js"
RESULT = re.compile(r"server-(?P<scenario>.+)-\d{4}-\d{2}-\d{2}T[\d-]+Z")


class Check(NamedTuple):
    """One check of a scenario: its id, its status, and what the suite says about it."""

    id: str
    status: str
    said: str


def run_suite(suite: Program, url: str, folder: Path, *selection: str) -> dict[str, list[Check]]:
    """
    Return the checks of every selected scenario by its name; an empty list for one that crashed.

    A scenario that crashes leaves an empty folder, and a selection that matches nothing ends well:
    by the exit code alone, both would look like a success.
    """
    words = ("server", "--url", url, *selection, "-o", str(folder))
    done = suite.run(*words, within_s=RUN_WITHIN_S)
    faults = {}
    for result in folder.iterdir():
        match = RESULT.fullmatch(result.name)
        assert match is not None, f"not the name of a result: {result.name}"
        faults[match["scenario"]] = checks_in(result / "checks.json")
    assert faults, f"nothing ran:\n{done.stdout}\n{done.stderr}"
    return faults


def checks_in(file: Path) -> list[Check]:
    """Return the checks of one `checks.json`; none when there is no such file."""
    if not file.exists():
        return []
    return [
        Check(each["id"], each["status"], str(each.get("errorMessage") or each.get("details", "")))
        for each in json.loads(file.read_text(encoding="utf-8"))
    ]


def listed_scenarios(suite: Program, *selection: str) -> list[str]:
    """Return the scenarios for servers that a selection has."""
    done = suite.run("list", "--server", *selection, within_s=RUN_WITHIN_S)
    assert done.code == 0, done.stderr
    server_half = done.stdout.partition("Client scenarios")[0]
    return re.findall(r"^  - ([a-z0-9-]+)", server_half, re.MULTILINE)


SCENARIO_SELECTIONS = {
    # What is selected: how, and how many scenarios the pinned release has.
    "2025-03-26": (("--suite", "all", "--spec-version", "2025-03-26"), 1),
    "2025-06-18": (("--suite", "all", "--spec-version", "2025-06-18"), 27),
    "2025-11-25": (("--suite", "all", "--spec-version", "2025-11-25"), 33),
    "2026-07-28": (("--suite", "all", "--spec-version", "2026-07-28"), 40),
    "extensions": (("--suite", "pending"), 17),
}
REQUIRED_SCENARIOS = {"2025-11-25": 30, "2026-07-28": 37}
"""Revisions with a frozen list of what is scored."""

EXCUSED_CHECKS = {
    ("tasks-status-notifications", "SKIPPED"): "the suite always skips it",
}


@pytest.fixture(scope="module")
def suite() -> Iterator[Program]:
    with loaded(PROGRAM, environment()) as program:
        yield program


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve `tests/conformance/serve` behind a proxy that holds a token."""
    folder = tmp_path_factory.mktemp("conformance")
    port = free_port()
    command = [str(ROOT / "tests/conformance/serve"), str(port), str(folder / "state")]
    server = Process(command, env=python_environment({"PYTHONPATH": ":".join(sys.path)}))
    try:
        url = server.wait_for(commands.READY_LINE)["url"]
        token = commands.token(folder, "--tenant", "acme")
        with with_token(url, token) as proxied:
            yield proxied
        assert server.stop() == 0, server.output
        assert "Traceback" not in server.output
    finally:
        server.kill()


@pytest.mark.parametrize("name", SCENARIO_SELECTIONS)
def test_the_official_suite_finds_no_fault(
    suite: Program, endpoint: str, tmp_path: Path, name: str
) -> None:
    """Every check of every scenario succeeds: none fails, warns, is skipped or crashes."""
    selection, count = SCENARIO_SELECTIONS[name]

    found_faults = run_suite(suite, endpoint, tmp_path, *selection)

    assert len(found_faults) == count, sorted(found_faults)
    if name in REQUIRED_SCENARIOS:
        scored = listed_scenarios(suite, "--requirements", name)
        assert len(scored) == REQUIRED_SCENARIOS[name]
        assert set(scored) <= set(found_faults)
    faults = [
        (scenario, check)
        for scenario, checks in found_faults.items()
        for check in checks
        if check.status not in {"SUCCESS", "INFO"}
        and (scenario, check.status) not in EXCUSED_CHECKS
    ]
    assert faults == []
    assert [scenario for scenario, checks in found_faults.items() if not checks] == []
    silent = [
        s for s, checks in found_faults.items() if not any(c.status == "SUCCESS" for c in checks)
    ]
    assert [s for s in silent if (s, "SKIPPED") not in EXCUSED_CHECKS] == []
