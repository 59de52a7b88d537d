"""Tools that destroy, some of them only in some of their forms."""

from gatepost import CallContext, Pack

pack = Pack("wrecking")
RUN: list[str] = []
"""What has run, by the label of its call."""


@pack.tool(destructive=True)
async def wreck(ctx: CallContext, label: str) -> str:
    """Destroy something."""
    RUN.append(label)
    return "done"


@pack.tool(destructive=True, read_only_form=lambda given: given["action"] == "look")
async def handle(ctx: CallContext, action: str, label: str) -> str:
    """Destroy something, or look at it."""
    RUN.append(label)
    return "done"


@pack.tool(destructive=False)
async def note(ctx: CallContext, label: str) -> str:
    """Write something down."""
    RUN.append(label)
    return "done"


@pack.tool
async def unmarked(ctx: CallContext, label: str) -> str:
    """Do something that nobody has marked."""
    RUN.append(label)
    return "done"
