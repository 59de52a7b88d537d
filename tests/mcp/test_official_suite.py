"""The official conformance suite, whole, against the shipped server with the gate on."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.mcp import suite
from tests.support import commands
from tests.support.processes import Process, free_port, python_environment
from tests.support.proxies import with_token

SELECTIONS = {
    # What is selected: how, and how many scenarios the pinned release has.
    "2025-03-26": (("--suite", "all", "--spec-version", "2025-03-26"), 1),
    "2025-06-18": (("--suite", "all", "--spec-version", "2025-06-18"), 27),
    "2025-11-25": (("--suite", "all", "--spec-version", "2025-11-25"), 33),
    "2026-07-28": (("--suite", "all", "--spec-version", "2026-07-28"), 40),
    "extensions": (("--suite", "pending"), 17),
}
REQUIRED = {"2025-11-25": 30, "2026-07-28": 37}
"""Revisions with a frozen list of what is scored."""

EXCUSED = {
    ("tasks-status-notifications", "SKIPPED"): "the suite always skips it",
}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server that `tests/mcp/serve` starts, behind a proxy that holds a token."""
    folder = tmp_path_factory.mktemp("conformance")
    port = free_port()
    command = [str(ROOT / "tests/mcp/serve"), str(port), str(folder / "state")]
    server = Process(command, env=python_environment({"PYTHONPATH": ":".join(sys.path)}))
    try:
        url = server.wait_for(commands.READY)["url"]
        token = commands.token(folder, "--tenant", "acme")
        with with_token(url, token) as proxied:
            yield proxied
        assert server.stop() == 0, server.output
        assert "Traceback" not in server.output
    finally:
        server.kill()


@pytest.mark.parametrize("name", SELECTIONS)
def test_the_official_suite_finds_no_fault(endpoint: str, tmp_path: Path, name: str) -> None:
    """Every check of every scenario succeeds: none fails, warns, is skipped or crashes."""
    selection, count = SELECTIONS[name]

    found = suite.run(endpoint, tmp_path, *selection)

    assert len(found) == count, sorted(found)
    if name in REQUIRED:
        scored = suite.listed("--requirements", name)
        assert len(scored) == REQUIRED[name]
        assert set(scored) <= set(found)
    faults = [
        (scenario, check)
        for scenario, checks in found.items()
        for check in checks
        if check.status not in {"SUCCESS", "INFO"} and (scenario, check.status) not in EXCUSED
    ]
    assert faults == []
    assert [scenario for scenario, checks in found.items() if not checks] == []
    silent = [s for s, checks in found.items() if not any(c.status == "SUCCESS" for c in checks)]
    assert [s for s in silent if (s, "SKIPPED") not in EXCUSED] == []
