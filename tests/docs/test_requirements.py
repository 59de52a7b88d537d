"""Every promise in docs/requirements.md has a test that names it, and no test names another."""

import re

import pytest

from tests.architecture.source import ROOT
from tests.conftest import NAMED_REQUIREMENTS

ROW = re.compile(r"^\| ([A-Z]{1,2}-?\d{1,2}) \|", re.MULTILINE)


def test_every_requirement_has_a_test_and_every_mark_a_requirement(
    pytestconfig: pytest.Config,
) -> None:
    """A review does not see an absence; a table with an empty cell does."""
    if pytestconfig.args != pytestconfig.getini("testpaths"):
        pytest.skip("only a run over all tests knows which requirements have one")
    rows = ROW.findall((ROOT / "docs/requirements.md").read_text(encoding="utf-8"))
    named = pytestconfig.stash[NAMED_REQUIREMENTS]

    assert len(rows) == len(set(rows))
    assert sorted(set(rows) - named) == []
    assert sorted(named - set(rows)) == []
