"""List operations, find one by path and method, or suggest similar ones."""

import asyncio
import difflib
from typing import Annotated, Any

from pydantic import BaseModel, Field

from gatepost import CallContext, ToolFailure
from gatepost_packs.openapi import store
from gatepost_packs.openapi.description.document import (
    ApiDescription,
    OperationSummary,
    UnresolvableReference,
)
from gatepost_packs.openapi.description.operation import Operation, read_operation
from gatepost_packs.openapi.pack import pack

SHOWN_SUGGESTIONS = 5
MAX_COMPARED = 2_000
MAX_LIKE = 40
"""Templates that are compared letter by letter; crafted ones take longest."""
LONGEST = 200
MIN_SIMILARITY = 0.7


async def described(
    document: ApiDescription,
    path: str,
    method: str,
    *,
    api: str,
    shows: str = "openapi_list_endpoints",
) -> Operation:
    """
    Return the operation of that path and method; ToolFailure names similar ones and the tool that
    *shows* all.
    """
    entry = document.entry(path, method)
    if entry is None:
        # In a thread: the author of the templates may have made them expensive to compare.
        raise await asyncio.to_thread(_unknown, document, path, method, api, shows)
    try:
        return await asyncio.to_thread(read_operation, document, entry)
    except UnresolvableReference as error:
        message = f"The description of {api} has a reference without a target: {error}."
        raise ToolFailure("not_found", message, field="path") from None


def _unknown(document: ApiDescription, path: str, method: str, api: str, shows: str) -> ToolFailure:
    message = f"There is no {method.upper()[:10]} {path[:200]} in {api}."
    methods = [entry.method for entry in document.entries if entry.path == path]
    if methods:
        message += f" That path has {', '.join(methods)}."
        return ToolFailure("not_found", message, field="method")
    similar = _similar_templates(document.entries, path)
    if similar:
        message += f" Similar paths are: {', '.join(similar)}. Pass them with their placeholders."
    message += f" {shows} lists all."
    return ToolFailure("not_found", message, field="path")


def _similar_templates(entries: tuple[OperationSummary, ...], path: str) -> list[str]:
    """Return the templates that the path fills in, or else similar ones."""
    path = path[:500].partition("?")[0]
    steps = path.split("/")
    templates = list(dict.fromkeys(entry.path for entry in entries))[:MAX_COMPARED]
    filled = [template for template in templates if _fills(steps, template.split("/"))]
    return filled[:SHOWN_SUGGESTIONS] or _similar_paths(path, templates)


def _similar_paths(path: str, templates: list[str]) -> list[str]:
    matcher = difflib.SequenceMatcher(b=path[:LONGEST])
    ranked: list[tuple[float, str]] = []
    for template in templates:
        if len(template) <= LONGEST:
            matcher.set_seq1(template)
            if (
                matcher.real_quick_ratio() >= MIN_SIMILARITY
                and (rank := matcher.quick_ratio()) >= MIN_SIMILARITY
            ):
                ranked.append((rank, template))
    # Compare by set of letters first, so that few templates are compared in full.
    candidates = [template for _, template in sorted(ranked, reverse=True)[:MAX_LIKE]]
    return difflib.get_close_matches(
        path[:LONGEST], candidates, n=SHOWN_SUGGESTIONS, cutoff=MIN_SIMILARITY
    )


def _fills(steps: list[str], template: list[str]) -> bool:
    # Step by step, not as a regular expression, because the template is untrusted.
    return len(steps) == len(template) and all(
        step == variable or ("{" in variable and step)
        for step, variable in zip(steps, template, strict=True)
    )


MAX_LISTED = 1_000


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
    limit: Annotated[int, Field(description="Max results", ge=1, le=MAX_LISTED)] = 50,
    offset: Annotated[int, Field(description="Pagination offset", ge=0)] = 0,
) -> Endpoints:
    """List endpoints from a loaded API with optional filtering."""
    _, document = await store.find_api(ctx, name)
    lowered = (filter or "").lower()
    fitting = [
        entry
        for entry in document.entries
        if lowered in entry.path.lower() and (tag is None or tag in entry.tags)
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
    _, document = await store.find_api(ctx, name)
    operation = await described(document, path, method, api=name)
    return {"path": path, "method": operation.entry.method, **operation.source}
