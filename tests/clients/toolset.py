"""What the real clients are given to use, beside the fixtures of the official suite."""

from pydantic import BaseModel

from gatepost import CallContext, Pack

pack = Pack("clients")


class Weather(BaseModel):
    """How it is outside."""

    city: str
    degrees: float


@pack.tool(read_only=True)
async def weather(ctx: CallContext, city: str) -> Weather:
    """Say how warm it is in a city."""
    return Weather(city=city, degrees=21.5)


@pack.tool()
async def link_account(ctx: CallContext) -> str:
    """Send somebody to a page."""
    return (await ctx.ask_url("Link your account", "https://mcp.example.com/connect")).action


@pack.tool()
async def touch(ctx: CallContext) -> str:
    """Announce that the watched document changed."""
    await ctx.changes.updated("test://watched-resource")
    return "Announced."
