"""Files and functions stay within what a reader holds."""

from pathlib import Path

from tests.architecture.source import ROOT, contents, other_files, source_files, wrong

FILE_LINES = 400
FUNCTION_LINES = 50
TEST_HELPERS = 40
"""Modules of the tests that are no test file and no `__init__.py`."""


def test_files_stay_within_the_line_limit() -> None:
    """A file of more than 400 lines has two subjects."""

    def rule(path: Path) -> list[tuple[str, int]]:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        return [("the last line", lines)] if lines > FILE_LINES else []

    assert wrong([*source_files(), *other_files()], rule) == []


def test_functions_stay_within_the_line_limit() -> None:
    """A function of more than fifty lines does two things."""

    def rule(path: Path) -> list[tuple[str, int]]:
        return [
            (f"{function.name} has {function.last - function.first + 1} lines", function.first)
            for function in contents(path).functions
            if function.last - function.first + 1 > FUNCTION_LINES
        ]

    assert wrong([*source_files(), *other_files()], rule) == []


def test_helper_modules_of_tests_stay_within_their_limit() -> None:
    """A helper module in each folder would duplicate what another folder already has."""
    helpers = [
        str(path.relative_to(ROOT))
        for path in other_files()
        if path.is_relative_to(ROOT / "tests")
        and path.name != "__init__.py"
        and not path.name.startswith("test_")
    ]

    assert len(helpers) <= TEST_HELPERS, helpers
    assert "tests/support/server.py" in helpers
