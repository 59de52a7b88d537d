"""Load APIs: `openapi_load` and `openapi_list_apis`."""

import re
from typing import Annotated

from pydantic import BaseModel, Field

from gatepost import CallContext, Secret, ToolFailure
from gatepost_packs.openapi import credential, store
from gatepost_packs.openapi.description.document import ApiDescription
from gatepost_packs.openapi.description.servers import NoServerUrl, base_url, checked_base
from gatepost_packs.openapi.pack import pack
from gatepost_packs.openapi.settings import OpenapiSettings
from gatepost_packs.text import encoded

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._ -]{0,62}[A-Za-z0-9])?", re.ASCII)
LOAD_S = 180.0


class LoadedApi(BaseModel):
    """One API."""

    name: str
    title: str
    version: str
    endpoint_count: int


class Apis(BaseModel):
    """All loaded APIs."""

    apis: list[LoadedApi]


@pack.tool(
    title="Load an API",
    scopes={"openapi:load"},
    read_only=False,
    destructive=False,
    idempotent=True,
    open_world=True,
    timeout_s=LOAD_S,
    untrusted="OpenAPI document",
)
async def openapi_load(  # noqa: PLR0913  # as many as a page has
    ctx: CallContext,
    name: Annotated[str, Field(description="Unique identifier for this API")],
    spec_url: Annotated[str | None, Field(description="URL to fetch spec from")] = None,
    spec_content: Annotated[str | None, Field(description="Inline spec (YAML or JSON)")] = None,
    auth_header: Annotated[
        Secret | None, Field(description="Auth header value for API calls, or `secret:NAME`")
    ] = None,
    auth_header_name: Annotated[str, Field(description="Header name for auth")] = "Authorization",
    base_url_override: Annotated[
        str | None, Field(description="Override base URL from spec")
    ] = None,
) -> LoadedApi:
    """
    Load an OpenAPI specification and register it for use.

    OpenAPI 3.0 and 3.1 and Swagger 2.0, as YAML or JSON. An API of the same name is replaced. Then
    openapi_list_endpoints finds operations, openapi_get_operation describes one, and openapi_call
    calls it.
    """
    _check_name(name)
    if (spec_url is None) == (spec_content is None):
        message = "Pass the specification as either spec_url or spec_content."
        raise ToolFailure("validation", message, field="spec_url")
    override = _base(base_url_override)
    document, url = await _document(ctx, spec_url, spec_content)
    home = _home(document, override, url) if auth_header is not None else ""
    await ctx.progress(2, 3, "Keeping it")
    record = await store.store_api(
        ctx,
        store.ApiRecord(
            name=name,
            title=document.title or name,
            version=document.version,
            endpoint_count=len(document.entries),
            document="",
            spec_url=url,
            base_url=override,
            credential=await credential.stored_credential(ctx, auth_header_name, auth_header, home),
        ),
        document.data,
    )
    store.CACHE.put(ctx.caller.tenant_id, record.document, document)
    return _loaded(record)


@pack.tool(
    title="List APIs",
    scopes={"openapi:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
    untrusted="OpenAPI document",
)
async def openapi_list_apis(ctx: CallContext) -> Apis:
    """List all loaded APIs."""
    return Apis(apis=[_loaded(record) for record in await store.loaded_apis(ctx)])


async def _document(
    ctx: CallContext, url: str | None, content: str | None
) -> tuple[ApiDescription, str]:
    """Return the description, and the base URL for its relative servers."""
    max_bytes = ctx.settings(OpenapiSettings).document_bytes
    if url is not None:
        await ctx.progress(0, 3, "Fetching the description")
        fetched = await store.fetched(ctx, url, max_bytes=max_bytes)
        field = "spec_url"
    else:
        fetched = store.FetchedDescription(_document_bytes(content or "", max_bytes), "")
        field = "spec_content"
    await ctx.progress(1, 3, "Reading the description")
    return await store.read(fetched.data, field=field), fetched.url


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        message = (
            "`name` must begin and end with a letter or digit and hold only these, spaces, "
            "`.`, `_` and `-`: at most 64 characters."
        )
        raise ToolFailure("validation", message, field="name")


def _loaded(record: store.ApiRecord) -> LoadedApi:
    return LoadedApi(
        name=record.name,
        title=record.title,
        version=record.version,
        endpoint_count=record.endpoint_count,
    )


def _base(override: str | None) -> str:
    if override is None:
        return ""
    try:
        return checked_base(override)
    except NoServerUrl as error:
        raise ToolFailure("validation", str(error), field="base_url_override") from None


def _home(document: ApiDescription, override: str, spec_url: str) -> str:
    """Return the URL that calls and their credential would go to."""
    try:
        return base_url(document, override=override, spec_url=spec_url)
    except NoServerUrl as error:
        raise ToolFailure("validation", str(error), field="base_url_override") from None


def _document_bytes(text: str, max_bytes: int) -> bytes:
    data = encoded(text, "spec_content")
    if len(data) > max_bytes:
        message = f"The specification has {len(data)} bytes; at most {max_bytes} are allowed."
        raise ToolFailure("validation", message, field="spec_content")
    return data
