"""A tool that needs approval, in a server that shows nobody in time that a call still waits."""

from gatepost import CallContext, Pack
from gatepost.mcp import vigil

vigil.SIGN_EVERY_S = vigil.HOLD_S = 3600.0

pack = Pack("seldom")


@pack.tool(approval=True)
async def sign(ctx: CallContext, label: str) -> str:
    """Sign something, once somebody has approved it."""
    return f"signed {label}"
