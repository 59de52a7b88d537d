"""Connect to one upstream over HTTP, for a tenant or for one caller."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import msgspec

from gatepost.background import TaskSet
from gatepost.mcp.revisions import MODERN
from gatepost.upstreams.connection import (
    NO_OPTIONS,
    ConnectionFailure,
    RequestOptions,
    ServerDescription,
    UpstreamExchange,
    UpstreamNotification,
    UpstreamResult,
)
from gatepost.upstreams.transport.announcements import Announcements
from gatepost.upstreams.transport.concurrency import UpstreamConcurrency
from gatepost.upstreams.transport.era import KnownEra
from gatepost.upstreams.transport.failures import invalid
from gatepost.upstreams.transport.http_exchange import SEND_S, HttpExchange
from gatepost.upstreams.transport.http_notifications import followed
from gatepost.upstreams.transport.http_requester import HttpRequester
from gatepost.upstreams.transport.negotiation import (
    WITHIN_S,
    UpstreamPeer,
    discover,
    open_session,
)
from gatepost.upstreams.transport.outgoing import PreparedRequest
from gatepost.upstreams.transport.session_stream import SessionStream

MAX_SESSIONS = 8
"""
The sessions of one connection. There are several because each declares the capabilities of some
clients.
"""
STABLE_AFTER_S = 60.0
"""How long a description is reused without asking the server."""
BACKGROUND_MESSAGES = 64
"""Messages that are sent in the background at once."""

_encode = msgspec.json.Encoder(order="deterministic").encode


class HttpConnection:
    """
    Sends requests to one upstream, without a session if the server has none.

    In the session era the client's capabilities are declared once for a session. The connection of
    a tenant therefore opens a session for each set of capabilities, and that of one caller a single
    session, because the server keeps the caller's state in it.
    """

    def __init__(
        self,
        requester: HttpRequester,
        discovery: KnownEra,
        concurrency: UpstreamConcurrency,
        *,
        keeps_state: bool,
    ) -> None:
        self.requester, self.concurrency = requester, concurrency
        self.announcements = Announcements()
        self.users = 0
        """The requests and followed notifications that use it now."""
        self._discovery, self._keeps_state = discovery, keeps_state
        self._modern: UpstreamPeer | None = None
        self._described_at = 0.0
        self._sessions: dict[bytes, UpstreamPeer] = {}
        self._opening: dict[bytes, asyncio.Task[UpstreamPeer]] = {}
        self._background_tasks = TaskSet()
        self._streams: dict[str, SessionStream] = {}
        self._ids = count(1)

    async def describe(self) -> ServerDescription:
        """Return what the server says of itself (`UpstreamConnection`)."""
        now = asyncio.get_running_loop().time()
        if self._modern is not None and now - self._described_at > STABLE_AFTER_S:
            self._modern, self._discovery.era = None, None
        peer = await self.peer({})
        if self._discovery.era == "modern" and not self._described_at:
            self._modern, self._discovery.era = None, None
            peer = await self.peer({})
        return peer.description

    @asynccontextmanager
    async def exchange(
        self, method: str, params: Mapping[str, Any], options: RequestOptions = NO_OPTIONS
    ) -> AsyncIterator[UpstreamExchange]:
        """Send a request, and end its exchange with the block (`UpstreamConnection`)."""
        self.users += 1
        try:
            await self.concurrency.acquire(options.caller)
            try:
                peer = await self.peer(options.capabilities)
                await self._level(peer, method, options)
                peer.users += 1
                request = self._prepared(peer, method, params, options)
                exchange = HttpExchange(self, peer, request, self._stream_of(peer))
                try:
                    yield exchange
                finally:
                    peer.users -= 1
                    await exchange.aclose()
            finally:
                self.concurrency.release(options.caller)
        finally:
            self.users -= 1

    @asynccontextmanager
    async def notifications(
        self, uris: Sequence[str] = ()
    ) -> AsyncIterator[AsyncIterator[UpstreamNotification]]:
        """Follow the server's changes (`UpstreamConnection`)."""
        self.users += 1
        try:
            async with followed(self, uris) as notifications:
                yield notifications
        finally:
            self.users -= 1

    async def aclose(self) -> None:
        """End the sessions (`UpstreamConnection`)."""
        for task in self._opening.values():
            task.cancel()
        peers = list(self._sessions.values())
        self._sessions.clear()
        for peer in peers:
            self._end(peer)
        if self._background_tasks:
            await asyncio.wait(self._background_tasks, timeout=SEND_S)
        for sending in self._background_tasks:
            sending.cancel()

    async def peer(self, capabilities: Mapping[str, Any]) -> UpstreamPeer:
        """Return the server with a session that may be used; raises ConnectionFailure."""
        if self._discovery.era == "modern" and self._modern is None:
            self._modern = UpstreamPeer(
                ServerDescription(era="modern", revision=MODERN, capabilities={})
            )
            self._described_at = 0.0
        if self._discovery.era == "modern" and self._modern is not None:
            return self._modern
        key = b"" if self._keeps_state else _encode(capabilities)
        usable_peer = self._usable(key)
        if usable_peer is not None:
            if usable_peer.session_id is None or self._keeps_state:
                return usable_peer
            if usable_peer.credential_version == await self.requester.credential_version():
                return usable_peer
            self.drop_peer(usable_peer, era_too=False)
            self._end(usable_peer)
        return await self._once(key, lambda: self._open(key, capabilities))

    def _usable(self, key: bytes) -> UpstreamPeer | None:
        usable_peer = self._sessions.get(key)
        if usable_peer is None:
            # A server without sessions remembers no capabilities, so any peer is the same.
            peers = (peer for peer in self._sessions.values() if peer.session_id is None)
            usable_peer = next(peers, None)
        return usable_peer

    async def _once(self, key: bytes, make: Callable[[], Awaitable[UpstreamPeer]]) -> UpstreamPeer:
        """Let all requests that need the same session wait for one opening."""

        async def new_peer() -> UpstreamPeer:
            try:
                async with asyncio.timeout(3 * WITHIN_S):
                    return await make()
            except TimeoutError:
                name = self.requester.server.name
                raise ConnectionFailure(
                    "unreachable",
                    f"The MCP server {name} did not introduce itself in time. Nothing was sent.",
                    retry_after_s=5,
                ) from None
            finally:
                self._opening.pop(key, None)

        task = self._opening.get(key)
        if task is None:
            task = self._opening[key] = asyncio.create_task(new_peer())
            task.add_done_callback(_retrieved)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ConnectionFailure(
                    "unreachable", f"The MCP server {self.requester.server.name} was removed."
                ) from None
            raise

    async def _open(self, key: bytes, capabilities: Mapping[str, Any]) -> UpstreamPeer:
        if self._discovery.era is None:
            discovered = await discover(self.requester, next(self._ids))
            if discovered == "incompatible":
                name = self.requester.server.name
                raise invalid(name, "speaks no revision of MCP that this gate speaks")
            if isinstance(discovered, ServerDescription):
                self._discovery.era = "modern"
                self._described_at = asyncio.get_running_loop().time()
                self._modern = UpstreamPeer(discovered)
                return self._modern
        peer = await open_session(self.requester, next(self._ids), capabilities)
        self._discovery.era = "session"
        self._sessions[key] = peer
        if peer.session_id is not None and capabilities:
            # A server that sends requests does so on this stream, unless it knows better.
            stream = self._streams[peer.session_id] = SessionStream()
            await stream.follow(self, peer)
        idle = [
            entry for entry in self._sessions.items() if not entry[1].users and entry[1] is not peer
        ]
        for unused, idle_peer in idle[: max(len(self._sessions) - MAX_SESSIONS, 0)]:
            del self._sessions[unused]
            self._end(idle_peer)
        return peer

    def _stream_of(self, peer: UpstreamPeer) -> SessionStream | None:
        """Return the stream on which a session may ask, if it has one."""
        return None if peer.session_id is None else self._streams.get(peer.session_id)

    def follows(self, peer: UpstreamPeer) -> bool:
        """Return whether the changes that a session announces arrive already."""
        stream = self._stream_of(peer)
        return stream is not None and stream.is_open

    def _close_stream(self, peer: UpstreamPeer) -> None:
        stream = self._streams.pop(peer.session_id or "", None)
        if stream is not None and stream.task is not None:
            stream.task.cancel()
            self._background_tasks.track(stream.task)

    async def _level(self, peer: UpstreamPeer, method: str, options: RequestOptions) -> None:
        """Set the log level of a session, which the modern era says with each request."""
        level = options.log_level
        needs_level = level is not None and level != peer.log_level and method != "logging/setLevel"
        is_session = peer.description.era == "session"
        if not needs_level or not is_session or "logging" not in peer.description.capabilities:
            return
        request = self._prepared(peer, "logging/setLevel", {"level": level}, NO_OPTIONS)
        exchange = HttpExchange(self, peer, request)
        try:
            async for message in exchange.messages():
                if isinstance(message, UpstreamResult):
                    peer.log_level = level
        finally:
            await exchange.aclose()

    def _prepared(
        self, peer: UpstreamPeer, method: str, params: Mapping[str, Any], options: RequestOptions
    ) -> PreparedRequest:
        description = peer.description
        return PreparedRequest(
            next(self._ids), method, params, options, description.era, description.revision
        )

    def next_id(self) -> int:
        """Return an id that no other request of this connection has."""
        return next(self._ids)

    def drop_peer(self, peer: UpstreamPeer, *, era_too: bool) -> None:
        """Forget a session that the server ended, or everything if it speaks another revision."""
        peer.is_lost = True
        self._close_stream(peer)
        self._sessions = {
            key: kept_peer for key, kept_peer in self._sessions.items() if kept_peer is not peer
        }
        if era_too:
            self._modern, self._discovery.era = None, None

    def announce(self, notification: UpstreamNotification) -> None:
        """Pass a change to those that follow the server's notifications."""
        self.announcements.publish(notification)

    def send_in_background(self, peer: UpstreamPeer, body: bytes) -> None:
        """Send a message in the background, and ignore how that ends."""
        self._background("POST", peer, body)

    def _end(self, peer: UpstreamPeer) -> None:
        self._close_stream(peer)
        if peer.session_id is not None and not peer.is_lost:
            self._background("DELETE", peer, b"")

    def _background(self, verb: str, peer: UpstreamPeer, body: bytes) -> None:
        if len(self._background_tasks) >= BACKGROUND_MESSAGES:
            return

        async def send() -> None:
            with suppress(ConnectionFailure, TimeoutError):
                async with asyncio.timeout(SEND_S):
                    headers = peer.headers()
                    async with self.requester.open(verb, headers, body, timeout_s=SEND_S):
                        return

        self._background_tasks.start(send())


def _retrieved(task: asyncio.Task[UpstreamPeer]) -> None:
    """Mark the error of a task as seen, also when every request that waited is gone."""
    if not task.cancelled():
        task.exception()
