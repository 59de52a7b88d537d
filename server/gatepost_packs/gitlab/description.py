"""Read and search GitLab's OpenAPI description: `gitlab_openapi_*`."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, Field

from gatepost import CallContext, Effects, ToolFailure
from gatepost_packs.gitlab.pack import pack
from gatepost_packs.gitlab.settings import SPEC_URL, GitlabSettings
from gatepost_packs.openapi import store
from gatepost_packs.openapi.description.document import ApiDescription
from gatepost_packs.openapi.lookup import described

CACHED_S = 3600.0
CACHE_BYTES = 64_000_000
"""Bytes of descriptions that one process caches, for all tenants together."""
MAX_BYTES = 20_000_000
MAX_SHOWN = 2_000_000
MIN_SHOWN = 4
"""Maximum number of bytes of a UTF-8 character: each page holds at least one character."""
MAX_LISTED = 2_000
ROOT = "/api/v4"
"""The prefix of GitLab's paths, which its documentation leaves out."""
LOAD_S = 180.0
SEARCH_EFFECTS = Effects(read_only=True, idempotent=True, open_world=True)
"""
Octoprox declares that the search reaches no other systems. A stale description is fetched, so here
it does.
"""

SpecUrl = Annotated[str, Field(description="URL to OpenAPI spec")]
Refresh = Annotated[bool, Field(description="Bypass cache and re-fetch")]


class CachedDescription(msgspec.Struct):
    """One description as it was fetched."""

    data: bytes
    fetched_at: float
    document: ApiDescription | None = None
    """The parsed document, made on first use."""


class DescriptionCache:
    """Descriptions by tenant and URL, cached for an hour; tenants do not share entries."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._descriptions: OrderedDict[tuple[str, str], CachedDescription] = OrderedDict()

    def get(self, tenant: str, url: str) -> CachedDescription | None:
        """Return the entry unless it is too old."""
        cached = self._descriptions.get((tenant, url))
        if cached is not None and self._clock() - cached.fetched_at >= CACHED_S:
            del self._descriptions[tenant, url]
            return None
        return cached

    def put(self, tenant: str, url: str, data: bytes) -> CachedDescription:
        """Store it, and drop the least recently used entries beyond the limit."""
        self._descriptions.pop((tenant, url), None)
        cached = self._descriptions[tenant, url] = CachedDescription(data, self._clock())
        while (
            len(self._descriptions) > 1
            and sum(map(_weight, self._descriptions.values())) > CACHE_BYTES
        ):
            self._descriptions.popitem(last=False)
        return cached


def _weight(cached: CachedDescription) -> int:
    return len(cached.data) + (cached.document.weight if cached.document is not None else 0)


CACHE = DescriptionCache()


class DescriptionPart(BaseModel):
    """A part of the description."""

    status_code: int
    offset: int
    total_bytes: int
    truncated: bool
    text: str


class DescribedOperation(BaseModel):
    """One operation."""

    path: str
    method: str
    summary: str


class OperationPage(BaseModel):
    """One page of operations."""

    total: int
    offset: int
    limit: int
    entries: list[DescribedOperation]


@pack.tool(
    title="Read GitLab's OpenAPI description",
    scopes={"gitlab:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=True,
    timeout_s=LOAD_S,
    untrusted="OpenAPI document",
)
async def gitlab_openapi_spec(
    ctx: CallContext,
    spec_url: SpecUrl = SPEC_URL,
    offset: Annotated[int, Field(description="Byte offset for pagination", ge=0)] = 0,
    max_bytes: Annotated[
        int, Field(description="Max bytes to return", ge=MIN_SHOWN, le=MAX_SHOWN)
    ] = 200_000,
    refresh: Refresh = False,
) -> DescriptionPart:
    """
    Return the GitLab OpenAPI YAML specification (chunked for large specs).

    The next chunk is at `offset` + `max_bytes`. A character that stands across the border of two
    chunks is whole in the second, whose `offset` then says where it begins.
    """
    data = (await _cached_description(ctx, spec_url, refresh)).data
    begin, end = _border(data, offset), _border(data, offset + max_bytes)
    try:
        text = data[begin:end].decode()
    except UnicodeDecodeError:
        message = f"The document at {spec_url[:500]} is not UTF-8 text."
        raise ToolFailure("validation", message, field="spec_url") from None
    return DescriptionPart(
        status_code=200,
        offset=begin,
        total_bytes=len(data),
        truncated=end < len(data),
        text=text,
    )


@pack.tool(
    title="List GitLab's API paths",
    scopes={"gitlab:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
    effects=SEARCH_EFFECTS,
    timeout_s=LOAD_S,
    untrusted="OpenAPI document",
)
async def gitlab_openapi_paths(
    ctx: CallContext,
    spec_url: SpecUrl = SPEC_URL,
    filter_text: Annotated[str | None, Field(description="Filter by path/method/summary")] = None,
    limit: Annotated[int, Field(description="Max results to return", ge=1, le=MAX_LISTED)] = 200,
    offset: Annotated[int, Field(description="Pagination offset", ge=0)] = 0,
    refresh: Refresh = False,
) -> OperationPage:
    """List GitLab OpenAPI paths and methods for endpoint discovery."""
    document = await _document(ctx, spec_url, refresh)
    lowered = (filter_text or "").lower()
    fitting = [
        entry
        for entry in document.entries
        if any(lowered in text.lower() for text in (entry.path, entry.method, entry.summary))
    ]
    return OperationPage(
        total=len(fitting),
        offset=offset,
        limit=limit,
        entries=[
            DescribedOperation(path=entry.path, method=entry.method, summary=entry.summary)
            for entry in fitting[offset : offset + limit]
        ],
    )


@pack.tool(
    title="Describe a GitLab API operation",
    scopes={"gitlab:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
    effects=SEARCH_EFFECTS,
    timeout_s=LOAD_S,
    untrusted="OpenAPI document",
)
async def gitlab_openapi_operation(
    ctx: CallContext,
    path: Annotated[str, Field(description="API path (e.g., `/projects/{id}/issues`)")],
    method: Annotated[str, Field(description="HTTP method (GET, POST, etc.)")],
    spec_url: SpecUrl = SPEC_URL,
    refresh: Refresh = False,
) -> dict[str, Any]:
    """Get schema details for a specific GitLab API path and method."""
    document = await _document(ctx, spec_url, refresh)
    if document.entry(path, method) is None and document.entry(ROOT + path, method) is not None:
        path = ROOT + path
    operation = await described(
        document, path, method, api="GitLab's description", shows="gitlab_openapi_paths"
    )
    return dict(operation.source)


async def _cached_description(ctx: CallContext, url: str, refresh: bool) -> CachedDescription:
    # The schema shows the built-in default; the operator's default takes precedence.
    source = ctx.settings(GitlabSettings).spec_url if url == SPEC_URL else url
    tenant = ctx.caller.tenant_id
    cached = None if refresh else CACHE.get(tenant, source)
    if cached is None:
        fetched = await store.fetched(ctx, source, max_bytes=MAX_BYTES)
        cached = CACHE.put(tenant, source, fetched.data)
    return cached


async def _document(ctx: CallContext, url: str, refresh: bool) -> ApiDescription:
    cached = await _cached_description(ctx, url, refresh)
    if cached.document is None:
        cached.document = await store.read(cached.data, field="spec_url")
    return cached.document


def _border(data: bytes, at: int) -> int:
    """Return where the character at byte *at* begins, so that no chunk splits a character."""
    at = min(at, len(data))
    for _ in range(MIN_SHOWN - 1):
        if 0 < at < len(data) and data[at] & 0xC0 == 0x80:
            at -= 1
    return at
