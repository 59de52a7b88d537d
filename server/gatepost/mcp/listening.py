"""The GET stream of a session: what belongs to no request (S-09 to S-11)."""

import secrets

import msgspec

from gatepost.changes import Change, Feed
from gatepost.mcp.channel import Channel
from gatepost.mcp.exchange import Exchange
from gatepost.mcp.jsonrpc import notification
from gatepost.mcp.resumption import frame
from gatepost.mcp.room import Room, Signal
from gatepost.stores.api import SessionRecord
from gatepost.streams import Streams

MOST_WAITING = 500
"""Different changes that may wait for a client to read; who lags more behind is cut off."""


class Listener(Channel):
    """
    Tells one session's client what changes.

    The newest of a session is the one that is told (S-11); the others end when they hear of it. A
    change that waits to be read is not told twice, so that nothing grows behind a slow reader.
    """

    def __init__(self, exchange: Exchange, room: Room, streams: Streams, *, feed: Feed) -> None:
        super().__init__(exchange, room, streams)
        self.name = secrets.token_urlsafe(12)
        self._feed = feed
        self._waiting: dict[Change, None] = {}

    async def listen(self) -> None:
        """Take the place of the session's listener and serve to the end."""
        interest = await self._feed.follow(self.caller.tenant_id, self._changed)
        try:
            await self.hold()
        finally:
            interest.end()

    async def begin(self) -> None:
        """Tell the others that this is the listener now."""
        await self.room.revise(self._listens)
        await self.room.tell("listen", self.name)

    async def turn(self) -> bool:
        """Send the changes that wait."""
        while self._waiting and not self._over:
            change = next(iter(self._waiting))
            del self._waiting[change]
            await self._tell(change)
        return True

    async def send(self, method: str, params: object) -> None:
        """Send one notification."""
        await self.write(frame(notification(method, params), ""))

    async def wanted(self) -> bool:
        """Whether this is still the listener of a session that lives."""
        record = await self.room.look()
        return not record.ended and record.listener == self.name

    def hear(self, signal: Signal) -> None:
        """Another listener, anywhere, ends this one."""
        if signal.kind == "listen" and signal.about != self.name:
            self.end()

    def _changed(self, change: Change) -> None:
        if change.what == "task":
            return  # of an extension that these revisions do not have
        self._waiting[change] = None
        if len(self._waiting) > MOST_WAITING:
            self.end()
        self.stir()

    async def _tell(self, change: Change) -> None:
        if change.what != "document":
            await self.send(f"notifications/{change.what}/list_changed", {})
        elif change.name in (await self.room.look()).subscriptions:
            await self.send("notifications/resources/updated", {"uri": change.name})

    def _listens(self, record: SessionRecord) -> SessionRecord:
        return msgspec.structs.replace(record, listener=self.name)
