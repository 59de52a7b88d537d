"""The tool of the official suite that lets go of its connection."""

import asyncio

from gatepost import CallContext, Pack

pack = Pack("conformance_sessions")


@pack.tool(read_only=True)
async def test_reconnection(ctx: CallContext) -> str:
    """Close the stream before the answer, for the client to come back to."""
    await ctx.client.pause(0.1)
    await asyncio.sleep(0.2)
    return "Reconnected."
