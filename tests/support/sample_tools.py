"""Tools that remember having run, so that a refusal can prove that nothing did."""

from typing import Annotated, Any

from pydantic import Field

from gatepost import CallContext, Pack
from gatepost_authz.caller import TenantContext

pack = Pack("witness")
CALLS: list[TenantContext] = []
"""The callers whose calls reached these tools, in this process."""


@pack.tool(read_only=True)
async def witness(ctx: CallContext) -> str:
    """Remember that somebody called."""
    CALLS.append(ctx.caller)
    return "witnessed"


@pack.tool(scopes={"files:write"})
async def witness_write(ctx: CallContext) -> str:
    """Remember that somebody who may write called."""
    CALLS.append(ctx.caller)
    return "written"


@pack.tool(scopes={"files:read"})
async def witness_read(ctx: CallContext) -> str:
    """Remember that somebody who may read called."""
    CALLS.append(ctx.caller)
    return "read"


@pack.tool(acr_values=("phr",), max_age_s=300)
async def witness_strong(ctx: CallContext) -> str:
    """Remember that somebody who signed in strongly and lately called."""
    CALLS.append(ctx.caller)
    return "strong"


@pack.tool(read_only=True)
async def witness_routed(
    ctx: CallContext,
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
    data: dict[str, Any],
) -> str:
    """Remember that somebody called in a region that proxies route by."""
    CALLS.append(ctx.caller)
    return region
