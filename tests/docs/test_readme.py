"""README's first screen works when it is pasted, and its own function runs behind the gate."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.support import commands
from tests.support.commands import Gatepost, shell_output

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def block(language: str, containing: str) -> str:
    """Return the only code block of that language that contains the text."""
    texts = [text for kind, text in BLOCKS if kind == language and containing in text]
    assert len(texts) == 1, f"{len(texts)} blocks of {language} hold {containing!r}"
    return texts[0]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gatepost, Path]]:
    """Run `gatepost dev` with the README's tool, saved where the README says."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "greetings.py").write_text(block("python", "def greet"), encoding="utf-8")
    with commands.dev(folder, "--tools", "greetings.py") as process:
        yield process, folder


def paste(lines: str, process: Gatepost, folder: Path) -> str:
    """Return the shell's output for these lines, with this run's port, program and state."""
    lines = lines.replace("http://127.0.0.1:8000", process.origin)
    return shell_output(
        lines.replace("gatepost token", "gatepost token --state state"), folder, code=0
    )


def test_the_first_example_prints_a_tool_result_and_a_challenge(
    running: tuple[Gatepost, Path],
) -> None:
    """The lines run as pasted."""
    printed = paste(block("sh", "Mcp-Name: echo"), *running)
    answer, challenge = printed.strip().splitlines()

    assert json.loads(answer)["result"]["content"] == [{"type": "text", "text": "hello"}]
    assert challenge.startswith("www-authenticate: Bearer resource_metadata=")


def test_the_sample_call_waits_for_approval_and_then_runs(running: tuple[Gatepost, Path]) -> None:
    """After the approval, the same lines delete the file."""
    lines = block("sh", "delete_csv")
    saved, pending = map(json.loads, paste(lines, *running).strip().splitlines())
    command = "gatepost approvals %s --tenant acme --config state/dev.toml"
    output = paste(
        f"{command % 'show'} {re.search('[0-9a-f]{24}', pending['message'])[0]}", *running
    )
    approve = re.search(r"^gatepost approvals approve .*$", output, re.MULTILINE)
    assert approve is not None, output
    paste(approve[0], *running)
    _, deleted = map(json.loads, paste(lines, *running).strip().splitlines())

    assert saved["result"].startswith("CSV saved to /workspace/old.csv")
    assert (pending["error"], pending["retry_after"]) == ("approval_pending", 5)
    assert deleted == {"result": "CSV deleted: old.csv"}


def test_the_function_of_the_readme_is_a_tool_behind_the_gate(
    running: tuple[Gatepost, Path],
) -> None:
    """It has five lines."""
    lines = block("sh", "Mcp-Name: echo").splitlines()
    call = "\n".join(lines[:2]).replace("Mcp-Name: echo", "Mcp-Name: greet")
    call = call.replace(
        '"name":"echo","arguments":{"text":"hello"}', '"name":"greet","arguments":{"name":"Ada"}'
    )

    answer = json.loads(paste(call, *running))

    assert answer["result"]["content"][0]["text"] == "Hello Ada, from acme."


def test_the_doctor_command_of_the_readme_finds_no_problem(running: tuple[Gatepost, Path]) -> None:
    """Its last line says so."""
    process, folder = running
    output = paste(".venv/bin/gatepost doctor http://127.0.0.1:8000/mcp", process, folder)

    assert output.strip().splitlines()[-1] == (f"No problems found at {process.url}.")


def test_the_configuration_of_the_readme_passes_the_check(tmp_path: Path) -> None:
    """The key ring is made by the command of the README."""
    (tmp_path / "gatepost.toml").write_text(block("toml", "resource ="), encoding="utf-8")
    (tmp_path / "greetings.py").write_text(block("python", "def greet"), encoding="utf-8")
    steps = block("sh", "keyring new").splitlines()[:2]

    shell_output("\n".join(steps), tmp_path, code=0)


def test_every_page_the_readme_links_exists() -> None:
    """A link that leads nowhere is worse than none."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)

    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_readme_stays_within_its_line_limit() -> None:
    """Further text belongs to the documentation site."""
    assert len(README.splitlines()) <= 120
