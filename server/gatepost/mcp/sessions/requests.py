"""Serve the legacy era: the handshake, then the requests and notifications of its session."""

import contextlib
import logging

import msgspec
from msgspec import UNSET

from gatepost.mcp.client import progress_token
from gatepost.mcp.event_stream import EventStream, reads_events
from gatepost.mcp.jsonrpc import (
    BAD_BATCH,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    IncomingMessage,
    JsonRpcError,
    error,
    read_id,
    read_part,
)
from gatepost.mcp.methods import INITIALIZE, served
from gatepost.mcp.request import (
    NO_META,
    Exchange,
    KeyAndCorrelation,
    Params,
    key_and_correlation,
    read_params,
)
from gatepost.mcp.responses import ACCEPTED, ExchangeResponse, MethodResult, Replies, result
from gatepost.mcp.revisions import BATCHING
from gatepost.mcp.server import McpRequest, McpServer, MethodHandler
from gatepost.mcp.sessions.batch import BatchAnswers
from gatepost.mcp.sessions.channel import MessageChannel
from gatepost.mcp.sessions.client import PendingClientRequests, SessionClient
from gatepost.mcp.sessions.get_stream import open_listener, open_replay
from gatepost.mcp.sessions.request_messages import RequestMessages, Running, UntilCancelled
from gatepost.mcp.sessions.resumable import EventLogs, Resumable
from gatepost.mcp.sessions.session import McpSessions
from gatepost.storage.errors import StoreUnavailable
from gatepost_authz.caller import TenantContext

log = logging.getLogger("gatepost.session")

SESSION_HEADER = b"mcp-session-id"
LAST_EVENT_HEADER = b"last-event-id"
CANCELLED = "notifications/cancelled"
# A cancellation may arrive before the request subscribes to messages, so it is kept this long.
CANCELLED_S = 5.0
REASON_CHARACTERS = 200

SESSION_ID_REQUIRED = JsonRpcError(INVALID_REQUEST, "Mcp-Session-Id is required", legacy_status=400)
SESSION_NOT_FOUND = JsonRpcError(INVALID_REQUEST, "Session not found", legacy_status=404)
BATCH_REFUSED = JsonRpcError(
    INVALID_REQUEST, "Batches are not part of this revision", legacy_status=400
)
UNEXPECTED_RESPONSE = JsonRpcError(
    INVALID_REQUEST, "The server sent no request to this client", legacy_status=400
)
EMPTY_BATCH = JsonRpcError(INVALID_REQUEST, BAD_BATCH, legacy_status=400)
ONLY_EVENTS = JsonRpcError(
    INVALID_REQUEST, "GET is answered only with text/event-stream", legacy_status=406
)


class SessionEndpoint:
    """Serves the revisions with an `initialize` handshake."""

    def __init__(
        self,
        server: McpServer,
        sessions: McpSessions,
        replies: Replies,
        client_requests: PendingClientRequests,
    ) -> None:
        self._server = server
        self._sessions = sessions
        self._replies = replies
        self._client_requests = client_requests
        self._running: Running = {}
        self._event_logs = EventLogs()
        self._methods = served(server.capabilities, modern=False)
        self._run = {name for name, method in self._methods.items() if method.runs}

    async def find(self, exchange: Exchange) -> MessageChannel | None:
        """Return the session that a request names, if it is open and belongs to this caller."""
        caller = exchange.caller
        session = self._sessions.find(exchange.headers.get(SESSION_HEADER, b""), caller)
        if session is None:
            return None
        channel = await self._server.register.channel(caller.tenant_id, session)
        # A revocation of the caller's tokens ends the sessions started before it. It may also
        # have happened while the store was read.
        began = msgspec.structs.replace(caller, issued_at=session.issued_at)
        is_revoked = self._server.running_requests.is_revoked
        return None if is_revoked(began) or is_revoked(caller) else channel

    async def initialize(
        self, exchange: Exchange, message: IncomingMessage, identity: bytes
    ) -> ExchangeResponse:
        """
        Open a session and return its id in a header (DE-05).

        Raises StoreUnavailable.
        """
        await self._server.registry.prepare(exchange.caller)
        try:
            session, session_id = self._sessions.start(message.params, exchange.caller)
        except JsonRpcError as refusal:
            return self._replies.refused(identity, refusal)
        body = result(identity, self._server.introduction(session.version, exchange.caller))
        return ExchangeResponse(200, body, ((SESSION_HEADER, session_id.encode("ascii")),))

    async def end(self, exchange: Exchange, channel: MessageChannel) -> ExchangeResponse:
        """End a session in all processes (DE-13)."""
        await channel.revise(lambda record: msgspec.structs.replace(record, ended=True))
        self._server.register.on_end(exchange.caller.tenant_id, channel.session)
        nonce = channel.session.nonce
        for (owner, _), stop in tuple(self._running.items()):
            if owner == nonce:
                stop.pull()
        await channel.send("end")
        return ExchangeResponse(204)

    async def listen(
        self, exchange: Exchange, channel: MessageChannel
    ) -> ExchangeResponse | EventStream:
        """Open the session's own stream or replay a lost one (DE-12)."""
        if not reads_events(exchange.headers.get(b"accept", b"")):
            return self._replies.refused(None, ONLY_EVENTS)
        event_id = exchange.headers.get(LAST_EVENT_HEADER)
        try:
            if event_id is None:
                return await open_listener(self._server, exchange.caller, channel)
            return await open_replay(self._server, exchange.caller, channel, event_id)
        except JsonRpcError as refusal:
            return self._replies.refused(None, refusal)

    async def request(
        self, exchange: Exchange, message: IncomingMessage, identity: bytes, channel: MessageChannel
    ) -> ExchangeResponse | None:
        """Answer one request of a session; return None if the answer was sent as a stream."""
        request_messages = RequestMessages(channel, identity)
        streams = self._server.streams
        stream = None
        if reads_events(exchange.headers.get(b"accept", b"")):
            stream = Resumable(
                exchange.send,
                caller=exchange.caller,
                request_messages=request_messages,
                streams=streams,
                event_logs=self._event_logs,
            )
        work = self._work(exchange, message, request_messages, stream)
        try:
            return await self._replies.respond(exchange, identity, stream, work)
        finally:
            request_messages.close()
            if stream is not None:
                stream.close()

    async def _work(
        self,
        exchange: Exchange,
        message: IncomingMessage,
        request_messages: RequestMessages,
        stream: Resumable | None,
    ) -> MethodResult:
        caller = exchange.caller
        try:
            handler, params, marks = self._read(exchange, message)
        except JsonRpcError as refusal:
            raise await self._server.counted(caller, refusal) from None
        if message.method not in self._run:
            await self._server.count(caller)
        meta = NO_META if params.meta is UNSET else params.meta
        session = request_messages.channel.session
        client = SessionClient(
            stream,
            request_messages=request_messages,
            client_requests=self._client_requests,
            caller=caller,
            token=progress_token(meta),
            allowed_s=self._server.runner.allowed_s,
        )
        ask = McpRequest(
            caller,
            exchange.request_id,
            session.version,
            params,
            client,
            session,
            *marks,
            peer=exchange.peer,
        )
        work = client.answered(handler(self._server, ask))
        return await UntilCancelled(
            self._running, request_messages, work, caller, self._server.running_requests
        )

    def _read(
        self, exchange: Exchange, message: IncomingMessage
    ) -> tuple[MethodHandler, Params, KeyAndCorrelation]:
        """Return the handler, parameters and marks of a request; raises JsonRpcError."""
        if message.method == INITIALIZE:
            raise JsonRpcError(INVALID_REQUEST, "The session is already open")
        method = self._methods.get(message.method or "")
        if method is None or method.handler is None:
            raise JsonRpcError(METHOD_NOT_FOUND, "Method not found")
        params, problem = read_params(message.params)
        if problem is not None:
            raise problem
        return method.handler, params, key_and_correlation(exchange.headers, params)

    async def notify(
        self, exchange: Exchange, message: IncomingMessage, channel: MessageChannel
    ) -> ExchangeResponse:
        """Handle a notification of a session; all but cancellations are ignored."""
        if message.method == CANCELLED:
            params, _ = read_params(message.params)
            identity = None if params.request_id is UNSET else read_id(params.request_id)
            if identity is not None:
                reason = _reason(message.params)
                log.debug(
                    "request_cancelled", extra={"reason": reason, "request_id": exchange.request_id}
                )
                await self._cancel(channel, identity)
        return ACCEPTED

    async def _cancel(self, channel: MessageChannel, identity: bytes) -> None:
        # Looked up only within this session, because clients choose their ids (J-14).
        stop = self._running.get((channel.session.nonce, identity))
        if stop is not None:
            stop.pull()
            return
        # It may run in another process. If it is not subscribed yet, it finds the stored value.
        request_id = identity.decode()
        await channel.put_value("cancel", request_id, b"", ttl_s=CANCELLED_S)
        await channel.send("cancel", request_id)

    async def respond(self, message: IncomingMessage, channel: MessageChannel) -> ExchangeResponse:
        """Accept a client's response to a request from the server (DE-10)."""
        # Only strings are decoded: the server asks under no other ids, and 1e400 is no float.
        if message.id is not None and message.id[:1] == b'"' and message.answer is not None:
            identity = msgspec.json.decode(message.id, type=str)
            await self._client_requests.take_in(channel, identity, message.answer)
        return ACCEPTED

    async def batch(
        self, exchange: Exchange, batch: list[bytes], channel: MessageChannel
    ) -> ExchangeResponse:
        """Serve the messages of a batch in order (DE-09); return 202 if none needs an answer."""
        caller = exchange.caller
        if channel.session.version != BATCHING:
            return self._replies.refused(None, await self._server.counted(caller, BATCH_REFUSED))
        if not batch:
            return self._replies.refused(None, await self._server.counted(caller, EMPTY_BATCH))
        answers = BatchAnswers(self._server.runner, caller)
        for number, raw in enumerate(batch):
            message, earlier = read_part(raw, bounded=True), answers if number else None
            answers.add(await self._answer_in_batch(exchange, message, channel, earlier))
        return answers.response()

    async def _check_on(
        self, caller: TenantContext, channel: MessageChannel, earlier: BatchAnswers
    ) -> None:
        """
        Raise JsonRpcError unless the next request of a batch may start.

        The gate checks a batch only once, and it may hold fifty calls of half a minute. A
        revocation or an ended session must not wait for the last of them.
        """
        if self._server.tasks.is_out(caller) or (await channel.reload()).ended:
            raise SESSION_NOT_FOUND
        earlier.check()

    async def _answer_in_batch(
        self,
        exchange: Exchange,
        message: IncomingMessage,
        channel: MessageChannel,
        earlier: BatchAnswers | None,
    ) -> bytes | None:
        """Answer one message of a batch; *earlier* are the answers to those before it."""
        identity = message.id
        if message.refusal is not None:
            refusal = await self._server.counted(exchange.caller, message.refusal)
            return error(identity, refusal)
        if message.method is None or identity is None:
            await self._receive_message(exchange, message, channel)
            return None
        request_messages = RequestMessages(channel, identity)
        work = self._checked_work(exchange, message, request_messages, earlier)
        try:
            return await self._replies.in_batch(exchange, identity, work)
        finally:
            request_messages.close()

    async def _checked_work(
        self,
        exchange: Exchange,
        message: IncomingMessage,
        request_messages: RequestMessages,
        earlier: BatchAnswers | None,
    ) -> MethodResult:
        if earlier is not None:
            await self._check_on(exchange.caller, request_messages.channel, earlier)
        return await self._work(exchange, message, request_messages, None)

    async def _receive_message(
        self, exchange: Exchange, message: IncomingMessage, channel: MessageChannel
    ) -> None:
        """
        Handle a notification or response of a batch; drop it above the rate limit.

        It is also dropped while a store is unavailable: the answers of the requests before it,
        which have run, must not be lost with it.
        """
        with contextlib.suppress(JsonRpcError, StoreUnavailable):
            self._server.count_message(exchange.caller)
            if message.method is None:
                await self.respond(message, channel)
            else:
                await self.notify(exchange, message, channel)


class CancelReason(msgspec.Struct):
    """The reason for a cancellation, as the client wrote it."""

    reason: str = ""


def _reason(params: bytes | None) -> str:
    try:
        reason = msgspec.json.decode(params or b"{}", type=CancelReason).reason[:REASON_CHARACTERS]
    except msgspec.DecodeError:
        return ""
    # The text may be shown in a terminal, so it must not contain control characters.
    return "".join(letter if letter.isprintable() else "?" for letter in reason)
