"""Tools that differ in nothing but the scopes they need, and where servers write."""

from pathlib import Path

import pytest

from gatepost import CallContext, Pack
from tests.support.sample_tools import CALLS

SCOPED_TOOLS = "tests.tenancy.conftest"
pack = Pack("scoped")

NEEDS: dict[str, frozenset[str]] = {
    "open": frozenset(),
    "needs_a": frozenset({"a"}),
    "needs_b": frozenset({"b"}),
    "needs_c": frozenset({"c"}),
    "needs_ab": frozenset({"a", "b"}),
    "needs_abc": frozenset({"a", "b", "c"}),
}


@pack.tool(name="open")
async def no_scope(ctx: CallContext) -> str:
    """Needs no scope."""
    CALLS.append(ctx.caller)
    return "done"


@pack.tool(scopes={"a"})
async def needs_a(ctx: CallContext) -> str:
    """Needs a."""
    CALLS.append(ctx.caller)
    return "done"


@pack.tool(scopes={"b"})
async def needs_b(ctx: CallContext, count: int = 1) -> str:
    """Needs b, and has an argument that can be wrong."""
    CALLS.append(ctx.caller)
    return "done"


@pack.tool(scopes={"c"})
async def needs_c(ctx: CallContext) -> str:
    """Needs c."""
    CALLS.append(ctx.caller)
    return "done"


@pack.tool(scopes={"a", "b"})
async def needs_ab(ctx: CallContext) -> str:
    """Needs a and b."""
    CALLS.append(ctx.caller)
    return "done"


@pack.tool(scopes={"a", "b", "c"}, acr_values=("phr",))
async def needs_abc(ctx: CallContext) -> str:
    """Needs everything, and a strong sign-in."""
    CALLS.append(ctx.caller)
    return "done"


@pytest.fixture(autouse=True, scope="module")
def in_working_directory(working_directory: Path) -> None:
    """Servers keep their state where they are started."""
