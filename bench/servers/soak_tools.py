"""Tools of the soak: calls that keep something while they run, and a count of objects."""

import asyncio
import gc
import sys
from collections import Counter
from typing import Any

from gatepost import CallContext, Pack, ToolFailure

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

pack = Pack("soak")


@pack.tool(read_only=True)
async def take(ctx: CallContext, text: str, wait_s: float = 0.0) -> int:
    """Take a text, wait, and answer its length."""
    await asyncio.sleep(wait_s)
    return len(text)


@pack.tool()
async def report(ctx: CallContext, text: str) -> int:
    """Report progress and log messages, faster than they may go out."""
    for step in range(1, 16):
        await ctx.progress(step, 15)
        await ctx.log("info", "working")
    return len(text)


@pack.tool(task_support="optional")
async def compute(ctx: CallContext, text: str) -> int:
    """Become a task that reports."""
    await asyncio.sleep(0)
    await ctx.progress(1, 2)
    return len(text)


@pack.tool()
async def ask(ctx: CallContext, text: str) -> str:
    """Ask for a name."""
    answered = await ctx.ask("Who are you?", FORM)
    return answered.action


@pack.tool(approval=True)
async def sign(ctx: CallContext, text: str) -> int:
    """Need an approval."""
    return len(text)


@pack.tool()
async def stay(ctx: CallContext, text: str) -> str:
    """Report once, and wait until the call is stopped."""
    await ctx.progress(1)
    await asyncio.Event().wait()
    return "never"


@pack.tool()
async def fail(ctx: CallContext, text: str, outcome: str = "") -> str:
    """Fail in one of several ways."""
    await ctx.progress(1)
    if outcome == "failure":
        raise ToolFailure("not_found", "There is none.")
    raise RuntimeError("the tool failed")


@pack.tool(timeout_s=0.05)
async def linger(ctx: CallContext, text: str) -> str:
    """Take longer than the tool may."""
    await asyncio.Event().wait()
    return "never"


@pack.tool()
async def nest(ctx: CallContext, text: str) -> str:
    """Call another tool that reports."""
    outcome = await ctx.call("report", {"text": text})
    return str(outcome.content)


@pack.tool()
def block(ctx: CallContext, text: str) -> int:
    """Run in a thread."""
    return len(text)


@pack.tool(read_only=True)
async def objects(ctx: CallContext) -> dict[str, int]:
    """Count the objects of the server by type, after the garbage was collected."""
    return counted()


def counted() -> dict[str, int]:
    """Return the number of live objects by type, after the garbage was collected."""
    gc.collect()
    gc.collect()
    counts: Counter[str] = Counter()
    for each in gc.get_objects():
        kind: Any = type(each)
        counts[f"{kind.__module__}.{kind.__qualname__}"] += 1
    counts["blocks"] = sys.getallocatedblocks()
    return dict(counts)
