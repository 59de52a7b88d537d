"""docs/tools.md describes the tools there are, and its example works."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from gatepost.packs import BUILT_IN
from gatepost.tools.api import Tool
from gatepost.tools.pack import Options, Pack
from tests.support.mcp import Client, a_caller

PAGE = (Path(__file__).parents[2] / "docs/tools.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE)
SECTIONS = dict(re.findall(r"^### `(\w+)`$(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))


def shipped() -> dict[str, Tool]:
    packs: list[Pack] = [import_module(module).pack for module in BUILT_IN.values()]
    return {name: tool for pack in packs for name, tool in pack.tools.items()}


def test_every_tool_has_a_heading_and_every_heading_a_tool() -> None:
    """A tool that is not described is one that nobody may rely on."""
    assert sorted(HEADINGS) == sorted(shipped())


@pytest.mark.parametrize("name", HEADINGS)
def test_a_section_names_arguments_and_scopes(name: str) -> None:
    """All of them, as they really are."""
    tool, section = shipped()[name], SECTIONS[name]

    assert all(f"`{argument}`" in section for argument in tool.input_schema["properties"])
    assert all(f"`{scope}`" in section for scope in tool.scopes)
    assert ("read-only" in section) == bool(tool.annotations.read_only_hint)


def test_every_option_of_the_decorator_is_in_the_table() -> None:
    """An option nobody can read about does not exist."""
    rows = "".join(re.findall(r"^\| (`.*?) \|", PAGE.split("## A tool of your own")[1], re.M))

    assert set(re.findall(r"`(\w+)`", rows)) == {*get_type_hints(Options), "name"}


async def test_the_example_works() -> None:
    """Copied from the page as it is."""
    code = re.search(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {"__name__": "invoices"}
    exec(compile(code[1], "docs/tools.md", "exec"), names)  # noqa: S102  # our own page
    client = Client(names["pack"].tools.values())
    client.caller = a_caller(scopes=frozenset({"invoices:read"}))

    found = (await client.call("find_invoice", {"number": "2024-001"})).json["result"]
    missing = (await client.call("find_invoice", {"number": "x"})).json["result"]

    assert found["structuredContent"] == {"number": "2024-001", "total": 1250.0}
    assert missing["isError"] is True
