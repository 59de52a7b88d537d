"""On pipes a call waits as it does over HTTP; somebody else decides, in another process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stdio.talk import CONFIG, META, Talk, talking
from tests.support.process import python_environment

WITHIN_S = 20
MORE = """
[approvals]
require = ["echo"]
[keys]
ring = "file:keyring.json"
"""
TASKS = {"extensions": {f"{META}tasks": {}}}
PAGES = {"elicitation": {"url": {}}}


def gatepost(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "gatepost", *words],
        check=True,
        capture_output=True,
        text=True,
        cwd=folder,
        env=python_environment(),
        timeout=WITHIN_S,
    )
    return done.stdout


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    folder = tmp_path_factory.mktemp("stdio")
    gatepost(folder, "keyring", "new", "keyring.json")
    config = CONFIG.replace('"memory:"', '"sqlite:///gatepost.db"') + MORE
    with talking(folder, config) as talk:
        talk.folder = folder
        yield talk


def approve(talk: Talk) -> None:
    """Approve the one call that waits, at the command line."""
    shown = gatepost(talk.folder, "approvals", "list", "--tenant", "acme", "--json")
    (request,) = json.loads(shown)
    gatepost(talk.folder, "approvals", "approve", request["id"], "--tenant", "acme")
