"""Apply what a client sets in its session: the log level and the resources that it watches."""

import msgspec
from msgspec import UNSET

from gatepost.mcp.jsonrpc import INVALID_PARAMS, RATE_LIMITED, JsonRpcError
from gatepost.mcp.request import uri_in
from gatepost.mcp.resources import unknown_document
from gatepost.mcp.server import McpRequest, McpServer
from gatepost.mcp.sessions.channel import EditSession
from gatepost.mcp.subscriptions import MAX_NAMES
from gatepost.storage.sessions import SessionRecord
from gatepost.tools.calls.registry import Unknown
from gatepost.tools.context.client import LEVELS
from gatepost.tools.offers.uri_template import MAX_CHARACTERS


async def set_level(server: McpServer, ask: McpRequest) -> bytes:
    """Set the lowest level that the session receives; return an empty object."""
    level = ask.params.level
    if level is UNSET or level not in LEVELS:
        raise JsonRpcError(INVALID_PARAMS, f"params.level must be one of {', '.join(LEVELS)}")
    if ask.session is not None:
        await server.session_registry.revise(
            ask.caller.tenant_id,
            ask.session,
            lambda record: msgspec.structs.replace(record, log_level=level),
        )
    return b"{}"


MAX_WATCHED_CHARACTERS = 32_768
"""The total length of a session's watched URIs, which are stored as long as the session."""
TOO_MANY_SUBSCRIPTIONS = JsonRpcError(
    RATE_LIMITED,
    f"A session can watch at most {MAX_NAMES} resources, whose URIs together have at most "
    f"{MAX_WATCHED_CHARACTERS} characters",
)


async def subscribe(server: McpServer, ask: McpRequest) -> bytes:
    """
    Tell the session's client from now on when the document changes; return an empty object.

    The caller must be allowed to read the document. Otherwise a caller who guesses a URI would
    learn that the document exists and when it changes.
    """
    uri = _uri(ask)
    await server.registry.prepare(ask.caller)
    try:
        offer = server.registry.offer("document", uri, ask.caller)
    except Unknown:
        redacted_uri = server.runner.redaction.clean(ask.caller.tenant_id, uri)
        raise unknown_document(uri, redacted_uri, ask.revision) from None
    ask.caller.require(offer.scopes)

    def change(record: SessionRecord) -> SessionRecord:
        if uri in record.subscriptions:
            return record
        if len(record.subscriptions) >= MAX_NAMES:
            raise TOO_MANY_SUBSCRIPTIONS
        if sum(map(len, record.subscriptions)) + len(uri) > MAX_WATCHED_CHARACTERS:
            raise TOO_MANY_SUBSCRIPTIONS
        return msgspec.structs.replace(record, subscriptions=(*record.subscriptions, uri))

    return await _revise(server, ask, change)


async def unsubscribe(server: McpServer, ask: McpRequest) -> bytes:
    """Stop watching the document, if it was watched; return an empty object."""
    uri = _uri(ask)

    def change(record: SessionRecord) -> SessionRecord:
        remaining = tuple(subscribed for subscribed in record.subscriptions if subscribed != uri)
        return msgspec.structs.replace(record, subscriptions=remaining)

    return await _revise(server, ask, change)


async def _revise(server: McpServer, ask: McpRequest, change: EditSession) -> bytes:
    if ask.session is not None:
        # An open stream reads the subscriptions only when it is told.
        await server.session_registry.revise(
            ask.caller.tenant_id, ask.session, change, is_repeated=True
        )
    return b"{}"


def _uri(ask: McpRequest) -> str:
    uri = uri_in(ask.params)
    if len(uri) > MAX_CHARACTERS:
        raise unknown_document(uri, "", ask.revision)
    return uri
