"""The open GET streams of sessions, and the reasons for which they end."""

from abc import abstractmethod

from gatepost.http.open_streams import OpenStreams, ServerStopping, TooMany
from gatepost.mcp.event_stream import KEEP_ALIVE, EventStream
from gatepost.mcp.jsonrpc import INTERNAL_ERROR, RATE_LIMITED, JsonRpcError
from gatepost.mcp.sessions.channel import ChannelSignal, MessageChannel
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.shared_store import Subscription
from gatepost_authz.caller import TenantContext

LOOK_EVERY = 15
"""
Keep-alive comments between two checks of whether a stream is still wanted: the message that says so
may be lost.
"""

# 429, because clients take other statuses for a failed login or an ended session.
TOO_MANY_STREAMS = JsonRpcError(
    RATE_LIMITED,
    "Too many streams are open",
    legacy_status=429,
    headers=((b"retry-after", b"10"),),
)
SERVER_STOPPING = JsonRpcError(
    INTERNAL_ERROR,
    "The server is about to stop",
    legacy_status=503,
    headers=((b"retry-after", b"1"),),
)


class OpenSessionStream(EventStream):
    """
    One GET stream of a session.

    It ends when the client hangs up, its token expires, its session ends, another connection
    replaces it, or the server stops. It also ends if a store is unavailable, because then none of
    this can be checked.
    """

    __slots__ = ("_following", "_keep_alives", "channel")

    def __init__(
        self, caller: TenantContext, channel: MessageChannel, streams: OpenStreams
    ) -> None:
        super().__init__(caller, streams)
        self.channel = channel
        self._keep_alives = 0
        self._following: Subscription | None = None

    @abstractmethod
    async def is_needed(self) -> bool:
        """Return whether this stream is still wanted, according to the store."""

    @abstractmethod
    def next_frame(self) -> bytes | None:
        """Return the next event; called if the token is valid and nothing must be looked up."""

    @property
    @abstractmethod
    def is_behind(self) -> bool:
        """Return whether `catch_up` has something to do."""

    @abstractmethod
    async def catch_up(self) -> None:
        """Read new events from the stores; raises StoreUnavailable."""

    def receive(self, signal: ChannelSignal) -> None:
        """Handle a message from another part of the session."""
        if signal.kind == "end":
            self.end()

    async def enter(self) -> None:
        """Count the stream and subscribe to the session's messages; raises JsonRpcError."""
        try:
            self._streams.enter(self)
        except TooMany:
            raise TOO_MANY_STREAMS from None
        except ServerStopping:
            raise SERVER_STOPPING from None
        self._following = await self.channel.follow(self.receive)

    def next_event(self) -> bytes | None:
        """Return the next event, or None; end the stream if the token has expired."""
        if self.must_look_up:
            return None
        if self._streams.is_over(self.caller):
            self.end()
            return None
        return self.next_frame()

    @property
    def must_look_up(self) -> bool:
        """Return whether the stream is behind or due for a check of whether it is still wanted."""
        return self.is_behind or self._keep_alives >= LOOK_EVERY

    async def look_up(self) -> None:
        """Check whether the stream is still wanted, and read new events."""
        try:
            if self._keep_alives >= LOOK_EVERY:
                self._keep_alives = 0
                if not await self.is_needed():
                    self.end()
            if self.is_behind:
                await self.catch_up()
        except StoreUnavailable:
            self.end()

    def send_keep_alive(self) -> None:
        """Count the keep-alive comments and send one."""
        self._keep_alives += 1
        super().send_keep_alive()

    def first_event(self) -> bytes:
        """Return a comment, because some proxies hold the headers back until there is a body."""
        return KEEP_ALIVE

    def last_event(self) -> bytes:
        """Return no last event; the client reconnects, or learns then why it cannot."""
        return b""

    def release(self) -> None:
        """End the subscription to the session's messages."""
        if self._following is not None:
            self._following.end()
            self._following = None

    def leave(self) -> None:
        """Give the stream up before anything was sent."""
        self._streams.leave(self)
        self.release()
