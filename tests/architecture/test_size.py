"""Files and functions stay within what a reader holds."""

from pathlib import Path

from tests.architecture.source import ROOT, contents, other_files, source_files, wrong

FILE_LINES = 400
FUNCTION_LINES = 50
MIN_FILE_LINES, MAX_FILE_LINES = 100, 300
"""The lines of each file of `EVEN_PACKAGES`, except `__init__.py`."""
EVEN_PACKAGES = (
    "server/gatepost/audit",
    "server/gatepost/mcp/tasks",
    "server/gatepost/policy/approvals",
    "server/gatepost/policy/script_reviews",
)
"""The packages whose files are neither long nor many."""
TEST_HELPERS = 40
"""Modules of the tests that are no test file and no `__init__.py`."""


def test_files_stay_within_the_line_limit() -> None:
    """A file of more than 400 lines has two subjects."""

    def rule(path: Path) -> list[tuple[str, int]]:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        return [("the last line", lines)] if lines > FILE_LINES else []

    assert wrong([*source_files(), *other_files()], rule) == []


def test_files_of_packages_with_one_subject_each_are_neither_long_nor_short() -> None:
    """A longer file has two subjects, and a shorter one is a part of another file's subject."""
    lines = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for package in EVEN_PACKAGES
        for path in (ROOT / package).glob("*.py")
        if path.name != "__init__.py"
    }
    wrong_sizes = {
        name: count
        for name, count in lines.items()
        if not MIN_FILE_LINES <= count <= MAX_FILE_LINES
    }

    assert wrong_sizes == {}
    assert {name.rpartition("/")[0] for name in lines} == set(EVEN_PACKAGES)


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
