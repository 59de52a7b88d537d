"""List resources, and read them through the runner."""

import logging
from collections.abc import Mapping
from heapq import nsmallest
from typing import Any

import msgspec

from gatepost.mcp.jsonrpc import INVALID_PARAMS, RESOURCE_NOT_FOUND, JsonRpcError
from gatepost.mcp.request import uri_in
from gatepost.mcp.responses import completed, failed, rate_limited
from gatepost.mcp.revisions import MODERN
from gatepost.mcp.round_trips import is_retry
from gatepost.mcp.server import McpRequest, McpServer, counted
from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.authoring.resource import Read
from gatepost.tools.calls.registry import Unknown
from gatepost.tools.context.client import MissingCapability, ProtocolError
from gatepost.tools.offers.offer_kinds import Lister, ResourceOffer, Template
from gatepost.tools.offers.uri_template import MAX_CHARACTERS
from gatepost_authz.errors import AuthError

log = logging.getLogger(__name__)

_encode = msgspec.json.encode


@counted
async def list_documents(server: McpServer, ask: McpRequest) -> bytes:
    """Answer `resources/list` with the fixed resources and those that listers return."""
    await server.registry.prepare(ask.caller)
    listers = server.registry.visible(ask.caller).listers
    # A lister that needs more scopes than the caller holds is skipped: a challenge would replace
    # the whole list. Reading one of its resources leads to the challenge.
    usable = [lister for lister in listers if lister.scopes <= ask.caller.scopes]
    if not usable:
        await server.count(ask.caller)
        await server.registry.prepare(ask.caller)
        return await server.listing.page("resources", ask.caller, ask.params, ask.revision)
    await server.listing.prepare("resources", ask.caller, ask.revision)
    await server.registry.prepare(ask.caller)
    last = server.listing.last_uri(ask.caller, ask.params, ask.revision)
    entries: dict[str, Mapping[str, Any]] = {}
    for lister in usable:
        for entry in await _entries(server, ask, lister):
            # Of several entries of one URI, the first is listed.
            if (uri := entry["uri"]) > last:
                entries.setdefault(uri, entry)
        # Only those of the page: to sort those of all listers would delay other requests.
        entries = {uri: entries[uri] for uri in nsmallest(server.listing.page_size + 1, entries)}
    await server.registry.prepare(ask.caller)
    max_bytes = server.runner.max_result_bytes
    return server.listing.merged(ask.caller, ask.params, ask.revision, entries, max_bytes)


async def list_templates(server: McpServer, ask: McpRequest) -> bytes:
    """Answer `resources/templates/list`."""
    await server.registry.prepare(ask.caller)
    return await server.listing.page("resourceTemplates", ask.caller, ask.params, ask.revision)


@counted
async def read_document(server: McpServer, ask: McpRequest) -> bytes:
    """Answer `resources/read`."""
    uri = uri_in(ask.params)
    call = ask.call("document", uri, _encode(Read(uri)), ask.client)
    try:
        outcome = await server.runner.run(call)
    except Unknown as unknown:
        raise unknown_document(uri, unknown.name, ask.revision).counted() from None
    if outcome.failure is not None:
        redacted_uri = server.runner.redaction.clean(ask.caller.tenant_id, uri)
        if outcome.failure.kind == "not_found":
            raise unknown_document(uri, redacted_uri, ask.revision).counted()
        raise failed(outcome.failure, uri=redacted_uri)
    body = b'"contents":' + _encode(outcome.content)
    return completed(
        body,
        ask.revision,
        server.meta,
        ttl_ms=_ttl_ms(server, ask, uri),
        source=outcome.untrusted,
    )


def unknown_document(uri: str, redacted_uri: str, revision: str) -> JsonRpcError:
    """
    Return the refusal of a resource; it is the same if the caller cannot reach the resource.

    *redacted_uri* is the URI after redaction.
    """
    code = INVALID_PARAMS if revision == MODERN else RESOURCE_NOT_FOUND
    # Longer URIs are never looked up, so they are not repeated either.
    data = {"uri": redacted_uri} if len(uri) <= MAX_CHARACTERS else None
    return JsonRpcError(code, "Unknown resource", data=data)


async def _entries(
    server: McpServer, ask: McpRequest, lister: Lister
) -> tuple[Mapping[str, Any], ...]:
    """Return the entries of one lister; none if it fails, so that the others are still listed."""
    try:
        outcome = await server.runner.run(ask.call("listing", lister.key, b"{}"))
    except (AuthError, MissingCapability):
        return ()
    except ProtocolError:
        reason = "protocol_error"
    else:
        if outcome.failure is None:
            return outcome.content
        if outcome.failure.kind == "rate_limit":
            raise rate_limited(outcome.failure)
        reason = outcome.failure.kind
    log.warning(
        "list_incomplete",
        extra={"request_id": ask.request_id, "offer": lister.key, "reason": reason},
    )
    return ()


def _ttl_ms(server: McpServer, ask: McpRequest, uri: str) -> int:
    """Return how long a client may cache the content: 0 after requests for input (C-04)."""
    if is_retry(ask.params):
        return 0
    try:
        offer = server.registry.offer("document", uri, ask.caller)
    except (Unknown, StoreUnavailable):
        return 0  # the tenant's offers have changed during the call
    return int(offer.ttl_s * 1000) if isinstance(offer, ResourceOffer | Template) else 0
