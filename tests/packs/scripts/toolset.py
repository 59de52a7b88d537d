"""Tools that scripts call, each of another kind."""

import asyncio
from pathlib import Path

from pydantic import BaseModel

from gatepost import CallContext, Pack
from gatepost.tools.client import ProtocolError

pack = Pack("called")


class Sure(BaseModel):
    """The form."""

    sure: bool


@pack.tool()
async def asks(ctx: CallContext) -> str:
    """Ask the person whether to go on."""
    return (await ctx.ask("Go on?", Sure)).action


@pack.tool()
async def answers_an_error(ctx: CallContext) -> str:
    """Answer a JSON-RPC error."""
    raise ProtocolError(4711, "not in this house")


@pack.tool()
async def deeper(ctx: CallContext) -> str:
    """Call itself; say where that ended."""
    inner = await ctx.call("deeper", {})
    return inner.failure.message if inner.failure else f"> {inner.content[0]['text']}"


def is_there(path: str) -> bool:
    """Whether somebody has made that file."""
    return Path(path).exists()


@pack.tool(timeout_s=120)
async def held(ctx: CallContext, until: str) -> str:
    """Run until the test has made that file."""
    while not is_there(until):  # noqa: ASYNC110  # the server may be another process
        await asyncio.sleep(0.02)
    return "let go"
