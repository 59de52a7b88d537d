"""Decide which era serves a request: the dispatch table of requirements DE-01 to DE-15."""

from collections.abc import Set

from msgspec import UNSET
from starlette.types import Receive, Scope, Send

from gatepost.http.scope import HEADERS_BY_NAME, REQUEST_ID
from gatepost.mcp.event_stream import EventStream
from gatepost.mcp.jsonrpc import (
    HEADER_MISMATCH,
    INVALID_REQUEST,
    TENANT_SUSPENDED,
    IncomingMessage,
    JsonRpcError,
)
from gatepost.mcp.methods import INITIALIZE
from gatepost.mcp.request import (
    NO_META,
    NO_PARAMS,
    Exchange,
    Headers,
    Params,
    is_doubled,
    mismatch,
    no_meta,
    unserved,
    version_in,
)
from gatepost.mcp.responses import ACCEPTED, ExchangeResponse, Replies
from gatepost.mcp.revisions import MessageKind, RequestHandling, decide, is_modern
from gatepost.mcp.server import McpServer
from gatepost.mcp.sessions.requests import (
    BATCH_REFUSED,
    SESSION_HEADER,
    SESSION_ID_REQUIRED,
    SESSION_NOT_FOUND,
    UNEXPECTED_RESPONSE,
    SessionEndpoint,
)
from gatepost.mcp.sessions.sessionless import Sessionless
from gatepost.storage.errors import StoreUnavailable
from gatepost_authz.middleware import CALLER

STREAM_REFUSED = JsonRpcError(TENANT_SUSPENDED, "This tenant is suspended", legacy_status=400)
NOT_ALLOWED = JsonRpcError(
    INVALID_REQUEST,
    "This revision has POST only",
    legacy_status=405,
    headers=((b"allow", b"POST"),),
)
METHOD_NOT_ALLOWED = JsonRpcError(
    INVALID_REQUEST,
    "Only POST, GET and DELETE are served here",
    legacy_status=405,
    headers=((b"allow", b"GET, POST, DELETE"),),
)
LEGACY_REFUSALS = {
    RequestHandling.NO_SESSION: SESSION_ID_REQUIRED,
    RequestHandling.SESSION: SESSION_NOT_FOUND,
    RequestHandling.LISTEN: SESSION_NOT_FOUND,
    RequestHandling.END: SESSION_NOT_FOUND,
    RequestHandling.BATCH: SESSION_NOT_FOUND,
    RequestHandling.RESPONSE: SESSION_NOT_FOUND,
    RequestHandling.NO_BATCH: BATCH_REFUSED,
    RequestHandling.NO_RESPONSE: UNEXPECTED_RESPONSE,
}
REPEATED_HEADER = JsonRpcError(HEADER_MISMATCH, "A routing header is sent twice", legacy_status=400)


class Dispatch:
    """
    Serves everything but requests of the modern era, as the dispatch table says.

    The table is `revisions.decide`. A request of an older revision goes to its session or is served
    alone. A request that no era serves is refused.
    """

    def __init__(
        self,
        server: McpServer,
        *,
        modern: Replies,
        legacy: Replies,
        sessions: SessionEndpoint,
        suspended: Set[str],
    ) -> None:
        self._server = server
        self._modern = modern
        self._legacy = legacy
        self._sessions = sessions
        self._sessionless = Sessionless(server, legacy)
        self._suspended = suspended

    async def other_verb(
        self, scope: Scope, receive: Receive, send: Send
    ) -> ExchangeResponse | EventStream:
        """Serve GET and DELETE, which only sessions have (DE-12, DE-13)."""
        await self._server.count(scope[CALLER])
        headers: Headers = scope.get(HEADERS_BY_NAME) or dict(scope["headers"])
        version, session = version_in(headers), SESSION_HEADER in headers
        ruling = decide(scope["method"], header=version, session=session)
        if ruling is RequestHandling.NOT_ALLOWED:
            modern_one = version is not None and is_modern(version)
            return self._legacy.refused(None, NOT_ALLOWED if modern_one else METHOD_NOT_ALLOWED)
        if len(headers) != len(scope["headers"]) and is_doubled(scope["headers"]):
            return self._legacy.refused(None, REPEATED_HEADER)
        path, request_id = scope["path"], scope.get(REQUEST_ID, "")
        exchange = Exchange(scope[CALLER], path, request_id, headers, receive, send, version)
        if exchange.caller.tenant_id in self._suspended:
            return self._legacy.refused(None, STREAM_REFUSED)
        channel = await self._sessions.find(exchange) if session else None
        if channel is None:
            return self._legacy.refused(None, LEGACY_REFUSALS[ruling])
        if ruling is RequestHandling.END:
            return await self._sessions.end(exchange, channel)
        return await self._sessions.listen(exchange, channel)

    async def request(
        self,
        exchange: Exchange,
        message: IncomingMessage,
        identity: bytes,
        params: Params,
        problem: JsonRpcError | None,
    ) -> ExchangeResponse | EventStream | None:
        """Serve a request as the table says."""
        version = None if params.meta is UNSET else params.meta.version
        header = exchange.version
        ruling = decide(
            "POST",
            MessageKind.REQUEST,
            header=header,
            body=None if version is UNSET else version,
            session=SESSION_HEADER in exchange.headers,
            handshake=message.method == INITIALIZE,
        )
        try:
            if ruling in (RequestHandling.SESSION, RequestHandling.SESSION_OR_UNSERVED):
                channel = await self._sessions.find(exchange)
                if channel is not None:
                    return await self._sessions.request(exchange, message, identity, channel)
            if ruling is RequestHandling.WITHOUT_SESSION:
                return await self._sessionless.request(exchange, message, identity, params, problem)
            await self._server.count(exchange.caller)
            if ruling is RequestHandling.HANDSHAKE:
                return await self._sessions.initialize(exchange, message, identity)
        except StoreUnavailable as outage:
            return self._legacy.unavailable(exchange.request_id, identity, outage)
        except JsonRpcError as limited:
            return self._legacy.refused(identity, limited)
        return self._refuse(ruling, exchange.headers, identity, params)

    async def notification(
        self, exchange: Exchange, message: IncomingMessage, params: Params
    ) -> ExchangeResponse:
        """Take a notification, which has no answer."""
        self._server.count_message(exchange.caller)
        version = None if params.meta is UNSET else params.meta.version
        ruling = decide(
            "POST",
            MessageKind.NOTIFICATION,
            header=exchange.version,
            body=None if version is UNSET else version,
            session=SESSION_HEADER in exchange.headers,
        )
        if ruling is RequestHandling.DROP:
            return ACCEPTED
        if ruling is RequestHandling.SESSION and (channel := await self._sessions.find(exchange)):
            return await self._sessions.notify(exchange, message, channel)
        return self._refuse(ruling, exchange.headers, None, params)

    async def response(self, exchange: Exchange, message: IncomingMessage) -> ExchangeResponse:
        """Accept a client's answer to a request that any process sent to its session."""
        self._server.count_message(exchange.caller)
        headers = exchange.headers
        session = SESSION_HEADER in headers
        ruling = decide("POST", MessageKind.RESPONSE, header=exchange.version, session=session)
        if ruling is RequestHandling.RESPONSE and (channel := await self._sessions.find(exchange)):
            return await self._sessions.respond(message, channel)
        return self._refuse(ruling, headers, None, NO_PARAMS)

    async def batch(self, exchange: Exchange, batch: list[bytes]) -> ExchangeResponse:
        """Serve a batch, alone or in its session."""
        headers = exchange.headers
        session_named = SESSION_HEADER in headers
        ruling = decide("POST", MessageKind.BATCH, header=exchange.version, session=session_named)
        if ruling is RequestHandling.BATCH_WITHOUT_SESSION:
            return await self._sessionless.batch(exchange, batch)
        if ruling is RequestHandling.BATCH and (channel := await self._sessions.find(exchange)):
            return await self._sessions.batch(exchange, batch, channel)
        await self._server.count(exchange.caller)
        return self._refuse(ruling, headers, None, NO_PARAMS)

    def _refuse(
        self, ruling: RequestHandling, headers: Headers, identity: bytes | None, params: Params
    ) -> ExchangeResponse:
        """Return the error for a method that is unknown, or that needs a session."""
        if ruling in LEGACY_REFUSALS:
            return self._legacy.refused(identity, LEGACY_REFUSALS[ruling])
        meta = NO_META if params.meta is UNSET else params.meta
        version = version_in(headers) if meta.version is UNSET else meta.version
        if ruling is RequestHandling.NO_META:
            refusal = no_meta(meta)
        elif ruling is RequestHandling.MISMATCH:
            refusal = mismatch("MCP-Protocol-Version", "the version in params._meta")
        else:
            refusal = unserved(version or "")
        return self._modern.refused(identity, refusal)
