"""Tools for a server on pipes: some print where they should not, some take their time."""

import asyncio
import os
import subprocess
import sys
from typing import Annotated

from pydantic import BaseModel, Field

from gatepost import CallContext, Pack
from gatepost.tools.client import ProtocolError

print("the file of tools says hello")  # noqa: T201  # what tests are about

pack = Pack("kit")


class ColourForm(BaseModel):
    """The form that a person fills in."""

    colour: str


@pack.tool()
async def chatter(ctx: CallContext) -> str:
    """Print in every possible way, and read standard input."""
    print("said by print")  # noqa: T201
    os.write(1, b"said by the system\n")
    command = [sys.executable, "-c", "print('said by a child'); print(repr(input.__name__))"]
    await asyncio.to_thread(subprocess.run, command, check=True)
    return f"read {await asyncio.to_thread(sys.stdin.read)!r}"


@pack.tool()
async def tell(ctx: CallContext, times: int) -> str:
    """Report progress and log."""
    for step in range(times):
        await ctx.progress(step + 1, times)
    await ctx.log("warning", "told")
    return "told"


@pack.tool()
async def ask_colour(ctx: CallContext) -> str:
    """Ask for a colour."""
    answered = await ctx.ask("Which colour?", ColourForm)
    return f"{answered.action} {answered.content.colour if answered.content else ''}".strip()


@pack.tool(timeout_s=60)
async def wait(ctx: CallContext, seconds: float) -> str:
    """Wait; says on standard error when it is stopped."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        print("the wait was stopped", flush=True)  # noqa: T201
        raise
    return "waited"


@pack.tool()
async def let_go(ctx: CallContext, back_after_s: float = 0.1) -> str:
    """Let go of the connection in the middle, where there is one."""
    await ctx.progress(1)
    await ctx.client.pause(back_after_s)
    await asyncio.sleep(0.3)
    await ctx.progress(2)
    return "came back"


@pack.tool()
async def announce(ctx: CallContext) -> str:
    """Say that the list of tools is another one."""
    await ctx.changes.listed("tools")
    return "announced"


@pack.tool()
async def route(
    ctx: CallContext, region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]
) -> str:
    """Be routed by an argument, where a proxy routes by headers."""
    return region


@pack.tool(scopes={"more"})
async def guarded(ctx: CallContext) -> str:
    """Need more than the caller has."""
    return "never"


@pack.tool()
async def break_protocol(ctx: CallContext) -> str:
    """Answer an internal error."""
    raise ProtocolError(-32603, "Internal error")


COUNTED: list[str] = []


@pack.tool()
async def count(ctx: CallContext) -> str:
    """Count how often it ran."""
    COUNTED.append("ran")
    return str(len(COUNTED))
