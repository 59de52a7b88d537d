"""Answer GET: the stream of a session, and the replay of a lost one."""

import secrets
from collections import deque
from contextlib import ExitStack
from typing import Any

import msgspec

from gatepost.mcp.change_notifications import ChangeNotification, ChangeSubscription
from gatepost.mcp.event_stream import frame
from gatepost.mcp.jsonrpc import INVALID_REQUEST, JsonRpcError, notification
from gatepost.mcp.server import McpServer
from gatepost.mcp.sessions.channel import ChannelSignal, MessageChannel
from gatepost.mcp.sessions.open_streams import OpenSessionStream
from gatepost.mcp.sessions.resumable import END_KINDS, EVENT_ID, PLACEHOLDER, SILENT_END
from gatepost.storage.sessions import SessionRecord
from gatepost.storage.shared_store import LogEvent
from gatepost_authz.caller import TenantContext


async def open_listener(
    server: McpServer, caller: TenantContext, channel: MessageChannel
) -> "SessionNotifications":
    """Open the session's GET stream in place of an earlier one; raises JsonRpcError."""
    listener = SessionNotifications(server, caller, channel)
    with ExitStack() as undo:
        undo.callback(listener.leave)
        await listener.enter()
        if (await channel.revise(listener.in_force)).ended:
            listener.end()
        await channel.send("listen", listener.name)
        undo.pop_all()
    return listener


class SessionNotifications(OpenSessionStream):
    """
    Sends change notifications to the client of one session.

    Only the newest stream of a session gets them (S-11); a newer stream ends the others. A change
    that is still queued is not queued twice, and a document's changes are sent only if the
    session subscribed to it. The queue for a slow reader is therefore bounded.
    """

    __slots__ = ("_changed", "_interest", "_read_change", "_server", "_unsent", "name")

    def __init__(self, server: McpServer, caller: TenantContext, channel: MessageChannel) -> None:
        super().__init__(caller, channel, server.streams)
        self._server = server
        self.name = secrets.token_urlsafe(12)
        self._interest: ChangeSubscription | None = None
        self._unsent: dict[ChangeNotification, None] = {}
        self._changed = self._read_change = 0
        """How often the subscriptions changed, and the last change that this stream has read."""

    async def enter(self) -> None:
        """Count the stream and subscribe to the tenant's changes; raises JsonRpcError."""
        await super().enter()
        self._interest = await self._server.pubsub.follow(self.caller.tenant_id, self.changed)

    def in_force(self, record: SessionRecord) -> SessionRecord:
        """Return the session's record with this stream as its listener."""
        return msgspec.structs.replace(record, listener=self.name)

    def changed(self, change: ChangeNotification) -> None:
        """Queue a change; ignore those of tasks, which these revisions do not have."""
        if change.kind == "task" or change in self._unsent:
            return
        watched = change.kind != "document" or self.is_behind
        if not watched and change.name not in self.channel.record.subscriptions:
            return
        self._unsent[change] = None
        self._streams.wake(self)

    def next_frame(self) -> bytes | None:
        """Return the next notification, or None."""
        while self._unsent:
            change = next(iter(self._unsent))
            del self._unsent[change]
            if change.kind != "document":
                return _notification(f"{change.kind}/list_changed", {})
            watched = change.name in self.channel.record.subscriptions
            if watched and self._server.may_read(self.caller, change.name):
                return _notification("resources/updated", {"uri": change.name})
        return None

    @property
    def is_behind(self) -> bool:
        """Return whether the subscriptions have changed and must be read again."""
        return self._changed != self._read_change

    async def catch_up(self) -> None:
        """Read the subscriptions; the stream stays behind until the store answers."""
        changed = self._changed
        await self.channel.reload()
        self._read_change = changed

    async def is_needed(self) -> bool:
        """Return whether the session is open and this is still its listener."""
        record = await self.channel.reload()
        return not record.ended and record.listener == self.name

    @property
    def watches(self) -> bool:
        """Return whether the stream reports changes of documents."""
        return bool(self.channel.record.subscriptions) or self.is_behind

    def receive(self, signal: ChannelSignal) -> None:
        """End for a newer listener in any process; read changed subscriptions again."""
        super().receive(signal)
        if signal.kind == "listen" and signal.target_id != self.name:
            self.end()
        elif signal.kind == "watch":
            self._changed += 1
            self._streams.wake(self)

    def release(self) -> None:
        """Release the stream and its subscription to changes."""
        super().release()
        if self._interest is not None:
            self._interest.end()


def _notification(name: str, params: Any) -> bytes:
    return frame(notification(f"notifications/{name}", params))


# The same for an unknown id, an id of another session, and one whose events are gone. It is not
# 404, which would end the session for its client (DE-22).
EVENT_NOT_FOUND = JsonRpcError(
    INVALID_REQUEST, "No events can be replayed after this one", legacy_status=400
)


async def open_replay(
    server: McpServer, caller: TenantContext, channel: MessageChannel, event_id: bytes
) -> "Replay":
    """Open a stream with the rest of another one; raises JsonRpcError if there is no rest."""
    match = EVENT_ID.fullmatch(event_id.decode("latin-1"))
    if match is None:
        raise EVENT_NOT_FOUND
    replay = Replay(server, caller, channel, match[1], int(match[2]))
    await replay.check()
    with ExitStack() as undo:
        undo.callback(replay.leave)
        await replay.enter()
        if not await replay.is_needed():
            replay.end()
        await channel.send("resume", replay.stream, replay.me)
        undo.pop_all()
    return replay


class Replay(OpenSessionStream):
    """
    Sends the events that a lost connection missed, and then new ones until the response.

    The events are in the stream's log, which every process can read. A message about new events
    only makes this stream read the log before the next keep-alive comment.
    """

    __slots__ = ("_after", "_events", "_is_stale", "_last", "_stored", "me", "stream")

    def __init__(
        self,
        server: McpServer,
        caller: TenantContext,
        channel: MessageChannel,
        stream: str,
        after: int,
    ) -> None:
        super().__init__(caller, channel, server.streams)
        self.stream = stream
        self.me = secrets.token_hex(8)
        self._after = after
        self._stored = channel.stored_events(stream)
        self._events: deque[LogEvent] = deque()
        self._is_stale = True
        self._last = False

    async def check(self) -> None:
        """Raise JsonRpcError unless more events may follow."""
        # Start one event earlier, to see whether the client's last event ended the stream.
        events = await self._read(max(self._after - 1, 0))
        if events is None:
            events = await self._read(self._after)
        if events is None or any(_ends_before(event, self._after) for event in events):
            raise EVENT_NOT_FOUND

    def next_frame(self) -> bytes | None:
        """Return the next event; end the stream after the last message."""
        if self._last:
            self.end()
            return None
        while self._events:
            event = self._events.popleft()
            kind, data = event.data[:1], event.data[1:]
            self._last = kind in END_KINDS
            if kind not in (PLACEHOLDER, SILENT_END):
                return frame(data, f"{self.stream}-{event.number}")
        if self._last:
            self.end()
        return None

    @property
    def is_behind(self) -> bool:
        """Return whether the log must be read; events that were read are sent first."""
        return self._is_stale and not self._events

    async def catch_up(self) -> None:
        """Read new events from the log."""
        self._is_stale = False
        events = await self._read(self._after)
        if events is None:
            # The process that wrote the log is gone. The client gets an error when it asks again.
            self.end()
        elif events:
            self._after = events[-1].number
            self._events.extend(events)

    def send_keep_alive(self) -> None:
        """Keep the connection alive and read the log, because a message may be lost."""
        self._is_stale = True
        super().send_keep_alive()

    async def is_needed(self) -> bool:
        """Return whether the session is open."""
        return not (await self.channel.reload()).ended

    def receive(self, signal: ChannelSignal) -> None:
        """Read the log for new events; end when another connection resumes the same stream."""
        super().receive(signal)
        if signal.target_id != self.stream:
            return
        if signal.kind == "event":
            self._is_stale = True
            self._streams.wake(self)
        elif signal.kind == "resume" and signal.by != self.me:
            self.end()

    async def _read(self, after: int) -> list[LogEvent] | None:
        return await self._stored.shared_store.read(self._stored.name, after)


def _ends_before(event: LogEvent, after: int) -> bool:
    """Return whether the stream has no events after the one numbered *after*."""
    kind = event.data[:1]
    return kind == SILENT_END or (kind in END_KINDS and event.number <= after)
