"""Send one request to an upstream over HTTP, and follow it to its final message."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Protocol

from gatepost.outbound.streaming import StreamedReply
from gatepost.upstreams.connection import (
    ConnectionFailure,
    UpstreamError,
    UpstreamMessage,
    UpstreamNotification,
    UpstreamRequest,
)
from gatepost.upstreams.transport import era, outgoing
from gatepost.upstreams.transport.answers import (
    EVENTS,
    answered_messages,
    media_type,
    refusal_in,
    streamed_messages,
)
from gatepost.upstreams.transport.concurrency import OpenClientRequests, UpstreamConcurrency
from gatepost.upstreams.transport.event_parser import EventParser
from gatepost.upstreams.transport.exchange_timeouts import ExchangeTimeouts
from gatepost.upstreams.transport.failures import (
    broken,
    invalid,
    raise_for_refusal,
    reported,
    session_lost,
    timed_out,
)
from gatepost.upstreams.transport.http_requester import HttpRequester
from gatepost.upstreams.transport.incoming import ReceivedMessage, UpstreamResponse
from gatepost.upstreams.transport.merging import merged
from gatepost.upstreams.transport.negotiation import UpstreamPeer
from gatepost.upstreams.transport.outgoing import PreparedRequest
from gatepost.upstreams.transport.reader import Announce, AnswerItself, Deliver, MessageReader
from gatepost.upstreams.transport.session_stream import SessionStream

SEND_S = 10.0
"""How long an answer or a cancellation may take to send."""
RESUMPTIONS = 3
"""How many times in a row a broken stream is continued without a new message."""
MAX_ASIDE = 64
"""The messages of a session's own stream that wait for one request; it misses further ones."""
RETRY_MS, MAX_RETRY_MS = 500, 10_000


class ExchangeHost(Protocol):
    """The part of its connection that an exchange uses."""

    requester: HttpRequester
    concurrency: UpstreamConcurrency

    def drop_peer(self, peer: UpstreamPeer, *, era_too: bool) -> None:
        """Forget a session that the server ended, or everything if it speaks another revision."""

    def announce(self, notification: UpstreamNotification) -> None:
        """Pass a change to those that follow the server's notifications."""

    def send_in_background(self, peer: UpstreamPeer, body: bytes) -> None:
        """Send a message in the background, and ignore how that ends."""


class HttpExchange:
    """
    Sends its request with the first step of `messages`, which is iterated once.

    The connection of a session may break after some events. If they had ids, the stream is
    continued with a GET, which sends nothing again.
    """

    def __init__(
        self,
        host: ExchangeHost,
        peer: UpstreamPeer,
        request: PreparedRequest,
        stream: SessionStream | None = None,
    ) -> None:
        self._stream = stream
        self._side: asyncio.Queue[ReceivedMessage] = asyncio.Queue(MAX_ASIDE)
        self._host, self._peer, self._request = host, peer, request
        self._server = host.requester.server.name
        self._options = request.options
        self._timeouts = ExchangeTimeouts(request.options.timeout_s, request.options.idle_s)
        self._is_session = request.era == "session"
        self._reader = MessageReader(
            request.id, request.options.progress_token, has_requests=self._is_session
        )
        self._parser = EventParser(request.options.max_bytes)
        self._client_requests = OpenClientRequests(
            self._timeouts, host.concurrency, request.options.caller
        )
        self._sent = self._has_ended = self._cancelled = False
        self._messages = self._run()

    def messages(self) -> AsyncIterator[UpstreamMessage]:
        """Return the messages of this request (`UpstreamExchange`)."""
        return self._messages

    async def respond(self, request_id: int | str, answer: Mapping[str, Any]) -> None:
        """Answer a request of the upstream (`UpstreamExchange`)."""
        if not self._client_requests.take(request_id):
            return
        body = outgoing.response(request_id, answer)
        try:
            async with self._host.requester.open(
                "POST", self._peer.headers(), body, timeout_s=SEND_S
            ) as reply:
                raise_for_refusal(self._server, reply)
                if reply.status == 404:
                    self._host.drop_peer(self._peer, era_too=False)
                    raise broken(self._server)
                if reply.status >= 400:
                    raise invalid(self._server, f"refused an answer (HTTP {reply.status})")
        finally:
            self._timeouts.resume()

    async def cancel(self, reason: str) -> None:
        """Tell the upstream that no caller waits any more (`UpstreamExchange`)."""
        if self._has_ended or self._cancelled:
            return
        self._cancelled = True
        if self._is_session and self._sent:
            params = {"requestId": self._request.id, "reason": reason[:500]}
            self._host.send_in_background(
                self._peer, outgoing.message("notifications/cancelled", params)
            )
        # Closing the stream cancels a request of the modern era.
        self._timeouts.stop()

    async def aclose(self) -> None:
        """End the exchange; an unfinished request is cancelled."""
        await self._messages.aclose()
        if self._stream is not None:
            self._stream.running.pop(self._request.id, None)
        if self._sent and not self._has_ended:
            await self.cancel("the request was given up")
        self._client_requests.close()

    def receive_side_message(self, message: ReceivedMessage) -> None:
        """Take a message from the stream of the session (`SideReceiver`)."""
        if not self._side.full():
            self._side.put_nowait(message)

    async def _run(self) -> AsyncGenerator[UpstreamMessage, None]:
        received = self._received()
        if self._stream is not None:
            self._stream.running[self._request.id] = self
            received = merged(received, self._side)
        async with aclosing(received) as incoming:
            while not self._has_ended:
                try:
                    async with self._timeouts.waiting():
                        message = await self._next(incoming)
                except TimeoutError:
                    raise timed_out(self._server) from None
                if isinstance(message, UpstreamRequest):
                    self._client_requests.ask(message.id)
                if message is not None:
                    yield message

    async def _next(self, incoming: AsyncIterator[ReceivedMessage]) -> UpstreamMessage | None:
        """Return the next message to pass on; None after one that only shows that it works."""
        async for received in incoming:
            with reported(self._server):
                judgement = self._reader.judge(received)
            if isinstance(judgement, Deliver):
                self._has_ended = judgement.final
                return judgement.message
            if isinstance(judgement, AnswerItself):
                self._host.send_in_background(
                    self._peer, outgoing.response(judgement.id, judgement.answer)
                )
            elif isinstance(judgement, Announce):
                self._host.announce(judgement.notification)
            elif judgement == "alive":
                return None
        raise broken(self._server)

    async def _received(self) -> AsyncGenerator[ReceivedMessage, None]:
        try:
            async with aclosing(self._posted()) as messages:
                async for message in messages:
                    yield message
        except ConnectionFailure as failed:
            if failed.reason != "outcome_unknown" or not self._can_resume():
                raise
        while self._can_resume():
            async with aclosing(self._resumed()) as messages:
                async for message in messages:
                    yield message
        raise broken(self._server)

    async def _posted(self) -> AsyncGenerator[ReceivedMessage, None]:
        headers = self._request.headers() | self._peer.headers()
        body = self._request.body()
        self._sent = True
        try:
            async with self._host.requester.open(
                "POST",
                headers,
                body,
                timeout_s=self._options.timeout_s,
                correlation=self._options.correlation,
            ) as reply:
                raise_for_refusal(self._server, reply)
                if reply.status >= 400:
                    yield await self._refused(reply)
                    return
                is_json = media_type(reply) != EVENTS
                async with aclosing(
                    answered_messages(
                        self._server,
                        reply,
                        self._parser,
                        self._options.max_bytes,
                        batches=self._is_session,
                    )
                ) as messages:
                    async for message in messages:
                        yield message
                if is_json:
                    raise invalid(self._server, "answered another request than the one sent")
        except ConnectionFailure as failed:
            self._sent = failed.reason in {"timeout", "invalid", "outcome_unknown"}
            raise

    async def _refused(self, reply: StreamedReply) -> ReceivedMessage:
        """Return the error of an answer 4xx or 5xx; raises ConnectionFailure if it has none."""
        refusal = await refusal_in(reply)
        error = None if refusal is None else refusal.outcome
        error = error if isinstance(error, UpstreamError) else None
        if self._peer.session_id is not None and era.refuses_session(reply.status, error):
            self._host.drop_peer(self._peer, era_too=False)
            raise session_lost(self._server)
        if error is not None and era.refuses_version(reply.status, error):
            self._host.drop_peer(self._peer, era_too=True)
            raise session_lost(self._server)
        if error is None:
            raise invalid(self._server, f"answered HTTP {reply.status} without an MCP error")
        return UpstreamResponse(self._request.id, error)

    def _can_resume(self) -> bool:
        return self._is_session and bool(self._parser.last_id) and not self._has_ended

    async def _resumed(self) -> AsyncGenerator[ReceivedMessage, None]:
        """Continue the stream after its last event; raises ConnectionFailure if that fails."""
        before = self._parser.last_id
        wait_ms = self._parser.retry_ms
        self._parser = EventParser(self._options.max_bytes, last_id=before)
        for _ in range(RESUMPTIONS):
            await asyncio.sleep(min(RETRY_MS if wait_ms is None else wait_ms, MAX_RETRY_MS) / 1000)
            headers = self._peer.headers() | {"last-event-id": before, "accept": EVENTS}
            headers.pop("content-type")
            try:
                async with self._host.requester.open(
                    "GET", headers, timeout_s=self._options.timeout_s
                ) as reply:
                    if reply.status != 200 or media_type(reply) != EVENTS:
                        raise broken(self._server)
                    limit = self._options.max_bytes
                    async with aclosing(streamed_messages(reply, self._parser, limit)) as messages:
                        async for message in messages:
                            yield message
            except ConnectionFailure as failed:
                if failed.reason not in {"unreachable", "outcome_unknown"}:
                    raise
            if self._parser.last_id != before:
                return
        raise broken(self._server)
