"""docs/rest.md says what is true of the routes."""

import json
import re
from pathlib import Path

import pytest

from gatepost.rest.responses import RETRY_AFTER_S, TABLE
from gatepost_authz.protected_resource import Resource, SiblingPaths
from tests.architecture.source import ROOT
from tests.support import commands
from tests.support.commands import shell_output

PAGE = (ROOT / "docs/rest.md").read_text(encoding="utf-8")
ROUTE_ROWS = re.findall(r"^\| `(https:[^`]+)` \| `(https:[^`]+)` \|$", PAGE, re.MULTILINE)
ROWS = re.findall(r"^\| [^|]+ \| (\d{3}) `(\w+)` \| ([^|]*)\|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("resource", "tools"), ROUTE_ROWS)
def test_the_rest_routes_have_the_paths_of_the_page(resource: str, tools: str) -> None:
    """The page lists a path for each kind of resource."""
    location = Resource(resource)

    assert (
        location.origin + SiblingPaths(location).base.replace("{tenant}", "acme") + "/tools"
        == tools
    )


def test_the_table_has_every_failure_with_its_retry_after() -> None:
    """A failure with `retry_after` says so in its row."""
    documented = {(int(status), word): third for status, word, third in ROWS}

    assert ROUTE_ROWS
    for kind, row in TABLE.items():
        assert ("`retry_after`" in documented[row]) == (kind in RETRY_AFTER_S)


def test_the_pasted_lines_print_the_promised_answer(tmp_path: Path) -> None:
    """They end in the answer that the page promises."""
    block = re.search(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    promised = re.search(r"^The last line prints `(.*)`\.$", PAGE, re.MULTILINE)
    assert block is not None
    assert promised is not None
    with commands.dev(tmp_path) as process:
        lines = block[1].replace("http://127.0.0.1:8000", process.origin)
        lines = lines.replace("gatepost token", "gatepost token --state state")
        printed = shell_output(lines.replace("\ncurl", "\necho\ncurl"), tmp_path, code=0)
    listed, answer = printed.split()[0], printed.split("\n")[-1]

    assert printed
    assert json.loads(answer) == json.loads(promised[1])
    assert listed.startswith('[{"name":')
