"""`resources/subscribe` and `resources/unsubscribe`, as the older revisions watch documents."""

import msgspec

from gatepost.mcp.documents import unknown_document
from gatepost.mcp.jsonrpc import RATE_LIMITED, Refused
from gatepost.mcp.params import uri_in
from gatepost.mcp.room import Edit
from gatepost.mcp.server import Ask, Server
from gatepost.mcp.subscriptions import MOST_NAMES
from gatepost.stores.api import SessionRecord
from gatepost.tools.registry import Unknown
from gatepost.tools.template import MOST_CHARACTERS

MOST_WATCHED_CHARACTERS = 32_768
"""Of all URIs that one session watches: they are kept for as long as it could live."""
FULL = Refused(
    RATE_LIMITED,
    f"A session watches {MOST_NAMES} resources at most, whose URIs together have no more than "
    f"{MOST_WATCHED_CHARACTERS} characters",
)


async def subscribe(server: Server, ask: Ask) -> bytes:
    """
    Tell the session's client from now on when the document changes; an empty object.

    Only of documents that this caller may read: else whoever guesses a URI would learn that it
    exists, and when somebody works on it.
    """
    uri = _uri(ask)
    try:
        offer = server.registry.offer("document", uri, ask.caller)
    except Unknown:
        told = server.runner.redaction.clean(ask.caller.tenant_id, uri)
        raise unknown_document(uri, told, ask.revision) from None
    ask.caller.require(offer.scopes)

    def change(record: SessionRecord) -> SessionRecord:
        if uri in record.subscriptions:
            return record
        if len(record.subscriptions) >= MOST_NAMES:
            raise FULL
        if sum(map(len, record.subscriptions)) + len(uri) > MOST_WATCHED_CHARACTERS:
            raise FULL
        return msgspec.structs.replace(record, subscriptions=(*record.subscriptions, uri))

    return await _revise(server, ask, change)


async def unsubscribe(server: Server, ask: Ask) -> bytes:
    """Tell nothing more of the document, whether it was watched or not; an empty object."""
    uri = _uri(ask)

    def change(record: SessionRecord) -> SessionRecord:
        kept = tuple(one for one in record.subscriptions if one != uri)
        return msgspec.structs.replace(record, subscriptions=kept)

    return await _revise(server, ask, change)


async def _revise(server: Server, ask: Ask, change: Edit) -> bytes:
    if ask.session is not None:
        await server.register.revise(ask.caller.tenant_id, ask.session, change)
    return b"{}"


def _uri(ask: Ask) -> str:
    uri = uri_in(ask.params)
    if len(uri) > MOST_CHARACTERS:
        raise unknown_document(uri, "", ask.revision)
    return uri
