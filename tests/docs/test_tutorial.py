"""docs/tutorial.md works when it is pasted, from its first block to its last."""

import re
from collections.abc import Iterator

import pytest

from tests.architecture.source import ROOT
from tests.support import commands
from tests.support.commands import Gatepost, shell_output, started_shell
from tests.support.measuring import eventually
from tests.support.processes import free_port

PAGE = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.M | re.DOTALL)
SHELL = [
    (lines, BLOCKS[number + 1][1] if BLOCKS[number + 1][0] == "text" else "")
    for number, (language, lines) in enumerate(BLOCKS)
    if language == "sh"
]
"""Lines to paste, and what they print; empty where the page does not say it."""


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gatepost]:
    """Run `gatepost dev` as the page does, with the two files that the page has the reader save."""
    folder = tmp_path_factory.mktemp("shop")
    files = re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)^```$", PAGE, re.M | re.DOTALL)
    assert [name for name, _ in files] == ["shop.py", "test_shop.py"]
    for name, text in files:
        (folder / name).write_text(text, encoding="utf-8")
    assert "$ gatepost dev --tools shop.py\n" in PAGE
    port = str(free_port())
    with commands.running("dev", "--port", port, "--tools", "shop.py", cwd=folder) as process:
        yield process


def approved(gate: Gatepost) -> None:
    """Approve the call that waits, as the page says it is done in a terminal."""
    (listed,) = [lines for lines, _ in SHELL if "approvals list" in lines]

    def waiting() -> list[str]:
        return re.findall("^[0-9a-f]{24}", shell_output(listed, gate.folder), re.M)

    eventually(lambda: len(waiting()) == 1, within=60)
    where = "--tenant acme --config .gatepost/dev.toml"
    output = shell_output(f"gatepost approvals show {waiting()[0]} {where}", gate.folder)
    command = re.findall(r"^gatepost approvals approve .*$", output, re.M)
    assert command, output
    assert "is approved" in shell_output(command[0], gate.folder)


def test_every_block_of_the_tutorial_prints_the_output_on_the_page(gate: Gatepost) -> None:
    """The blocks run in order: a call, two refusals, an approved call, the log and a test."""
    printed, export = [], ""
    for block, _ in SHELL:
        lines = block if block.startswith("export ") else export + block  # it is one terminal
        export = lines.partition("\n")[0] + "\n"
        if "gatepost call refund" in lines:
            waiting = started_shell(lines, gate.folder)
            approved(gate)
            printed.append(waiting.communicate(timeout=60)[0].splitlines()[-1] + "\n")
        else:
            printed.append(shell_output(lines, gate.folder))

    assert len(SHELL) == 8
    assert [output for output, (_, text) in zip(printed, SHELL, strict=True) if text] == [
        text for _, text in SHELL if text
    ]
