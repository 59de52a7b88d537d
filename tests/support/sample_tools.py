"""Tools that remember having run, so that a refusal can prove that nothing did."""

from typing import Annotated, Any

from pydantic import Field

from gatepost import CallContext, Pack
from gatepost_authz.caller import TenantContext

pack = Pack("recorder")
CALLS: list[TenantContext] = []
"""The callers whose calls reached these tools, in this process."""


@pack.tool(read_only=True)
async def record_call(ctx: CallContext) -> str:
    """Record that a caller called."""
    CALLS.append(ctx.caller)
    return "recorded"


@pack.tool(scopes={"files:write"})
async def record_write(ctx: CallContext) -> str:
    """Record that a caller who may write called."""
    CALLS.append(ctx.caller)
    return "written"


@pack.tool(scopes={"files:read"})
async def record_read(ctx: CallContext) -> str:
    """Record that a caller who may read called."""
    CALLS.append(ctx.caller)
    return "read"


@pack.tool(acr_values=("phr",), max_age_s=300)
async def record_strong(ctx: CallContext) -> str:
    """Record that a caller who signed in strongly and lately called."""
    CALLS.append(ctx.caller)
    return "strong"


@pack.tool(read_only=True)
async def record_routed(
    ctx: CallContext,
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
    data: dict[str, Any],
) -> str:
    """Record that a caller called in a region that proxies route by."""
    CALLS.append(ctx.caller)
    return region
