"""The files that the tests begin with exist."""

from tests.architecture.source import ROOT
from tests.conftest import LONGEST


def test_the_files_that_take_longest_are_there() -> None:
    """A renamed file would begin at any time, and the other processes would wait for it."""
    missing = [name for name in LONGEST.split() if not (ROOT / "tests" / name).is_file()]

    assert missing == []
