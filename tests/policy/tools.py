"""Tools of servers in other processes: what they did leaves a line in a file of their folder."""

import asyncio
import time
from pathlib import Path
from threading import Event

from gatepost import CallContext, Pack

effects_pack = Pack("effects")

EFFECTS, GO = Path("effects"), Path("go")
LOOK_EVERY_S = 0.02


def _act(what: str) -> str:
    with EFFECTS.open("a", encoding="utf-8") as effects:
        effects.write(f"{what}\n")
    while not GO.exists():
        Event().wait(LOOK_EVERY_S)
    return f"{what} {EFFECTS.read_text(encoding='utf-8').split().count(what)}"


@effects_pack.tool()
def act(ctx: CallContext, what: str) -> str:
    """Have an effect, and wait until somebody says go."""
    return _act(what)


@effects_pack.tool(idempotent=True)
def put(ctx: CallContext, what: str) -> str:
    """Have an effect that is the same twice, and wait until somebody says go."""
    return _act(what)


shop = Pack("shop")


def mark_time(word: str) -> None:
    """Leave one line in the folder of the servers; appending is atomic for lines this short."""
    with open("marks", "a", encoding="utf-8") as file:  # as short as it can be
        file.write(f"{word} {time.time():.6f}\n")


@shop.tool()
async def sell(ctx: CallContext) -> str:
    """Have an effect, at once."""
    mark_time(f"sell-{ctx.caller.tenant_id}")
    return "sold"


@shop.tool()
async def rent(ctx: CallContext) -> str:
    """Have an effect, by a tool with a limit of its own."""
    mark_time(f"rent-{ctx.caller.tenant_id}")
    return "rented"


@shop.tool()
async def work(ctx: CallContext, seconds: float) -> str:
    """Take so long."""
    await asyncio.sleep(seconds)
    mark_time(f"work-{ctx.caller.tenant_id}")
    return "worked"


bank = Pack("bank")


def mark_payment(to: str, amount: int) -> None:
    with Path("marks").open("a", encoding="utf-8") as file:
        file.write(f"{to} {amount}\n")


@bank.tool(approval=True, destructive=True)
def pay(ctx: CallContext, to: str, amount: int = 1) -> str:
    """Pay somebody."""
    mark_payment(to, amount)
    return f"paid {to} {amount}"


@bank.tool(approval=True, destructive=True)
async def wire(ctx: CallContext, to: str, amount: int = 1) -> str:
    """Pay somebody, by a bank that never answers."""
    mark_payment(to, amount)
    await asyncio.Event().wait()
    return f"paid {to} {amount}"


@bank.tool(read_only=True)
async def balance(ctx: CallContext) -> str:
    """Say what is left."""
    return "all of it"
