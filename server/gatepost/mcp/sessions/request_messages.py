"""Deliver a session's messages, and cancellations, to one of its requests."""

import asyncio
import contextlib
from collections.abc import Awaitable
from functools import cached_property
from typing import TypeVar

from gatepost.background import TaskSet
from gatepost.execution.interruption import Stop, timer
from gatepost.http.body import WATCH_AFTER_S, EndableRequest, RunningRequests
from gatepost.mcp.sessions.channel import ChannelSignal, MessageChannel, ReceiveSignal
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.shared_store import Subscription
from gatepost_authz.caller import TenantContext


class RequestMessages:
    """
    A request's subscription to the messages of its session, opened only when needed.

    If the shared store is unavailable, the request goes on without messages.
    """

    # Most requests are over before they need a subscription.
    _following: Subscription | None = None
    _stop: Stop | None = None
    _opened = False
    _closed = False

    def __init__(self, channel: MessageChannel, identity: bytes) -> None:
        self.channel = channel
        self.identity = identity
        """The request's id, as JSON."""

    @cached_property
    def _listeners(self) -> list[ReceiveSignal]:
        return []

    @cached_property
    def _lock(self) -> asyncio.Lock:
        return asyncio.Lock()

    @cached_property
    def _tasks(self) -> TaskSet:
        return TaskSet()

    async def open(self, receive: ReceiveSignal) -> None:
        """Deliver messages to *receive* from now on."""
        self._listeners.append(receive)
        await self._open()

    def unsubscribe(self, receive: ReceiveSignal) -> None:
        """Stop delivering messages to *receive*."""
        with contextlib.suppress(ValueError):  # after `close`
            self._listeners.remove(receive)

    def interrupt_with(self, stop: Stop) -> None:
        """Pull *stop* if the request is cancelled or its session ends, or already was."""
        self._stop = stop
        self._tasks.start(self._catch_up())

    def close(self) -> None:
        """End the subscription."""
        self._closed = True
        self._stop = None
        if self._opened:
            # Without this, the callbacks and this object would form a reference cycle.
            self._listeners.clear()
            self._end_following()

    def _end_following(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.end()

    async def _open(self) -> None:
        self._opened = True
        with contextlib.suppress(StoreUnavailable):
            async with self._lock:
                if self._following is None and not self._closed:
                    self._following = await self.channel.follow(self._on_signal)
                if self._closed:
                    self._end_following()

    async def _catch_up(self) -> None:
        await self._open()
        with contextlib.suppress(StoreUnavailable):
            # A message before the subscription left a stored value or an ended session behind.
            cancelled = await self.channel.take_value("cancel", self.identity.decode()) is not None
            if cancelled or (await self.channel.reload()).ended:
                self._pull()

    def _on_signal(self, signal: ChannelSignal) -> None:
        if signal.kind == "end":
            self._pull()
        elif signal.kind == "cancel" and signal.target_id == self.identity.decode():
            self._cancel()
        for receive in tuple(self._listeners):
            receive(signal)

    def _cancel(self) -> None:
        if self._stop is not None:
            self._stop.pull()
            # Remove the stored value: if the client reuses the id, it means another request.
            self._tasks.start(self._forget())

    async def _forget(self) -> None:
        with contextlib.suppress(StoreUnavailable):
            await self.channel.take_value("cancel", self.identity.decode())

    def _pull(self) -> None:
        if self._stop is not None:
            self._stop.pull()


T = TypeVar("T")

Running = dict[tuple[bytes, bytes], Stop]
"""Requests of sessions that run in this process, by session and request id."""


class UntilCancelled(EndableRequest[T]):
    """
    Awaits *work*; the client takes its request back by a message, or by the end of the session.

    A dropped connection does not cancel a request in the revisions with sessions (S-08).
    """

    __slots__ = ("_key", "_request_messages", "_running", "_timer")

    def __init__(
        self,
        running: Running,
        request_messages: RequestMessages,
        work: Awaitable[T],
        caller: TenantContext,
        running_requests: RunningRequests,
    ) -> None:
        self._work = work.__await__()
        self._stop = None
        self._running = running
        self._request_messages = request_messages
        self._key = (request_messages.channel.session.nonce, request_messages.identity)
        self._caller = caller
        self._running_requests = running_requests

    def begin(self, stop: Stop) -> None:
        super().begin(stop)
        self._running[self._key] = stop
        # Most calls are over before this subscribes to messages of other processes.
        self._timer = timer(WATCH_AFTER_S, self._request_messages.interrupt_with, stop)

    def end(self) -> None:
        super().end()
        self._timer.cancel()
        del self._timer
        # If a client uses an id twice at once, the later request must keep its entry.
        if self._stop is not None and self._running.get(self._key) is self._stop:
            del self._running[self._key]
