"""The MCP endpoint: reads a request, serves those of the modern era, and sends the answer."""

from collections.abc import Awaitable, Sequence, Set

import msgspec
from msgspec import UNSET
from starlette.types import Receive, Scope, Send

from gatepost.documents.json_shape import MAX_VALUES
from gatepost.execution.cpu_thread import TooManyWaiting
from gatepost.http.body import ClientDisconnected, UntilDisconnect
from gatepost.http.scope import REQUEST_ID, RPC, WHOLE_BODY
from gatepost.mcp.body import read_body, too_much
from gatepost.mcp.dispatch import REPEATED_HEADER, Dispatch
from gatepost.mcp.event_stream import EventStream, SseResponse, reads_events, release
from gatepost.mcp.jsonrpc import METHOD_NOT_FOUND, IncomingMessage, JsonRpcError, is_batch, read
from gatepost.mcp.methods import Method, served
from gatepost.mcp.parameter_headers import check_parameter_headers
from gatepost.mcp.request import (
    NO_KEYS,
    NO_META,
    Exchange,
    Meta,
    Params,
    check_mirrors,
    exchange_of,
    key_and_correlation,
    no_meta,
    read_params,
    read_whole,
)
from gatepost.mcp.request_wrappers import Serve, WrapRequest
from gatepost.mcp.responses import SUSPENDED_ERROR, ExchangeResponse, Replies, rate_limited
from gatepost.mcp.revisions import MODERN
from gatepost.mcp.round_trips import RoundTripClient
from gatepost.mcp.server import McpRequest, McpServer
from gatepost.mcp.sessions.client import PendingClientRequests
from gatepost.mcp.sessions.requests import SessionEndpoint
from gatepost.mcp.sessions.session import McpSessions
from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.context.client import NO_CLIENT
from gatepost_authz.caller import TenantContext
from gatepost_authz.challenge import Challenge
from gatepost_authz.errors import RevokedToken
from gatepost_authz.middleware import CALLER, OneStepSend, send_response
from gatepost_authz.protected_resource import Resource

JSON_BODY = (b"content-type", b"application/json")
JSON_CONTENT_TYPE: tuple[tuple[bytes, bytes], ...] = (JSON_BODY,)


class EndpointLimits(msgspec.Struct, frozen=True):
    """The limits of one request before it is understood."""

    max_body_bytes: int = 4_194_304
    body_timeout_s: float = 10.0
    client_requests_per_caller: int = 20
    """Maximum number of requests to its client that may wait for an answer at once."""
    client_request_timeout_s: float = 300.0
    max_body_values: int = MAX_VALUES


DEFAULT_LIMITS = EndpointLimits()


class Endpoint:
    """
    The MCP endpoint, an ASGI app behind the gate.

    The scope already contains the caller. *mirrors* says whether headers that repeat members are
    compared. The wrappers in *wrappers* enclose each request, the last one outermost.
    """

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        server: McpServer,
        *,
        challenge: Challenge,
        resource: Resource,
        sessions: McpSessions,
        suspended: Set[str] = frozenset(),
        limits: EndpointLimits = DEFAULT_LIMITS,
        mirrors: bool = True,
        wrappers: Sequence[WrapRequest] = (),
    ) -> None:
        self._suspended = suspended
        self._server = server
        self._limits = limits
        # A value takes two bytes, so that shorter bodies cannot hold too many.
        self._short_bytes = min(limits.max_body_bytes, 2 * limits.max_body_values)
        self._modern = Replies(challenge, resource, modern=True)
        legacy = Replies(challenge, resource, modern=False)
        pending = PendingClientRequests(
            server.keyring,
            max_per_caller=limits.client_requests_per_caller,
            limit_s=limits.client_request_timeout_s,
            stopping=server.stopping,
        )
        self._handshake = SessionEndpoint(server, sessions, legacy, pending)
        self._dispatch = Dispatch(
            server,
            modern=self._modern,
            legacy=legacy,
            sessions=self._handshake,
            suspended=suspended,
        )
        serve: Serve = Stateless(server, self._modern, mirrors=mirrors).serve
        serve_other: Serve = self._dispatch.request
        for wrap in wrappers:
            serve, serve_other = wrap(serve), wrap(serve_other)
        self._modern_request, self._other_request = serve, serve_other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["method"] != "POST":
                answer: ExchangeResponse | EventStream | None = await self._dispatch.other_verb(
                    scope, receive, send
                )
            else:
                exchange = exchange_of(scope, receive, send)
                body: bytes | None = scope.get(WHOLE_BODY)
                refusal = None
                if body is None or len(body) > self._short_bytes:
                    body, refusal = await self._read_long(exchange, body)
                answer = await self._answer(scope, exchange, body, refusal)
        except JsonRpcError as refusal:
            # Refused before a message was understood: no era, no id.
            answer = await self._refused(scope[CALLER], None, refusal)
        except StoreUnavailable as outage:
            answer = self._modern.unavailable(scope.get(REQUEST_ID, ""), None, outage)
        except RevokedToken as revoked:
            answer = self._modern.challenged(scope["path"], None, revoked)
        except ClientDisconnected:
            answer = None
        # Nearly all answers are an ExchangeResponse; testing for the other type costs five times as
        # much.
        if not isinstance(answer, ExchangeResponse):
            if answer is not None:
                release(scope)
                await answer.run(receive, send)
            return
        body = answer.body
        described = JSON_CONTENT_TYPE if body else ()
        fields = (*answer.headers, *described) if answer.headers else described
        if not isinstance(send, OneStepSend) or not send.send_whole(answer.status, fields, body):
            await send_response(send, answer.status, fields, body)

    def _answer(
        self, scope: Scope, exchange: Exchange, body: bytes, refusal: JsonRpcError | None
    ) -> Awaitable[ExchangeResponse | EventStream | None]:
        if exchange.caller.tenant_id in self._suspended:
            refusal = SUSPENDED_ERROR
        if exchange.is_doubled:
            # Readers of the first and of the last value would see different requests.
            refusal = REPEATED_HEADER
        usual = None
        if refusal is None and exchange.version == MODERN:
            usual = read_whole(body, bounded=len(body) > self._short_bytes)
        if usual is None:
            return self._in_parts(scope, exchange, body, refusal)
        # DE-01 without the table, because most requests take this branch.
        message, identity, params = usual
        scope[RPC] = message.method, params.name, params.uri
        return self._modern_request(exchange, message, identity, params, None)

    def _in_parts(
        self, scope: Scope, exchange: Exchange, body: bytes, refusal: JsonRpcError | None
    ) -> Awaitable[ExchangeResponse | EventStream | None]:
        """Serve any other body: a batch, a notification, a response, or no message."""
        if refusal is not None and is_batch(body):
            # Do not even tell its messages apart: there may be millions, and each takes time.
            return self._refused(exchange.caller, None, refusal)
        message = read(body, bounded=len(body) > self._short_bytes)
        if isinstance(message, list):
            return self._dispatch.batch(exchange, message)
        refusal = message.refusal or refusal
        if refusal is not None:
            # A response has an id as well, but no request waits for this answer.
            identity = message.id if message.answer is None else None
            return self._refused(exchange.caller, identity, refusal)
        if message.method is None:
            return self._dispatch.response(exchange, message)
        params, problem = read_params(message.params)
        scope[RPC] = message.method, params.name, params.uri
        if message.id is None:
            return self._dispatch.notification(exchange, message, params)
        version = None if params.meta is UNSET else params.meta.version
        is_modern = version == exchange.version == MODERN
        serve = self._modern_request if is_modern else self._other_request
        return serve(exchange, message, message.id, params, problem)

    async def _refused(
        self, caller: TenantContext, identity: bytes | None, refusal: JsonRpcError
    ) -> ExchangeResponse:
        """Return the answer to a request that no era serves; it counts like any other."""
        return self._modern.refused(identity, await self._server.counted(caller, refusal))

    async def _read_long(
        self, exchange: Exchange, body: bytes | None
    ) -> tuple[bytes, JsonRpcError | None]:
        """
        Return a body that is long or incomplete so far, and a refusal if it contains too much.
        """
        limits, caller = self._limits, exchange.caller
        try:
            if body is None or len(body) > limits.max_body_bytes:
                max_bytes, within_s = limits.max_body_bytes, limits.body_timeout_s
                body = await read_body(caller, exchange.receive, max_bytes, within_s)
                if self._server.running_requests.is_revoked(caller):
                    # Measured from the moment when the gate let the request pass, because a body
                    # may take its time.
                    raise RevokedToken
            if len(body) <= self._short_bytes:
                return body, None
            return body, await too_much(caller, body, limits.max_body_values)
        except TooManyWaiting as busy:
            refusal = rate_limited(busy.failure)
            refusal.is_counted = False  # no rate limit has counted it yet
            if body is None:
                raise refusal from None
            return body, refusal


class Stateless:
    """Serves requests of 2026-07-28, in the order of checks that H-13 gives."""

    def __init__(self, server: McpServer, replies: Replies, *, mirrors: bool) -> None:
        self._server = server
        self._approval_tools = server.approval_tools
        self._replies = replies
        self._mirrors = mirrors
        self._methods = served(server.modern_capabilities, modern=True)
        tools = server.registry.tools.items() if mirrors else ()
        self._routed = frozenset(name for name, tool in tools if tool.routed)
        self._source = server.registry.source

    def serve(
        self,
        exchange: Exchange,
        message: IncomingMessage,
        identity: bytes,
        params: Params,
        problem: JsonRpcError | None,
    ) -> Awaitable[ExchangeResponse | EventStream | None]:
        """
        Answer one request, or start a stream that stays open.

        Return None if the answer was sent as a stream, or if the client no longer waits for it.
        """
        if self._source is not None and self._source.at_hand(exchange.caller) is None:
            return self._loaded(exchange, message, identity, params, problem)
        try:
            meta = params.meta
            if meta is UNSET or meta.version is UNSET or meta.capabilities is UNSET:
                raise no_meta(NO_META if meta is UNSET else meta)
            method = self._check(exchange, message, params, problem)
            if not method.runs:
                return self._counted(exchange, identity, params, method, meta)
            return self._run(exchange, identity, params, method, meta)
        except JsonRpcError as refusal:
            return self._refused(exchange, identity, refusal)

    async def _loaded(
        self,
        exchange: Exchange,
        message: IncomingMessage,
        identity: bytes,
        params: Params,
        problem: JsonRpcError | None,
    ) -> ExchangeResponse | EventStream | None:
        """Load the offers of the caller's tenant, which decide how its calls are answered."""
        try:
            await self._server.registry.prepare(exchange.caller)
        except StoreUnavailable as outage:
            return self._replies.unavailable(exchange.request_id, identity, outage)
        return await self.serve(exchange, message, identity, params, problem)

    def _run(
        self, exchange: Exchange, identity: bytes, params: Params, method: Method, meta: Meta
    ) -> Awaitable[ExchangeResponse | EventStream | None]:
        """Run the method of a checked request; raises JsonRpcError."""
        is_marked = exchange.is_marked or meta.idempotency_key is not UNSET
        marks = key_and_correlation(exchange.headers, params) if is_marked else NO_KEYS
        if method.handler is None:
            return self._open(exchange, identity, params, method)
        client = self._client(exchange, method, params, meta)
        caller, server = exchange.caller, self._server
        stream = encode_input = None
        call_client = NO_CLIENT
        if client is not None:
            stream, encode_input, call_client = client.stream, client.encode_input, client
        ask = McpRequest(
            caller, exchange.request_id, MODERN, params, call_client, None, *marks, exchange.peer
        )
        handled = method.handler(server, ask)
        if client is not None and stream is not None:
            handled = client.answered(handled)
        work = UntilDisconnect(exchange.receive, handled, caller, server.running_requests)
        return self._replies.respond(exchange, identity, stream, work, encode_input)

    async def _counted(
        self, exchange: Exchange, identity: bytes, params: Params, method: Method, meta: Meta
    ) -> ExchangeResponse | EventStream | None:
        """Answer a request that the runner does not count."""
        try:
            await self._server.count(exchange.caller)
            return await self._run(exchange, identity, params, method, meta)
        except JsonRpcError as refusal:
            return self._replies.refused(identity, refusal)
        except StoreUnavailable as outage:
            return self._replies.unavailable(exchange.request_id, identity, outage)

    async def _refused(
        self, exchange: Exchange, identity: bytes, refusal: JsonRpcError
    ) -> ExchangeResponse:
        """Return the answer to a refused request once it is counted."""
        refusal = await self._server.counted(exchange.caller, refusal)
        return self._replies.refused(identity, refusal)

    async def _open(
        self, exchange: Exchange, identity: bytes, params: Params, method: Method
    ) -> ExchangeResponse | EventStream | None:
        if method.opener is None:
            return None
        return await method.opener(self._server, exchange, identity, params)

    def _client(
        self, exchange: Exchange, method: Method, params: Params, meta: Meta
    ) -> RoundTripClient | None:
        """Return the client to send messages and requests to; None if there can be none."""
        sends_messages = (
            meta.progress_token is not UNSET
            or meta.log_level is not UNSET
            # A call that may wait for an approval gets keep-alive messages without asking.
            or (
                method.name == "tools/call"
                and (
                    params.name in self._approval_tools
                    or (self._source is not None and self._may_ask(exchange, params))
                )
            )
        )
        is_continued = params.input_responses is not UNSET or params.request_state is not UNSET
        if not (sends_messages or is_continued or meta.capabilities):
            return None
        client = RoundTripClient(
            self._server, exchange.caller, method.name, params, may_ask=method.may_ask
        )
        if sends_messages:
            events = reads_events(exchange.headers.get(b"accept", b""))
            client.enable_messages(SseResponse(exchange.send) if events else None)
        if is_continued and method.may_ask:
            client.remember()
        return client

    def _may_ask(self, exchange: Exchange, params: Params) -> bool:
        name = params.name
        return isinstance(name, str) and self._server.may_ask(exchange.caller, name)

    def _check(
        self,
        exchange: Exchange,
        message: IncomingMessage,
        params: Params,
        problem: JsonRpcError | None,
    ) -> Method:
        """Do the checks of H-13 before dispatch; the version has already been checked."""
        name = message.method or ""
        method = self._methods.get(name)
        member = None if method is None else method.mirrors
        mirrored = None if member is None else getattr(params, member)
        if self._mirrors:
            check_mirrors(exchange, name, mirrored, member)
        if method is None:
            raise JsonRpcError(METHOD_NOT_FOUND, "Method not found", status=404)
        if problem is not None:
            raise problem
        if name == "tools/call" and (
            params.name in self._routed or (self._source is not None and self._mirrors)
        ):
            check_parameter_headers(self._server.registry, exchange, params)
        return method
