"""Tools that leave marks where they run, so that a test can count what really happened."""

from pathlib import Path

from gatepost import CallContext, Pack

pack = Pack("bank")


@pack.tool(approval=True, destructive=True)
def pay(ctx: CallContext, to: str, amount: int = 1) -> str:
    """Pay somebody."""
    with Path("marks").open("a", encoding="utf-8") as file:
        file.write(f"{to} {amount}\n")
    return f"paid {to} {amount}"


@pack.tool(read_only=True)
async def balance(ctx: CallContext) -> str:
    """Say what is left."""
    return "all of it"
