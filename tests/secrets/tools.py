"""Tools that use secrets, and tell no more of them than who knows them already can check."""

import hashlib
from typing import Any

from gatepost import CallContext, Pack, Secret

pack = Pack("safe")


def proof(value: str | None) -> str:
    """What shows which value it was, and not the value."""
    return "nothing" if value is None else hashlib.sha256(value.encode()).hexdigest()[:16]


@pack.tool()
async def unlock(ctx: CallContext, token: Secret, literals: bool = True) -> dict[str, Any]:
    """Open the safe."""
    value = await ctx.secret(token, field="token", literals=literals)
    return {"proof": proof(value)}


@pack.tool()
async def blurt(ctx: CallContext, token: Secret) -> str:
    """Tell what the secret is, as no tool should."""
    return f"It is {await ctx.secret(token, field='token')}, you know."


@pack.tool()
async def say(ctx: CallContext, text: str) -> str:
    """Say a text, whoever knows it."""
    return text


@pack.tool()
async def stow(ctx: CallContext, name: str, token: Secret) -> dict[str, Any]:
    """Keep a token for the next time."""
    await ctx.sealed.put(f"safe_{name}", await ctx.secret(token, field="token"))
    return {"kept": name}


@pack.tool()
async def fetch(ctx: CallContext, name: str) -> dict[str, Any]:
    """Use what was kept."""
    return {"proof": proof(await ctx.sealed.get(f"safe_{name}"))}


@pack.tool()
async def discard(ctx: CallContext, name: str) -> dict[str, Any]:
    """Forget what was kept."""
    return {"was": await ctx.sealed.delete(f"safe_{name}")}
