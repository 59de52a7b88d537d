"""Tools that leave marks where they run, so that a test can count what really happened."""

import asyncio
from pathlib import Path

from gatepost import CallContext, Pack

pack = Pack("bank")


def _mark(to: str, amount: int) -> None:
    with Path("marks").open("a", encoding="utf-8") as file:
        file.write(f"{to} {amount}\n")


@pack.tool(approval=True, destructive=True)
def pay(ctx: CallContext, to: str, amount: int = 1) -> str:
    """Pay somebody."""
    _mark(to, amount)
    return f"paid {to} {amount}"


@pack.tool(approval=True, destructive=True)
async def wire(ctx: CallContext, to: str, amount: int = 1) -> str:
    """Pay somebody, by a bank that never answers."""
    _mark(to, amount)
    await asyncio.Event().wait()
    return f"paid {to} {amount}"


@pack.tool(read_only=True)
async def balance(ctx: CallContext) -> str:
    """Say what is left."""
    return "all of it"
