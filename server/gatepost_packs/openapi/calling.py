"""Call operations: `openapi_call`."""

import asyncio
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field

from gatepost import CallContext, OutboundReply, Sending, ToolFailure
from gatepost_packs.openapi import credential, store
from gatepost_packs.openapi.description.api_response import (
    PROMPT_BYTES,
    READ_BYTES,
    shown_body,
    shown_headers,
)
from gatepost_packs.openapi.description.operation import Operation
from gatepost_packs.openapi.description.operation_request import (
    InvalidArguments,
    OperationInput,
    request_body,
    request_headers,
    request_target,
)
from gatepost_packs.openapi.description.servers import NoServerUrl, base_url, operation_base
from gatepost_packs.openapi.lookup import described
from gatepost_packs.openapi.pack import pack

MAX_RESPONSE = 2_000_000
MAX_S = 300
REDIRECTS = 5
ACCEPT = "application/json, */*;q=0.5"
SAFE_METHODS = frozenset({"GET", "HEAD"})


class ApiResponse(BaseModel):
    """The response of the API."""

    status: int
    headers: dict[str, str]
    body: Any
    truncated: bool


class CallTarget(NamedTuple):
    """The target of a call."""

    base: str
    home: str
    """The API's own base URL; an operation may have another."""


def _only_reads(arguments: Any) -> bool:
    return str(arguments.get("method", "")).upper() in SAFE_METHODS


@pack.tool(
    title="Call an API operation",
    scopes={"openapi:call"},
    read_only=False,
    destructive=True,
    idempotent=False,
    open_world=True,
    timeout_s=MAX_S + 20,
    read_only_form=_only_reads,
    untrusted="HTTP API",
)
async def openapi_call(  # noqa: PLR0913  # as many as a page has
    ctx: CallContext,
    name: Annotated[str, Field(description="API name")],
    path: Annotated[str, Field(description="Path with `{param}` placeholders")],
    method: Annotated[str, Field(description="HTTP method")],
    path_params: Annotated[
        dict[str, Any] | None, Field(description="Path parameter values")
    ] = None,
    query_params: Annotated[dict[str, Any] | None, Field(description="Query parameters")] = None,
    headers: Annotated[dict[str, Any] | None, Field(description="Additional headers")] = None,
    body: Annotated[
        Any,
        Field(
            description="Request body; a file of a multipart form is an object with `filename`, "
            "`data_base64` and `content_type`"
        ),
    ] = None,
    timeout_s: Annotated[int, Field(description="Request timeout", ge=1, le=MAX_S)] = 30,
    max_response_bytes: Annotated[
        int, Field(description="Max response size", ge=1, le=MAX_RESPONSE)
    ] = 100_000,
) -> ApiResponse:
    """
    Call an API operation with the loaded OpenAPI spec.

    The API's own refusals (404, 422…) are answers too: look at `status`.
    """
    record, document = await store.find_api(ctx, name)
    operation = await described(document, path, method, api=name)
    call_target = _target(record, document, operation)
    operation_input = OperationInput(
        path=path_params or {}, query=query_params or {}, headers=headers or {}, body=body
    )
    target, options = _request_of(operation, operation_input, record)
    url = call_target.base + target
    auth = await credential.headers(ctx, record.credential, url=url, home=call_target.home)
    options["headers"] = {**options.get("headers", {}), **auth}
    options["timeout_s"] = timeout_s
    options["max_bytes"] = max(READ_BYTES, max_response_bytes)
    options["redirects"] = REDIRECTS if operation.entry.method in SAFE_METHODS else 0
    reply = await ctx.http.send(operation.entry.method, url, **options)
    if len(reply.body) > PROMPT_BYTES:
        return await asyncio.to_thread(_answered, reply, max_response_bytes)
    return _answered(reply, max_response_bytes)


def _target(record: store.ApiRecord, document: Any, operation: Operation) -> CallTarget:
    try:
        home = base_url(document, override=record.base_url, spec_url=record.spec_url)
        if record.base_url:
            # An override of the base URL applies to every operation.
            return CallTarget(home, home)
        server_base = operation_base(
            operation.source.get("servers"), spec_url=record.spec_url or home
        )
    except NoServerUrl as error:
        raise ToolFailure("validation", str(error), field="name") from None
    return CallTarget(server_base or home, home)


def _request_of(
    operation: Operation, operation_input: OperationInput, record: store.ApiRecord
) -> tuple[str, Sending]:
    try:
        headers = request_headers(operation, operation_input)
        stored = record.credential
        if (stored.sealed or stored.reference) and stored.header.lower() in headers:
            message = (
                f"The header {stored.header} carries the API's credential and cannot be given."
            )
            raise InvalidArguments(message, "headers")
        options = request_body(operation, operation_input, headers.get("content-type"))
        target = request_target(operation, operation_input)
    except InvalidArguments as misuse:
        raise ToolFailure("validation", str(misuse), field=misuse.field) from None
    options["headers"] = {"accept": ACCEPT, **headers, **options.get("headers", {})}
    return target, options


def _answered(reply: OutboundReply, max_bytes: int) -> ApiResponse:
    body = shown_body(
        reply.body,
        reply.headers.get("content-type", ""),
        truncated=reply.truncated,
        max_bytes=max_bytes,
    )
    return ApiResponse(
        status=reply.status,
        headers=shown_headers(reply.headers),
        body=body.body,
        truncated=body.cut,
    )
