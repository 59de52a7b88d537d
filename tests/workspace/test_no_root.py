"""A server whose packs store no files runs without a folder for workspaces."""

from pathlib import Path

import pytest

from tests.support.client import result
from tests.support.issuers import Idp
from tests.support.server import check_problems, issuer_settings, running_server

UNUSABLE_ROOT = {"root": "/dev/null/workspaces"}
TABLE = {"acme": "acme"}
TOOLS = '''
from gatepost import CallContext, Pack

pack = Pack("rootless")


@pack.tool(read_only=True)
async def plain(ctx: CallContext) -> str:
    """Use no files."""
    return "plain"


@pack.tool()
async def writes(ctx: CallContext) -> str:
    """Write a file."""
    await ctx.workspace.write("a.txt", b"a")
    return "written"
'''


@pytest.mark.parametrize(
    ("packs", "problem"), [(["github"], set()), (["github", "memory"], {"config.E021"})]
)
def test_only_packs_that_store_files_need_the_folder(
    idp: Idp, packs: list[str], problem: set[str]
) -> None:
    """A read-only container needs no folder if no pack writes."""
    reported_problems = check_problems(
        [issuer_settings(idp)], tools={"packs": packs}, workspace=UNUSABLE_ROOT
    )

    assert {
        problem.id for problem in reported_problems if problem.setting == "workspace.root"
    } == problem


def test_a_tool_that_writes_names_the_missing_setting(idp: Idp, tmp_path: Path) -> None:
    """Other tools run, and `gatepost check` warned the operator."""
    (tmp_path / "tools.py").write_text(TOOLS, encoding="utf-8")
    settings = {"load": [str(tmp_path / "tools.py")], "packs": ["github"]}
    trusted = issuer_settings(idp, tenants=TABLE)
    reported_problems = check_problems([trusted], tools=settings, workspace=UNUSABLE_ROOT)
    with running_server(idp, [trusted], tools=settings, workspace=UNUSABLE_ROOT) as server:
        token = server.token(org_id="acme")
        plain = result(server.client.call(token, "plain"))
        writes = result(server.client.call(token, "writes"))

    assert "config.W021" in {problem.id for problem in reported_problems}
    assert plain["content"][0]["text"] == "plain"
    assert writes["isError"] is True
    assert "workspace.root" in writes["content"][0]["text"]
