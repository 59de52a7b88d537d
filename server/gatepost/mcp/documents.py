"""The resources of the protocol: listed, and read through the runner."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gatepost.mcp.definition import known
from gatepost.mcp.era import MODERN
from gatepost.mcp.jsonrpc import INVALID_PARAMS, RESOURCE_NOT_FOUND, Refused
from gatepost.mcp.params import uri_in
from gatepost.mcp.project import completed, failed, rate_limited
from gatepost.mcp.roundtrips import is_retry
from gatepost.mcp.server import Ask, Server
from gatepost.tools.api import Call
from gatepost.tools.client import MissingCapability, ProtocolError
from gatepost.tools.document import Read
from gatepost.tools.offer import Document, Lister, Template
from gatepost.tools.registry import Unknown
from gatepost.tools.template import MOST_CHARACTERS
from gatepost_authz.errors import AuthError

_encode = msgspec.json.encode


async def list_documents(server: Server, ask: Ask) -> bytes:
    """`resources/list`: those that are always there, and those that templates' listers name."""
    listers = server.registry.visible(ask.caller).listers
    # A lister that needs more than the caller holds is left out: a challenge would take away the
    # whole list, and reading one of its resources brings the challenge.
    usable = [lister for lister in listers if lister.scopes <= ask.caller.scopes]
    if not usable:
        return server.listing.page("resources", ask.caller, ask.params, ask.revision)
    entries: dict[str, Mapping[str, Any]] = {}
    for lister in usable:
        for entry in await _entries(server, ask, lister):
            entries.setdefault(entry["uri"], known(entry, ask.revision))
    return server.listing.merged(ask.caller, ask.params, ask.revision, entries)


async def list_templates(server: Server, ask: Ask) -> bytes:
    """`resources/templates/list`."""
    return server.listing.page("resourceTemplates", ask.caller, ask.params, ask.revision)


async def read_document(server: Server, ask: Ask) -> bytes:
    """`resources/read`."""
    uri = uri_in(ask.params)
    call = Call(
        caller=ask.caller,
        name=uri,
        arguments=_encode(Read(uri)),
        request_id=ask.request_id,
        kind="document",
        client=ask.client,
        peer=ask.peer,
    )
    try:
        outcome = await server.runner.run(call)
    except Unknown as unknown:
        raise unknown_document(uri, unknown.name, ask.revision) from None
    if outcome.failure is not None:
        told = server.runner.redaction.clean(ask.caller.tenant_id, uri)
        if outcome.failure.kind == "not_found":
            raise unknown_document(uri, told, ask.revision)
        raise failed(outcome.failure, uri=told)
    body = b'"contents":' + _encode(outcome.content)
    return completed(body, ask.revision, server.tail, ttl_ms=_ttl_ms(server, ask, uri))


def unknown_document(uri: str, told: str, revision: str) -> Refused:
    """
    The same words for one that is not there and one that this caller cannot reach; *told* is its
    URI without secrets.
    """
    code = INVALID_PARAMS if revision == MODERN else RESOURCE_NOT_FOUND
    # Nothing longer is ever looked up, so it need not be repeated either.
    data = {"uri": told} if len(uri) <= MOST_CHARACTERS else None
    return Refused(code, "Unknown resource", data=data)


async def _entries(server: Server, ask: Ask, lister: Lister) -> tuple[Mapping[str, Any], ...]:
    """What one lister names; nothing when it cannot, so that the others are still listed."""
    call = Call(
        caller=ask.caller,
        name=lister.key,
        arguments=b"{}",
        request_id=ask.request_id,
        kind="listing",
        peer=ask.peer,
    )
    try:
        outcome = await server.runner.run(call)
    except (AuthError, MissingCapability, ProtocolError):
        return ()
    if outcome.failure is None:
        return outcome.content
    if outcome.failure.kind == "rate_limit":
        raise rate_limited(outcome.failure)
    return ()


def _ttl_ms(server: Server, ask: Ask, uri: str) -> int:
    """How long what was read may be kept; what was answered in rounds is nobody else's (C-04)."""
    if is_retry(ask.params):
        return 0
    offer = server.registry.offer("document", uri, ask.caller)
    return int(offer.ttl_s * 1000) if isinstance(offer, Document | Template) else 0
