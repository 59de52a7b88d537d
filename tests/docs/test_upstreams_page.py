"""The lines of docs/upstreams.md lead from a FastMCP server and an mcpServers file to a call."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.support import commands
from tests.support.commands import Gatepost, shell_output
from tests.support.measuring import eventually
from tests.support.processes import Process, free_port, python_environment

PAGE = (ROOT / "docs" / "upstreams.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
NOTES = """
from fastmcp import FastMCP

mcp = FastMCP("notes")


@mcp.tool
def add_note(text: str) -> str:
    return f"Noted: {text}"


mcp.run(show_banner=False)
"""


def block(language: str, containing: str) -> str:
    """Return the only code block of that language that contains the text."""
    texts = [text for kind, text in BLOCKS if kind == language and containing in text]
    assert len(texts) == 1, f"{len(texts)} blocks of {language} hold {containing!r}"
    return texts[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Run the page's server; yield its folder and its URL."""
    folder, port = tmp_path_factory.mktemp("page"), free_port()
    (folder / "crm.py").write_text(block("python", "find_customer").replace("9100", str(port)))
    server = Process([sys.executable, "crm.py"], env=python_environment(), cwd=folder)
    try:
        server.wait_for("Uvicorn running")
        yield folder, f"http://127.0.0.1:{port}/mcp"
    finally:
        server.kill()


def paste(lines: str, gate: Gatepost) -> str:
    """Return the shell's output for these lines, with this run's port, program and state."""
    lines = lines.replace("http://127.0.0.1:8000", gate.origin)
    lines = lines.replace("gatepost token", "gatepost token --state state")
    return shell_output(lines.replace(".gatepost/dev.toml", "state/dev.toml"), gate.folder)


def dev_options(line: str, url: str) -> tuple[str, ...]:
    """Return the options of a line that starts `gatepost dev`."""
    command = line.strip().removeprefix("gatepost dev ")
    return tuple(command.replace("http://127.0.0.1:9100/mcp", url).split())


def test_a_fastmcp_server_is_called_through_the_gate(folder: tuple[Path, str]) -> None:
    """It is tested, called, approved, called again, and listed over REST."""
    root, url = folder
    lines = block("sh", "gatepost upstream test crm")
    with commands.dev(root, *dev_options(block("sh", "gatepost dev --upstream "), url)) as gate:
        calls = "\n".join(lines.splitlines()[1:])
        eventually(lambda: "approval_pending" in paste(calls, gate), within=30)
        tested = paste(lines.splitlines()[0], gate)
        pending = paste(calls, gate)
        approve = approval(pending, gate)
        answer = json.loads(paste(calls, gate))
        servers = json.loads(paste(block("sh", "/v1/mcp-servers -H"), gate))

    assert tested.splitlines()[-1] == "crm can be used."
    assert "is approved" in approve
    assert answer == json.loads(block("json", "customer 17"))
    assert [server["name"] for server in servers["data"]] == ["crm"]


def approval(pending: str, gate: Gatepost) -> str:
    """Approve the waiting call; return what the command prints."""
    match = re.search("[0-9a-f]{24}", pending)
    assert match is not None, pending
    command = f"gatepost approvals show {match[0]} --tenant acme --config state/dev.toml"
    approve = re.search(r"^gatepost approvals approve .*$", paste(command, gate), re.MULTILINE)
    assert approve is not None
    return paste(approve[0], gate)


def test_the_servers_of_an_mcp_servers_file_are_listed_and_tested(folder: tuple[Path, str]) -> None:
    """One is an HTTP server, the other a program."""
    root, url = folder
    script = root / "notes.py"
    script.write_text(NOTES, encoding="utf-8")
    file = block("json", "mcpServers").replace("http://127.0.0.1:9100/mcp", url)
    file = file.replace("/srv/notes/.venv/bin/python", sys.executable)
    (root / "mcp.json").write_text(file.replace("/srv/notes/notes.py", str(script)))
    lines = block("sh", "gatepost upstream test notes").splitlines()
    with commands.dev(root, *dev_options(block("sh", "gatepost dev --upstreams "), url)) as gate:
        listed = paste(lines[0], gate)
        tested = paste(lines[1], gate)

    assert {line.split()[0] for line in listed.splitlines()} >= {"crm", "notes"}
    assert tested.splitlines()[-1] == "notes can be used."
