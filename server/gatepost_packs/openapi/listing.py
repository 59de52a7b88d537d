"""Finds and describes operations: `openapi_list_endpoints` and `openapi_get_operation`."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from gatepost import CallContext
from gatepost_packs.openapi import store
from gatepost_packs.openapi.lookup import described
from gatepost_packs.openapi.pack import pack

MOST_LISTED = 1_000


class ListedOperation(BaseModel):
    """One operation."""

    path: str
    method: str
    summary: str
    tags: list[str]


class Endpoints(BaseModel):
    """One page of operations."""

    total: int
    offset: int
    limit: int
    entries: list[ListedOperation]


@pack.tool(
    title="List an API's endpoints",
    scopes={"openapi:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
    untrusted="OpenAPI document",
)
async def openapi_list_endpoints(
    ctx: CallContext,
    name: Annotated[str, Field(description="API name")],
    filter: Annotated[
        str | None, Field(description="Filter by path substring (case-insensitive)")
    ] = None,
    tag: Annotated[str | None, Field(description="Filter by OpenAPI tag")] = None,
    limit: Annotated[int, Field(description="Max results", ge=1, le=MOST_LISTED)] = 50,
    offset: Annotated[int, Field(description="Pagination offset", ge=0)] = 0,
) -> Endpoints:
    """List endpoints from a loaded API with optional filtering."""
    _, document = await store.found(ctx, name)
    wanted = (filter or "").lower()
    fitting = [
        entry
        for entry in document.entries
        if wanted in entry.path.lower() and (tag is None or tag in entry.tags)
    ]
    return Endpoints(
        total=len(fitting),
        offset=offset,
        limit=limit,
        entries=[
            ListedOperation(
                path=entry.path,
                method=entry.method,
                summary=entry.summary,
                tags=list(entry.tags),
            )
            for entry in fitting[offset : offset + limit]
        ],
    )


@pack.tool(
    title="Describe an API operation",
    scopes={"openapi:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
    untrusted="OpenAPI document",
)
async def openapi_get_operation(
    ctx: CallContext,
    name: Annotated[str, Field(description="API name")],
    path: Annotated[str, Field(description="API path, with its `{param}` placeholders")],
    method: Annotated[str, Field(description="HTTP method")],
) -> dict[str, Any]:
    """
    Get detailed information about a specific API operation with resolved `$ref` pointers.

    Where something contains itself, `x-circular-ref` stands in the place of the repetition.
    """
    _, document = await store.found(ctx, name)
    operation = await described(document, path, method, api=name)
    return {"path": path, "method": operation.entry.method, **operation.source}
