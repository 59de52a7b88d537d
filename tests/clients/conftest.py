"""Two running `gatepost dev` for all clients: one as it comes, one with tools of every kind."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.architecture.source import ROOT
from tests.support import commands
from tests.support.commands import Gatepost

FIXTURES = sorted((ROOT / "tests/mcp").glob("fixture_*.py"))
SHORT_POLLS = """
from gatepost import Pack
from gatepost.runtime import services

pack = Pack("short_polls")
made = services.TaskLimits
services.TaskLimits = lambda **limits: made(**{**limits, "poll_interval_s": 0.1})
"""
"""In the server alone: it asks clients to poll a task ten times a second."""


class GatedEndpoint(NamedTuple):
    """An endpoint with something of every kind behind its gate, and a key to it."""

    url: str
    token: str
    folder: Path
    """Where its state is, for further tokens."""

    @property
    def bearer(self) -> dict[str, str]:
        """The header that opens the gate."""
        return {"Authorization": f"Bearer {self.token}"}


@pytest.fixture(scope="package")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gatepost]:
    with commands.dev(tmp_path_factory.mktemp("dev")) as running:
        yield running


@pytest.fixture(scope="package")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatedEndpoint]:
    folder = tmp_path_factory.mktemp("stage")
    (folder / "short_polls.py").write_text(SHORT_POLLS, encoding="utf-8")
    files = (*FIXTURES, folder / "short_polls.py")
    tools = [argument for file in files for argument in ("--tools", str(file))]
    with commands.dev(folder, *tools) as running:
        yield GatedEndpoint(running.url, commands.token(folder, "--tenant", "acme"), folder)
