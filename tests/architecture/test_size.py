"""Files and functions stay within what a reader holds."""

import ast
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, functions, other_files, source_files

FILE_LINES = 400
FUNCTION_LINES = 50


@pytest.mark.parametrize(
    "path", [*source_files(), *other_files()], ids=lambda path: str(path.relative_to(ROOT))
)
def test_a_file_stays_within_a_sitting(path: Path) -> None:
    """400 lines is what a reader holds; past that, the file has two subjects."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= FILE_LINES


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_function_stays_within_a_screen(path: Path) -> None:
    """A function of more than fifty lines does two things."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    long = {
        f"{function.name}:{function.lineno}": (function.end_lineno or 0) - function.lineno + 1
        for function in functions(tree)
        if (function.end_lineno or 0) - function.lineno + 1 > FUNCTION_LINES
    }

    assert long == {}
