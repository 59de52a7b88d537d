"""The files that the tests begin with exist, and `--slow` reads all files with a test for it."""

import pytest

from tests.architecture.source import ROOT
from tests.conftest import LONGEST, SLOW_FILES, may_have_slow_tests


def test_the_files_that_take_longest_are_there() -> None:
    """A renamed file would begin at any time, and the other processes would wait for it."""
    missing = [name for name in LONGEST.split() if not (ROOT / "tests" / name).is_file()]

    assert missing == []


def test_no_file_with_slow_tests_is_passed_over(pytestconfig: pytest.Config) -> None:
    """`--slow` does not import a file whose text says that it has none; that must be true."""
    files = pytestconfig.stash[SLOW_FILES]

    assert [file for file in files if not may_have_slow_tests(file)] == []
    # Where that is true of every file, nothing is saved.
    assert not may_have_slow_tests(ROOT / "tests/architecture/test_size.py")
