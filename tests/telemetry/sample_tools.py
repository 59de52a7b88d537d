"""Tools that ask their client, call other tools, and fetch pages."""

from gatepost import CallContext, Pack

pack = Pack("sample")
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pack.tool()
async def name_yourself(ctx: CallContext) -> str:
    """Ask the client for a name."""
    answered = await ctx.ask("Who are you?", FORM)
    return f"{answered.content and answered.content['name']}"


@pack.tool()
async def pass_on(ctx: CallContext) -> str:
    """Call another tool."""
    outcome = await ctx.call("echo", {"text": "inner"})
    return "failed" if outcome.failure else "done"


@pack.tool()
async def fetch(ctx: CallContext, url: str) -> str:
    """Get a page."""
    reply = await ctx.http.send("GET", url)
    return str(reply.status)
