"""docs/errors.md names every problem id and every code that goes out, and no other."""

import re

from gatepost.mcp import jsonrpc
from gatepost.rest.responses import TABLE
from gatepost_authz import errors
from tests.architecture.source import ROOT, refusal_codes, source_files

PAGE = ROOT / "docs" / "errors.md"
PROBLEM = re.compile(r"\"((?:config|authz)\.[EW]\d{3})\"")
BESIDE_REFUSALS = {"not_found", "internal_error"}
"""What the edge answers without an EdgeRefusal."""


def headings() -> set[str]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return {line.removeprefix("### ") for line in lines if line.startswith("### ")}


def test_the_headings_equal_the_problem_ids_and_error_codes() -> None:
    """A reader who searches for an error message finds it on the page."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in source_files())
    gate = {error.code for error in vars(errors).values() if getattr(error, "code", None)}
    tools = {word for _, word in TABLE.values()}

    assert headings() == {*PROBLEM.findall(text), *gate, *refusal_codes(), *tools, *BESIDE_REFUSALS}


def test_the_problems_stand_in_the_order_of_their_numbers() -> None:
    """A reader of the page finds one without searching."""
    ids = re.findall(r"^### (config|authz)\.([EW])(\d{3})$", PAGE.read_text("utf-8"), re.MULTILINE)

    assert ids == sorted(ids, key=lambda parts: (parts[0] == "authz", *parts[1:]))


def test_the_rows_equal_the_json_rpc_error_codes() -> None:
    """The codes of the MCP endpoint are numbers."""
    section = PAGE.read_text(encoding="utf-8").split("\n## Answers of the MCP endpoint\n")[1]
    rows = re.findall(r"^\| (-\d+) \|", section, re.MULTILINE)
    codes = [value for value in vars(jsonrpc).values() if isinstance(value, int) and value < 0]

    assert sorted(map(int, rows)) == sorted(codes)
