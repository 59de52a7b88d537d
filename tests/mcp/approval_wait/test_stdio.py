"""A call over pipes waits as it does over HTTP; another process decides."""

import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import completed
from tests.support.connections import STDIO_CONFIG, StdioClient, answered_text, stdio_process
from tests.support.endpoint import META
from tests.support.measuring import eventually

WITHIN_S = 30
MORE_CONFIG = """
[approvals]
require = ["echo"]
[keys]
ring = "file:keyring.json"
"""
TASKS = {"extensions": {f"{META}tasks": {}}}
PAGES: dict[str, Any] = {"elicitation": {"url": {}}}


def gatepost(folder: Path, *words: str) -> str:
    code, output, complaints = completed(*words, cwd=folder)
    assert code == 0, complaints
    return output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stdio")
    gatepost(folder, "keyring", "new", "keyring.json")
    return folder


@pytest.fixture(scope="module")
def stdio_client(folder: Path) -> Iterator[StdioClient]:
    config = STDIO_CONFIG.replace('"memory:"', '"sqlite:///gatepost.db"') + MORE_CONFIG
    with stdio_process(folder, config) as stdio_client:
        stdio_client.open(**PAGES)
        yield stdio_client


def approve(folder: Path) -> None:
    """Approve the one call that waits, at the command line."""
    *_, row = gatepost(folder, "approvals", "list", "--tenant", "acme").splitlines()
    which = (row.split()[0], "--tenant", "acme")
    output = gatepost(folder, "approvals", "show", *which)
    digest = output.partition("--digest ")[2].split()[0]
    gatepost(folder, "approvals", "approve", *which, "--digest", digest)


@pytest.mark.requirement("A7")
def test_a7_a_call_of_a_session_says_that_it_waits(stdio_client: StdioClient, folder: Path) -> None:
    """No person can sign in over stdio, so the message names the command line and no page."""
    params = {"name": "echo", "arguments": {"text": "one"}}
    call = stdio_client.say("tools/call", params, identity="c-1", meta={"progressToken": "p"})
    notifications = stdio_client.hears("notifications/progress")
    approve(folder)

    assert "waits for a person's approval" in notifications[0]["message"]
    assert stdio_client.told("elicitation/create") == []
    assert answered_text(stdio_client.of(call)) == "one"


@pytest.mark.slow
@pytest.mark.requirement("A7", "K-09")
def test_a7_a_modern_call_becomes_a_task(stdio_client: StdioClient, folder: Path) -> None:
    """The client polls the task until it ends, as over HTTP."""
    params = {"name": "echo", "arguments": {"text": "two"}}
    task = stdio_client.of(stdio_client.modern("tools/call", params, identity="c-2", can=TASKS))[
        "result"
    ]
    approve(folder)
    numbers = count(1)

    def look() -> Any:
        params = {"taskId": task["taskId"]}
        looking = stdio_client.modern("tasks/get", params, identity=f"t-{next(numbers)}", can=TASKS)
        return stdio_client.of(looking)["result"]

    eventually(lambda: look()["status"] == "completed", within=WITHIN_S)
    assert look()["result"]["content"][0]["text"] == "two"


@pytest.mark.requirement("A7", "N23")
@pytest.mark.parametrize("by_signal", [True, False])
def test_a7_the_end_of_input_answers_waiting_calls(tmp_path: Path, *, by_signal: bool) -> None:
    """They are answered at once, in every era, for any drain time."""
    gatepost(tmp_path, "keyring", "new", "keyring.json")
    config = STDIO_CONFIG.replace('"memory:"', '"sqlite:///gatepost.db"') + MORE_CONFIG
    with stdio_process(tmp_path, config, drain_s=600) as stdio_client:
        stdio_client.open()
        params = {"name": "echo", "arguments": {"text": "one"}}
        old = stdio_client.say("tools/call", params, identity="old", meta={"progressToken": "old"})
        params = {"name": "echo", "arguments": {"text": "two"}}
        new = stdio_client.modern("tools/call", params, identity="new", progressToken="new")
        stdio_client.hears("notifications/progress", times=2)
        if by_signal:
            stdio_client.process.send_signal(signal.SIGTERM)
        else:
            assert stdio_client.process.stdin is not None
            stdio_client.process.stdin.close()

        for identity in (old, new):
            assert "waits for a person's approval" in answered_text(stdio_client.of(identity))
        assert stdio_client.process.wait(WITHIN_S) == 0
