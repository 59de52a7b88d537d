"""The tools with which the official conformance suite changes a list and expects to hear of it."""

from gatepost import CallContext, Pack

pack = Pack("conformance_changes")


@pack.tool()
async def test_trigger_tool_change(ctx: CallContext) -> str:
    """Announce that the list of tools changed; afterwards it is as it was."""
    await ctx.changes.listed("tools")
    return "Announced."


@pack.tool()
async def test_trigger_prompt_change(ctx: CallContext) -> str:
    """Announce that the list of prompts changed; afterwards it is as it was."""
    await ctx.changes.listed("prompts")
    return "Announced."
