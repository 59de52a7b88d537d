"""Tools whose calls end in every way, and where the records of these tests are kept."""

import asyncio
from pathlib import Path

import pytest

from gatepost import CallContext, Pack, Secret, ToolFailure

AUDITED_TOOLS = "tests.audit.conftest"
pack = Pack("audited")

BEGUN = asyncio.Event()
"""Somebody waits in `linger`; made for the loop of whichever server runs."""


@pack.tool(idempotent=True)
async def write(ctx: CallContext, text: str) -> str:
    """Do something to the world."""
    return f"wrote {len(text)}"


@pack.tool(read_only=True)
async def look(ctx: CallContext) -> str:
    """See how the world is."""
    return "fine"


@pack.tool()
async def refuse(ctx: CallContext, why: str) -> str:
    """Refuse for a reason."""
    raise ToolFailure("denied", f"Not today: {why}")


@pack.tool()
async def crash(ctx: CallContext) -> str:
    """Break."""
    raise RuntimeError("boom")


@pack.tool(timeout_s=0.05)
async def linger(ctx: CallContext) -> str:
    """Take too long."""
    await asyncio.Event().wait()
    return "never"


@pack.tool()
async def unlock(ctx: CallContext, token: Secret, door: str) -> str:
    """Open a door with a secret of one's own."""
    return f"{door} is open: {await ctx.secret(token, field='token', literals=True)}"


@pack.tool(scopes={"files:write"})
async def scoped(ctx: CallContext) -> str:
    """Do what needs a permission."""
    return "done"


@pack.resource("audited://log/{day}")
async def log(ctx: CallContext, day: str) -> str:
    """What was done on a day."""
    return f"nothing on {day}"


@pack.tool()
async def both(ctx: CallContext) -> str:
    """Call another tool."""
    inner = await ctx.call("write", {"text": "from within"})
    return "failed" if inner.failure else "done"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of this test's own, once for each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/records.db"
    found: str = request.getfixturevalue("migrated_postgres")
    return found
