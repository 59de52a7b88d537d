"""The files that the tests begin with exist, and `--slow` reads all files with a test for it."""

import pytest

from tests.architecture.source import ROOT
from tests.conftest import LONGEST_FILES, SLOW_FILES, may_have_slow_tests


def test_every_file_in_the_list_of_longest_files_exists() -> None:
    """A renamed file would start late, and the other processes would wait for it."""
    missing = [name for name in LONGEST_FILES.split() if not (ROOT / "tests" / name).is_file()]

    assert missing == []


def test_the_slow_option_collects_every_file_with_slow_tests(pytestconfig: pytest.Config) -> None:
    """`--slow` skips files whose text has no slow mark; no skipped file may have slow tests."""
    files = pytestconfig.stash[SLOW_FILES]

    assert [file for file in files if not may_have_slow_tests(file)] == []
    # Where that is true of every file, nothing is saved.
    assert not may_have_slow_tests(ROOT / "tests/architecture/test_size.py")
