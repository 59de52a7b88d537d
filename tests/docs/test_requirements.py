"""Every promise in docs/requirements.md has a test that names it, and no test names another."""

import ast
import re
from collections.abc import Iterator

from tests.architecture.source import ROOT, other_files

ROW = re.compile(r"^\| ([A-Z]{1,2}-?\d{1,2}) \|", re.MULTILINE)


def promised() -> list[str]:
    return ROW.findall((ROOT / "docs/requirements.md").read_text(encoding="utf-8"))


def marks() -> Iterator[str]:
    """The ids in every `requirement(...)` of the tests, as a decorator or in a table of cases."""
    for path in other_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("requirement"):
                yield from (
                    arg.value
                    for arg in node.args
                    if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
                )


def test_every_requirement_has_a_test_and_every_mark_a_requirement() -> None:
    """A review does not see an absence; a table with an empty cell does."""
    rows, named = promised(), set(marks())

    assert len(rows) == len(set(rows))
    assert sorted(set(rows) - named) == []
    assert sorted(named - set(rows)) == []
