"""The tool `git`, as Octoprox serves it."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from gatepost.packs.git.policy import Plan, decide
from gatepost.packs.git.work import Done, perform
from gatepost.tools.api import CallContext, ToolFailure
from gatepost.tools.pack import Pack

pack = Pack("git")

LONGEST_S = 300
MARGIN_S = 30
"""For what is around the command: a turn, a look, a count, and its end."""


def only_reads(arguments: Mapping[str, Any]) -> bool:
    """Whether these arguments change nothing: status, log, diff, show, and lists."""
    plan = decide(arguments["args"])
    return isinstance(plan, Plan) and plan.reads


@pack.tool(
    title="Run a git command",
    scopes={"git:run"},
    read_only=False,
    destructive=True,
    idempotent=False,
    open_world=False,
    read_only_form=only_reads,
    timeout_s=LONGEST_S + MARGIN_S,
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
) -> Done:
    """Execute whitelisted git commands within the workspace."""
    plan = decide(args)
    if not isinstance(plan, Plan):
        raise ToolFailure("validation", plan.message, field="args")
    return await perform(ctx, plan, timeout_s)
