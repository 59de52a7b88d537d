"""Answers as events that a client can fetch again after a lost connection, and their log."""

import contextlib
import re
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import cached_property

from starlette.types import Send

from gatepost.background import TaskSet
from gatepost.http.caller_bytes import CallerBytes
from gatepost.http.open_streams import OpenStreams, ServerStopping, TooMany
from gatepost.mcp.event_stream import KEEP_ALIVE, SseResponse, frame
from gatepost.mcp.jsonrpc import INTERNAL_ERROR, JsonRpcError, error
from gatepost.mcp.revisions import NEWEST_HANDSHAKE
from gatepost.mcp.sessions.channel import ChannelSignal, MessageChannel
from gatepost.mcp.sessions.request_messages import RequestMessages
from gatepost.storage.errors import StoreUnavailable
from gatepost_authz.caller import TenantContext

MAX_EVENTS = 500
MAX_BYTES = 1_000_000
# Three times the interval of marks: the streams of a dead process are removed within a minute.
RUNNING_S = 60.0
MARK_EVERY = 5
"""
Keep-alive comments between two marks. The shared store stores each mark, and each counts as an
event.
"""
FINISHED_S = 120.0
"""How long after its end a stream can still be replayed."""

Owner = tuple[str, str, str, str]
"""The owner of streams (`TenantContext.principal_key`)."""

EVENT_ID = re.compile(r"([A-Za-z0-9_-]{16})-([0-9]{1,9})", re.ASCII)

EVENT, LAST_MESSAGE, SILENT_END, PLACEHOLDER = b"e", b"l", b"s", b"m"
"""
The kinds of log entries: a message, the last message, an end without message, a mark without text.
"""
END_KINDS = (LAST_MESSAGE, SILENT_END)

EVENT_LOG_BYTES, EVENT_BYTES = 2_000, 200
"""The overhead of an event log and of an event, in addition to the content."""
MAX_KEPT_BYTES = 16_000_000
"""
The limit for the ended streams of one caller, and for its running streams.

Above it the oldest ended streams are removed early.
"""
MAX_OF_TENANT_BYTES = 128_000_000
"""The same limit for all callers of one tenant together."""

TOO_LARGE = JsonRpcError(INTERNAL_ERROR, "The answer was too large to keep for a reconnection")


class EventLog:
    """
    The newest events of one stream, kept at the shared store with bounded number, bytes and time.

    An event that cannot be kept is sent without an id and cannot be replayed. If the owner's
    streams have no room left, only a mark is kept in place of the event.
    """

    def __init__(
        self, channel: MessageChannel, identity: bytes, event_logs: "EventLogs", owner: Owner
    ) -> None:
        self._event_logs, self.owner = event_logs, owner
        self.charged = 0
        """The bytes counted against the owner while the stream runs."""
        self._is_over = False
        self.name = secrets.token_urlsafe(12)
        self._stored = channel.stored_events(self.name)
        self._identity = identity
        self._sizes: deque[int] = deque()
        self._total = 0

    @property
    def is_kept(self) -> bool:
        """Return whether any event is kept."""
        return bool(self._sizes)

    @property
    def size(self) -> int:
        """Return the approximate size of the log in bytes."""
        return self._total + EVENT_LOG_BYTES + EVENT_BYTES * len(self._sizes)

    async def forget(self) -> None:
        """Remove the log from the shared store."""
        with contextlib.suppress(StoreUnavailable):
            await self._stored.shared_store.forget(self._stored.name)

    def end(self) -> None:
        """Stop counting the log against its owner; the stream is over, even during a write."""
        self._is_over = True
        self._event_logs.charge(self, 0)

    async def write(self, kind: bytes, data: bytes = b"") -> str:
        """Keep an event and return its id, or "" if it could not be kept."""
        if len(data) > MAX_BYTES or not self._event_logs.has_room(self.owner, len(data)):
            # A client that reconnects learns at least that there was an answer.
            data = error(self._identity, TOO_LARGE) if kind == LAST_MESSAGE else b""
            kind = kind if data else PLACEHOLDER
        self._sizes.append(len(data))
        self._total += len(data)
        while len(self._sizes) > MAX_EVENTS or self._total > MAX_BYTES:
            self._total -= self._sizes.popleft()
        if not self._is_over:
            self._event_logs.charge(self, self.size)
        ttl_s = FINISHED_S if kind in END_KINDS else RUNNING_S
        try:
            number = await self._stored.shared_store.append(
                self._stored.name, kind + data, ttl_s=ttl_s, max_events=len(self._sizes)
            )
        except StoreUnavailable:
            return ""
        return f"{self.name}-{number}"


class EventLogs:
    """
    The event logs that this process writes: the size of running ones, and each caller's newest.

    Each log is kept for a while in case its client reconnects. Without these limits a fast
    caller, or a tenant with many callers, could make the shared store keep gigabytes.
    """

    def __init__(
        self,
        *,
        max_bytes: int = MAX_KEPT_BYTES,
        max_of_tenant: int = MAX_OF_TENANT_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes, self._max_of_tenant = max_bytes, max_of_tenant
        self._clock = clock
        self._finished: OrderedDict[Owner, deque[tuple[float, EventLog]]] = OrderedDict()
        self._ended_bytes, self._running = CallerBytes(), CallerBytes()

    def has_room(self, owner: Owner, size: int) -> bool:
        """Return whether the owner's running streams may grow by *size* bytes."""
        of_caller, of_tenant = self._running.bytes_of(owner)
        return of_caller + size <= self._max_bytes and of_tenant + size <= self._max_of_tenant

    def charge(self, event_log: EventLog, size: int) -> None:
        """Count *size* bytes of a running log against its owner; 0 if it no longer runs."""
        self._running.add(event_log.owner, size - event_log.charged)
        event_log.charged = size

    def add(self, event_log: EventLog) -> list[EventLog]:
        """Add a log that has ended; return the logs that must be removed for it."""
        now, owner = self._clock(), event_log.owner
        self.charge(event_log, 0)
        self._finished.setdefault(owner, deque()).append((now + FINISHED_S, event_log))
        self._finished.move_to_end(owner)
        self._ended_bytes.add(owner, event_log.size)
        self._drop_silent(now)
        event_logs, removed = self._finished[owner], []
        while self._is_too_much(owner, event_logs, now):
            until, oldest = event_logs.popleft()
            self._ended_bytes.add(owner, -oldest.size)
            if until > now:
                removed.append(oldest)
        if not event_logs:
            del self._finished[owner]
        return removed

    def _is_too_much(
        self, owner: Owner, event_logs: "deque[tuple[float, EventLog]]", now: float
    ) -> bool:
        of_caller, of_tenant = self._ended_bytes.bytes_of(owner)
        if len(event_logs) > 1 and (of_caller > self._max_bytes or event_logs[0][0] <= now):
            return True
        return bool(event_logs) and of_tenant > self._max_of_tenant

    def _drop_silent(self, now: float) -> None:
        """Forget the callers whose newest log has expired."""
        for owner in tuple(self._finished):
            if self._finished[owner][-1][0] > now:
                return  # all owners after this one have newer logs
            del self._finished[owner]
            self._ended_bytes.add(owner, -self._ended_bytes.bytes_of(owner)[0])


class ResumableResponse(SseResponse):
    """
    The answer to one request of a session as events with ids.

    It starts with the first event, like every stream; an answer in plain JSON has no event log.
    If the connection is lost, the request goes on and its events are only logged. The client can
    then fetch them through another connection, from any process.
    """

    watches = False
    _let_go = False
    _keep_alives = 0

    def __init__(
        self,
        send: Send,
        *,
        caller: TenantContext,
        request_messages: RequestMessages,
        streams: OpenStreams,
        event_logs: EventLogs,
    ) -> None:
        super().__init__(send)
        self.caller = caller
        self._request_messages = request_messages
        self._streams = streams
        self._event_logs = event_logs
        self._opened_log: EventLog | None = None

    @property
    def _event_log(self) -> EventLog:
        """Return the event log, which is made when it is first needed."""
        if self._opened_log is None:
            request = self._request_messages
            owner = self.caller.principal_key
            self._opened_log = EventLog(request.channel, request.identity, self._event_logs, owner)
        return self._opened_log

    @cached_property
    def _tasks(self) -> TaskSet:
        return TaskSet()

    @property
    def _primes(self) -> bool:
        return self._request_messages.channel.session.version == NEWEST_HANDSHAKE

    def notified(self, message: bytes) -> bool:
        """Return False, because each event is in the log before it is sent."""
        return False

    async def notify(self, message: bytes) -> None:
        """Send an encoded notification, unless that would exceed the limit of open streams."""
        async with self._lock:
            if self._finished:
                return
            try:
                await self._event(message, more_body=True)
            except (TooMany, ServerStopping):
                return

    async def keep_alive(self) -> None:
        """Send a keep-alive comment, unless that would exceed the limit of open streams."""
        async with self._lock:
            if self._finished:
                return
            try:
                await self._start()
            except (TooMany, ServerStopping):
                return
            await self._put(KEEP_ALIVE, more_body=True)

    async def ask(self, body: bytes) -> None:
        """Send a request to the client; raises TooMany or ServerStopping."""
        async with self._lock:
            if not self._finished:
                await self._event(body, more_body=True)

    async def finish(self, body: bytes | None) -> None:
        """Send the response, if there is one, and end the stream."""
        self._finished = True
        async with self._lock:
            try:
                if body is not None:
                    await self._event(body, more_body=False)
                elif self.started:
                    await self._event_log.write(SILENT_END)
                    await self._reread()
                    await self._put(b"", more_body=False)
                else:
                    await self._open(b": cancelled\n\n")
            finally:
                self._streams.leave(self)
        if self._event_log.is_kept:
            for event_log in self._event_logs.add(self._event_log):
                await event_log.forget()

    def close(self) -> None:
        """Release the stream; call this when the request is over, however its stream ended."""
        self._finished = True
        # A stream that failed to start is counted too, so it must leave as well.
        self._streams.leave(self)
        if self._opened_log is not None:
            self._opened_log.end()

    async def pause(self, retry_after_s: float) -> None:
        """Close the connection; the client reconnects after that time (S-06, 2025-11-25 only)."""
        async with self._lock:
            if not self._primes or self._finished or self._let_go:
                return
            try:
                await self._start()
            except (TooMany, ServerStopping):
                return
            await self._put(b"retry: %d\n\n" % round(retry_after_s * 1000), more_body=False)
            self._let_go = True

    def receive(self, signal: ChannelSignal) -> None:
        """Handle a message from another part of the session."""
        if signal.kind == "resume" and signal.target_id == self._event_log.name:
            self._tasks.start(self._hang_up())

    def send_keep_alive(self) -> None:
        """Keep the connection and the event log alive."""
        if not self._lock.locked():
            self._tasks.start(self._send_keep_alive())

    def wake(self) -> None:
        """Do nothing: events are sent only by the request."""

    def end(self) -> None:
        """Do nothing: the stream ends with its request, which has a time limit."""

    async def _send_keep_alive(self) -> None:
        async with self._lock:
            if not self._finished:
                self._keep_alives += 1
                if self._keep_alives % MARK_EVERY == 0:
                    await self._event_log.write(PLACEHOLDER)
                await self._put(KEEP_ALIVE, more_body=True)

    async def _hang_up(self) -> None:
        """Close this connection: the client resumed the stream on another one (S-11)."""
        async with self._lock:
            if not self._finished:
                await self._put(b"", more_body=False)
                self._let_go = True
        # Announce the events that were logged before the other connection was known.
        await self._reread()

    async def _event(self, data: bytes, *, more_body: bool) -> None:
        await self._start()
        event_id = await self._event_log.write(EVENT if more_body else LAST_MESSAGE, data)
        if self._let_go:
            await self._reread()
        await self._put(frame(data, event_id), more_body=more_body)

    async def _start(self) -> None:
        if self.started:
            return
        if not self._finished:
            self._streams.enter(self)
            await self._request_messages.open(self.receive)
        prime = b""
        if self._primes and (event_id := await self._event_log.write(PLACEHOLDER)):
            prime = b"id: %b\ndata: \n\n" % event_id.encode()
        await super()._start()
        if prime:
            await self._put(prime, more_body=True)

    async def _open(self, comment: bytes) -> None:
        await super()._start()
        await self._put(comment, more_body=False)

    async def _put(self, data: bytes, *, more_body: bool) -> None:
        if not self._let_go:
            await self._send({"type": "http.response.body", "body": data, "more_body": more_body})

    async def _reread(self) -> None:
        """Tell the readers of the event log that there are new events."""
        try:
            await self._request_messages.channel.send("event", self._event_log.name)
        except StoreUnavailable:
            return  # they also poll the log
