"""Tools of servers in other processes: what was done leaves a line with the time."""

import asyncio
import time

from gatepost import CallContext, Pack

pack = Pack("shop")


def mark(word: str) -> None:
    """Leave one line in the folder of the servers; appending is atomic for lines this short."""
    with open("marks", "a", encoding="utf-8") as file:  # as short as it can be
        file.write(f"{word} {time.time():.6f}\n")


@pack.tool()
async def sell(ctx: CallContext) -> str:
    """Have an effect, at once."""
    mark(f"sell-{ctx.caller.tenant_id}")
    return "sold"


@pack.tool()
async def rent(ctx: CallContext) -> str:
    """Have an effect, by a tool with a limit of its own."""
    mark(f"rent-{ctx.caller.tenant_id}")
    return "rented"


@pack.tool()
async def work(ctx: CallContext, seconds: float) -> str:
    """Take so long."""
    await asyncio.sleep(seconds)
    mark(f"work-{ctx.caller.tenant_id}")
    return "worked"
