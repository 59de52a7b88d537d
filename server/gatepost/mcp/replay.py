"""GET with `Last-Event-ID`: the rest of an answer whose connection was lost (S-12)."""

import secrets

from gatepost.mcp.channel import Channel
from gatepost.mcp.exchange import Exchange
from gatepost.mcp.jsonrpc import INVALID_REQUEST, Refused
from gatepost.mcp.resumption import ENDS, EVENT_ID, MARK, SILENT_END, frame
from gatepost.mcp.room import Room, Shelf, Signal
from gatepost.stores.api import Event
from gatepost.streams import Streams

# The same for an id that never was, one of another session, and one whose events are gone; and no
# 404, which would end the session for its client (DE-22).
NO_SUCH_EVENT = Refused(
    INVALID_REQUEST, "There is nothing to be had after this event", legacy_status=400
)


class Replay(Channel):
    """
    Sends what a lost connection missed, and goes on with what comes until the response.

    The events stand in the stream's journal, wherever its request runs; word of new ones is only
    a reason to look sooner.
    """

    patience_s = 1.0

    def __init__(self, exchange: Exchange, room: Room, streams: Streams, event_id: bytes) -> None:
        super().__init__(exchange, room, streams)
        match = EVENT_ID.fullmatch(event_id.decode("latin-1"))
        if match is None:
            raise NO_SUCH_EVENT
        self._stream = match[1]
        self._after = int(match[2])
        self._me = secrets.token_hex(8)
        self._shelf: Shelf = room.shelf(self._stream)

    async def replay(self) -> None:
        """Serve the rest of the stream; raises Refused when there is none."""
        # From one before: whether the last event that the client has ended the stream.
        known = await self._read(max(self._after - 1, 0))
        if known is None:
            known = await self._read(self._after)
        if known is None or any(_ends_before(event, self._after) for event in known):
            raise NO_SUCH_EVENT
        await self.hold()

    async def begin(self) -> None:
        """Make the connection that had the stream let go of it."""
        await self.room.tell("resume", self._stream, self._me)

    async def turn(self) -> bool:
        """Send what was written since."""
        events = await self._read(self._after)
        for event in events or ():
            if self._over:
                return False
            self._after = event.number
            kind, data = event.data[:1], event.data[1:]
            if kind == SILENT_END:
                return False
            if kind != MARK:
                await self.write(frame(data, f"{self._stream}-{event.number}"))
            if kind in ENDS:
                return False
        # A journal that is gone has lost its process: the client asks again, and is told.
        return events is not None

    async def wanted(self) -> bool:
        """Whether the session lives."""
        return not (await self.room.look()).ended

    def hear(self, signal: Signal) -> None:
        """New events are a reason to look; another connection for the stream ends this one."""
        if signal.about != self._stream:
            return
        if signal.kind == "event":
            self.stir()
        elif signal.kind == "resume" and signal.by != self._me:
            self.end()

    async def _read(self, after: int) -> list[Event] | None:
        return await self._shelf.relay.read(self._shelf.name, after)


def _ends_before(event: Event, after: int) -> bool:
    """Whether nothing is left behind the event numbered *after*."""
    kind = event.data[:1]
    return kind == SILENT_END or (kind in ENDS and event.number <= after)
