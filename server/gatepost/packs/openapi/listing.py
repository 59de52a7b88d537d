"""Finds and describes operations: `openapi_list_endpoints` and `openapi_get_operation`."""

import asyncio
import difflib
from typing import Annotated, Any

from pydantic import BaseModel, Field

from gatepost.openapi.document import Document, Entry, Unresolvable
from gatepost.openapi.operation import Operation, read_operation
from gatepost.packs.openapi import shelf
from gatepost.packs.openapi.pack import pack
from gatepost.tools.api import CallContext, ToolFailure

MOST_LISTED = 1_000
SHOWN = 5
MOST_COMPARED = 2_000


class Endpoint(BaseModel):
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
    entries: list[Endpoint]


@pack.tool(
    title="List an API's endpoints",
    scopes={"openapi:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
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
    _, document = await shelf.found(ctx, name)
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
            Endpoint(
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
    _, document = await shelf.found(ctx, name)
    operation = await described(document, path, method, api=name)
    return {"path": path, "method": operation.entry.method, **operation.source}


async def described(document: Document, path: str, method: str, *, api: str) -> Operation:
    """The operation of that path and method; ToolFailure names what comes near."""
    entry = document.entry(path, method)
    if entry is None:
        raise _unknown(document, path, method, api)
    try:
        return await asyncio.to_thread(read_operation, document, entry)
    except Unresolvable as error:
        message = f"The description of {api} leads nowhere at {error}."
        raise ToolFailure("not_found", message, field="path") from None


def _unknown(document: Document, path: str, method: str, api: str) -> ToolFailure:
    message = f"There is no {method.upper()[:10]} {path[:200]} in {api}."
    methods = [entry.method for entry in document.entries if entry.path == path]
    if methods:
        message += f" That path takes {', '.join(methods)}."
        return ToolFailure("not_found", message, field="method")
    near = _near(document.entries, path)
    if near:
        message += f" There is: {', '.join(near)}. Placeholders stay in the path as they are."
    message += " openapi_list_endpoints shows all."
    return ToolFailure("not_found", message, field="path")


def _near(entries: tuple[Entry, ...], path: str) -> list[str]:
    """Templates that the path fills in, else those that read much like it."""
    path = path[:500].partition("?")[0]
    steps = path.split("/")
    templates = list(dict.fromkeys(entry.path for entry in entries))[:MOST_COMPARED]
    filled = [template for template in templates if _fills(steps, template.split("/"))]
    return filled[:SHOWN] or difflib.get_close_matches(path, templates, n=SHOWN, cutoff=0.7)


def _fills(steps: list[str], template: list[str]) -> bool:
    # Step by step, not as a pattern: a template of somebody else's must not become one.
    return len(steps) == len(template) and all(
        step == wanted or ("{" in wanted and step)
        for step, wanted in zip(steps, template, strict=True)
    )
