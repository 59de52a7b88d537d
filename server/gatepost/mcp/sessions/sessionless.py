"""Serve requests of the older revisions that name no session, each on its own."""

import contextlib

from msgspec import UNSET

from gatepost.http.body import RequestCancelled, UntilDisconnect
from gatepost.mcp.client import StreamClient, progress_token
from gatepost.mcp.event_stream import SseResponse, accepts_events
from gatepost.mcp.jsonrpc import METHOD_NOT_FOUND, IncomingMessage, JsonRpcError, error, read_part
from gatepost.mcp.methods import Method, served
from gatepost.mcp.request import NO_META, Exchange, Params, key_and_correlation, read_params
from gatepost.mcp.responses import ACCEPTED, ExchangeResponse, MethodResult, Replies
from gatepost.mcp.revisions import BATCHING, BEFORE_STREAMABLE
from gatepost.mcp.server import McpRequest, McpServer, MethodHandler
from gatepost.mcp.sessions.batch import BatchAnswers
from gatepost.mcp.sessions.client import UNSET_LEVEL
from gatepost.mcp.sessions.requests import EMPTY_BATCH, SESSION_ID_REQUIRED, SESSION_NOT_FOUND
from gatepost.tools.context.client import Waiting, pending
from gatepost_authz.caller import TenantContext


class UnaskableClient(StreamClient):
    """The client of a request without a session, which declared no capabilities."""

    def __init__(
        self, server: McpServer, caller: TenantContext, stream: SseResponse | None
    ) -> None:
        super().__init__(stream, capabilities={}, token=None, level=None)
        self._server = server
        self._caller = caller

    async def wait_for_decision(self, waiting: Waiting) -> None:
        """Wait for a decision; the wait is short if there is no stream for messages."""
        allowed_s = self._server.runner.allowed_s(self._caller)
        if not await self.hold(waiting, allowed_s, self._server.stopping):
            raise pending(waiting)


class Sessionless:
    """Serves requests of the older revisions as a server without sessions does (DE-07)."""

    def __init__(self, server: McpServer, replies: Replies) -> None:
        self._server = server
        self._replies = replies
        self._methods = served(server.capabilities, modern=False)

    async def request(
        self,
        exchange: Exchange,
        message: IncomingMessage,
        identity: bytes,
        params: Params,
        problem: JsonRpcError | None,
    ) -> ExchangeResponse | None:
        """Answer one request; return None if a stream carried the answer or the client left."""
        stream = None
        # Only a client that accepts events gets them: one that sends a single request may not.
        if accepts_events(exchange.headers.get(b"accept", b"")):
            stream = SseResponse(exchange.send)
        version = exchange.version
        revision = BATCHING if version in (None, BEFORE_STREAMABLE) else version
        work = self._work(exchange, message, (params, problem), revision, stream)
        # Without a session a notification cannot cancel a request; hanging up does.
        until = UntilDisconnect(
            exchange.receive, work, exchange.caller, self._server.running_requests
        )
        return await self._replies.to(exchange, identity, stream, until)

    async def batch(self, exchange: Exchange, batch: list[bytes]) -> ExchangeResponse:
        """Answer the requests of a batch in order (DE-09); return 202 if there are none."""
        if not batch:
            return self._replies.refused(
                None, await self._server.counted(exchange.caller, EMPTY_BATCH)
            )
        work = self._parts(exchange, batch)
        until = UntilDisconnect(
            exchange.receive, work, exchange.caller, self._server.running_requests
        )
        try:
            return (await until).response()
        except RequestCancelled:
            return ACCEPTED

    async def _parts(self, exchange: Exchange, batch: list[bytes]) -> BatchAnswers:
        caller = exchange.caller
        answers = BatchAnswers(self._server.runner, caller)
        for number, raw in enumerate(batch):
            message = read_part(raw, bounded=True)
            if message.refusal is not None:
                refusal = await self._server.counted(caller, message.refusal)
                answers.add(error(message.id, refusal))
            elif message.method is None or message.id is None:
                with contextlib.suppress(JsonRpcError):  # it has no effect and no answer here
                    self._server.count_message(caller)
            else:
                work = self._answer_in_batch(exchange, message, answers if number else None)
                answers.add(await self._replies.in_batch(exchange, message.id, work))
        return answers

    async def _answer_in_batch(
        self, exchange: Exchange, message: IncomingMessage, earlier: BatchAnswers | None
    ) -> MethodResult:
        """Answer one request of a batch; *earlier* are the answers to those before it."""
        if earlier is not None:
            if self._server.tasks.is_out(exchange.caller):
                raise SESSION_NOT_FOUND
            earlier.check()
        return await self._work(exchange, message, read_params(message.params), BATCHING, None)

    async def _work(
        self,
        exchange: Exchange,
        message: IncomingMessage,
        read: tuple[Params, JsonRpcError | None],
        revision: str,
        stream: SseResponse | None,
    ) -> MethodResult:
        caller, (params, problem) = exchange.caller, read
        try:
            method, handler = self._method(message, problem)
            idempotency_key, correlation = key_and_correlation(exchange.headers, params)
        except JsonRpcError as refusal:
            raise await self._server.counted(caller, refusal) from None
        if not method.runs:
            await self._server.count(caller)
        client = UnaskableClient(self._server, caller, stream)
        if stream is not None:
            meta = NO_META if params.meta is UNSET else params.meta
            client.send_messages_to(stream, progress_token(meta), UNSET_LEVEL)
        ask = McpRequest(
            caller,
            exchange.request_id,
            revision,
            params,
            client,
            idempotency_key=idempotency_key,
            correlation=correlation,
            peer=exchange.peer,
        )
        return await client.answered(handler(self._server, ask))

    def _method(
        self, message: IncomingMessage, problem: JsonRpcError | None
    ) -> tuple[Method, MethodHandler]:
        """Return the method and its handler; raises JsonRpcError, or *problem* if there is one."""
        method = self._methods.get(message.method or "")
        if method is None or method.handler is None:
            raise JsonRpcError(METHOD_NOT_FOUND, "Method not found")
        if method.in_session:
            raise SESSION_ID_REQUIRED
        if problem is not None:
            raise problem
        return method, method.handler
