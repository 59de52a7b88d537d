"""The tool `git`, with the interface of Octoprox."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from gatepost import CallContext, Effects, Pack, ToolFailure
from gatepost_packs.git.git_command import GitResult, perform
from gatepost_packs.git.policy import GitPlan, decide

pack = Pack("git")

LONGEST_S = 300
MARGIN_S = 30
"""Seconds for the work around the command: waiting, inspecting, counting and ending it."""


def only_reads(arguments: Mapping[str, Any]) -> bool:
    """Return whether these arguments change nothing: status, log, diff, show, and lists."""
    plan = decide(arguments["args"])
    return isinstance(plan, GitPlan) and plan.reads


@pack.tool(
    title="Run a git command",
    scopes={"git:run"},
    read_only=False,
    destructive=True,
    idempotent=False,
    open_world=False,
    # The hints are Octoprox's; `clone`, `fetch` and `push` do leave the workspace.
    effects=Effects(destructive=True, open_world=True),
    read_only_form=only_reads,
    timeout_s=LONGEST_S + MARGIN_S,
    untrusted="Git repository",
)
async def git(
    ctx: CallContext,
    args: Annotated[
        list[str],
        Field(
            description=(
                "Git command and arguments, for example "
                '["clone", "--depth=1", "https://github.com/user/repo.git"]. '
                'Begin with ["-C", "folder", ...] to work in a folder of the workspace.'
            )
        ),
    ],
    timeout_s: Annotated[
        int, Field(description="Command timeout in seconds (1-300)", ge=1, le=LONGEST_S)
    ] = 120,
) -> GitResult:
    """Execute whitelisted git commands within the workspace."""
    plan = decide(args)
    if not isinstance(plan, GitPlan):
        raise ToolFailure("validation", plan.message, field="args")
    return await perform(ctx, plan, timeout_s)
