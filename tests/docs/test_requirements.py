"""Every promise in docs/requirements.md has a test that names it, and no test names another."""

import re

import pytest

from tests.architecture.source import ROOT
from tests.conftest import NAMED_REQUIREMENTS

ROW = re.compile(r"^\| ([A-Z]{1,3}-?\d{1,2}) \| ([^|]*)\|.*$", re.MULTILINE)
UNTESTED_MARK = "*Not tested:*"
"""Begins the reason why a row has no test; the reasons are reviewed like code."""


def test_every_requirement_has_a_test_and_every_mark_a_requirement(
    pytestconfig: pytest.Config,
) -> None:
    """A requirement without a test is not visible in a review."""
    if pytestconfig.args != pytestconfig.getini("testpaths"):
        pytest.skip("only a run over all tests knows which requirements have one")
    page = (ROOT / "docs/requirements.md").read_text(encoding="utf-8")
    rows = [match for match in ROW.finditer(page) if UNTESTED_MARK not in match[0]]
    ids = [match[1] for match in rows]
    named = pytestconfig.stash[NAMED_REQUIREMENTS]

    assert len(ids) == len(set(ids))
    assert sorted(set(ids) - named.keys()) == []
    assert sorted(named.keys() - set(ids)) == []
    # What the protocol demands is proven through the endpoint, which both folders send requests to.
    demanded = [match[1] for match in rows if "-" in match[1] and "MUST" in match[2]]
    assert [row for row in demanded if not {"mcp", "attacks"} & {*named[row]}] == []
