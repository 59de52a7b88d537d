"""Send one request to a stdio server, and follow it to its final message."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from gatepost.upstreams.connection import (
    ConnectionFailure,
    UpstreamMessage,
    UpstreamRequest,
)
from gatepost.upstreams.transport import outgoing
from gatepost.upstreams.transport.answers import STREAMS
from gatepost.upstreams.transport.concurrency import OpenClientRequests, UpstreamConcurrency
from gatepost.upstreams.transport.exchange_timeouts import ExchangeTimeouts
from gatepost.upstreams.transport.failures import invalid, timed_out
from gatepost.upstreams.transport.incoming import InvalidMessage, ReceivedMessage
from gatepost.upstreams.transport.outgoing import PreparedRequest
from gatepost.upstreams.transport.reader import AnswerItself, Deliver, MessageReader
from gatepost.upstreams.transport.stdio_process import StdioProcess


class StdioExchange:
    """Sends its request with the first step of `messages`, which is iterated once."""

    def __init__(
        self, process: StdioProcess, concurrency: UpstreamConcurrency, request: PreparedRequest
    ) -> None:
        self._process, self._request = process, request
        self._server = process.server
        self._timeouts = ExchangeTimeouts(request.options.timeout_s, request.options.idle_s)
        self._reader = MessageReader(
            request.id, request.options.progress_token, has_requests=request.era == "session"
        )
        self._received: deque[tuple[ReceivedMessage, int]] = deque()
        self._arrived = asyncio.Event()
        self._failure: ConnectionFailure | None = None
        self._bytes = 0
        self._client_requests = OpenClientRequests(
            self._timeouts, concurrency, request.options.caller
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
        try:
            await self._process.send(outgoing.response(request_id, answer))
        finally:
            self._timeouts.resume()

    async def cancel(self, reason: str) -> None:
        """Tell the upstream that no caller waits any more (`UpstreamExchange`)."""
        if self._has_ended or self._cancelled:
            return
        self._cancelled = True
        if self._sent:
            params = {"requestId": self._request.id, "reason": reason[:500]}
            self._process.send_in_background(outgoing.message("notifications/cancelled", params))
        self._timeouts.stop()

    async def aclose(self) -> None:
        """End the exchange; an unfinished request is cancelled."""
        await self._messages.aclose()
        self._process.finish(self._request.id)
        if self._sent and not self._has_ended and self._failure is None:
            await self.cancel("the request was given up")
        self._client_requests.close()

    def receive(self, message: ReceivedMessage, size: int) -> None:
        """Take a message from the process (`MessageReceiver`)."""
        max_bytes = self._request.options.max_bytes
        self._bytes += size
        if size > max_bytes or self._bytes > max_bytes * STREAMS:
            self.fail(invalid(self._server, "sent more than is read of one answer"))
            return
        self._received.append((message, size))
        self._arrived.set()

    def fail(self, failure: ConnectionFailure) -> None:
        """Take note that no more messages come (`MessageReceiver`)."""
        self._failure = self._failure or failure
        self._arrived.set()

    async def _run(self) -> AsyncGenerator[UpstreamMessage, None]:
        self._process.begin(self._request.id, self)
        try:
            async with self._timeouts.waiting():
                body = self._request.body()
                self._sent = True
                await self._process.send(body)
        except TimeoutError:
            raise timed_out(self._server) from None
        while not self._has_ended:
            try:
                async with self._timeouts.waiting():
                    message = await self._next()
            except TimeoutError:
                raise timed_out(self._server) from None
            except InvalidMessage as problem:
                raise invalid(self._server, str(problem)) from None
            if isinstance(message, UpstreamRequest):
                self._client_requests.ask(message.id)
            if message is not None:
                yield message

    async def _next(self) -> UpstreamMessage | None:
        """Return the next message to pass on; None after one that only shows that it works."""
        while True:
            while not self._received:
                if self._failure is not None:
                    raise self._failure
                self._arrived.clear()
                await self._arrived.wait()
            judgement = self._reader.judge(self._received.popleft()[0])
            if isinstance(judgement, Deliver):
                self._has_ended = judgement.final
                return judgement.message
            if isinstance(judgement, AnswerItself):
                self._process.send_in_background(outgoing.response(judgement.id, judgement.answer))
            elif judgement == "alive":
                return None
