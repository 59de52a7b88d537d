"""GET with `Last-Event-ID`: the rest of an answer whose connection was lost (S-12)."""

import secrets
from collections import deque
from contextlib import ExitStack

from gatepost.mcp.held import Held
from gatepost.mcp.journal import ENDS, EVENT_ID, MARK, SILENT_END
from gatepost.mcp.jsonrpc import INVALID_REQUEST, Refused
from gatepost.mcp.room import Room, Signal
from gatepost.mcp.server import Server
from gatepost.mcp.stream import frame
from gatepost.stores.api import Event
from gatepost_authz.caller import TenantContext

# The same for an id that never was, one of another session, and one whose events are gone; and no
# 404, which would end the session for its client (DE-22).
NO_SUCH_EVENT = Refused(
    INVALID_REQUEST, "There is nothing to be had after this event", legacy_status=400
)


async def open_replay(
    server: Server, caller: TenantContext, room: Room, event_id: bytes
) -> "Replay":
    """The rest of a stream of this session; raises Refused when there is none."""
    match = EVENT_ID.fullmatch(event_id.decode("latin-1"))
    if match is None:
        raise NO_SUCH_EVENT
    replay = Replay(server, caller, room, match[1], int(match[2]))
    await replay.check()
    with ExitStack() as undo:
        undo.callback(replay.leave)
        await replay.enter()
        if not await replay.wanted():
            replay.end()
        await room.tell("resume", replay.stream, replay.me)
        undo.pop_all()
    return replay


class Replay(Held):
    """
    Sends what a lost connection missed, and goes on with what comes until the response.

    The events stand in the stream's journal, wherever its request runs; word of new ones is only
    a reason to look sooner than at the next beat.
    """

    __slots__ = ("_after", "_events", "_last", "_shelf", "_stirred", "me", "stream")

    def __init__(
        self, server: Server, caller: TenantContext, room: Room, stream: str, after: int
    ) -> None:
        super().__init__(caller, room, server.streams)
        self.stream = stream
        self.me = secrets.token_hex(8)
        self._after = after
        self._shelf = room.shelf(stream)
        self._events: deque[Event] = deque()
        self._stirred = True
        self._last = False

    async def check(self) -> None:
        """Raise Refused unless something may follow."""
        # From one before: whether the last event that the client has ended the stream.
        known = await self._read(max(self._after - 1, 0))
        if known is None:
            known = await self._read(self._after)
        if known is None or any(_ends_before(event, self._after) for event in known):
            raise NO_SUCH_EVENT

    def next_frame(self) -> bytes | None:
        """See `Held`; the end comes when the last message is out."""
        if self._last:
            self.end()
            return None
        while self._events:
            event = self._events.popleft()
            kind, data = event.data[:1], event.data[1:]
            self._last = kind in ENDS
            if kind not in (MARK, SILENT_END):
                return frame(data, f"{self.stream}-{event.number}")
        if self._last:
            self.end()
        return None

    @property
    def is_behind(self) -> bool:
        """See `Held`; what was read goes out first."""
        return self._stirred and not self._events

    async def catch_up(self) -> None:
        """See `Held`."""
        self._stirred = False
        events = await self._read(self._after)
        if events is None:
            # The journal has lost its process: the client asks again, and is told.
            self.end()
        elif events:
            self._after = events[-1].number
            self._events.extend(events)

    def beat(self) -> None:
        """See `Line`; word of an event may be lost."""
        self._stirred = True
        super().beat()

    async def wanted(self) -> bool:
        """Whether the session lives."""
        return not (await self.room.look()).ended

    def hear(self, signal: Signal) -> None:
        """New events are a reason to look; another connection for the stream ends this one."""
        super().hear(signal)
        if signal.about != self.stream:
            return
        if signal.kind == "event":
            self._stirred = True
            self._streams.wake(self)
        elif signal.kind == "resume" and signal.by != self.me:
            self.end()

    async def _read(self, after: int) -> list[Event] | None:
        return await self._shelf.relay.read(self._shelf.name, after)


def _ends_before(event: Event, after: int) -> bool:
    """Whether nothing is left behind the event numbered *after*."""
    kind = event.data[:1]
    return kind == SILENT_END or (kind in ENDS and event.number <= after)
