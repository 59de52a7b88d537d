"""The GET stream of a session: what belongs to no request (S-09 to S-11)."""

import secrets
from contextlib import ExitStack
from typing import Any

import msgspec

from gatepost.changes import Change, Interest
from gatepost.mcp.held import Held
from gatepost.mcp.jsonrpc import notification
from gatepost.mcp.room import Room, Signal
from gatepost.mcp.server import Server
from gatepost.mcp.stream import frame
from gatepost.stores.api import SessionRecord
from gatepost_authz.caller import TenantContext


async def open_listener(server: Server, caller: TenantContext, room: Room) -> "Listener":
    """Take the place of the session's listener; raises Refused."""
    listener = Listener(server, caller, room)
    with ExitStack() as undo:
        undo.callback(listener.leave)
        await listener.enter()
        listener.interest = await server.feed.follow(caller.tenant_id, listener.changed)
        if (await room.revise(listener.in_force)).ended:
            listener.end()
        await room.tell("listen", listener.name)
        undo.pop_all()
    return listener


class Listener(Held):
    """
    Tells one session's client what changes.

    The newest of a session is the one that is told (S-11); the others end when they hear of it. A
    change that waits to be read is not told twice, and documents are told of only as far as they
    are subscribed to, so that nothing grows behind a slow reader.
    """

    __slots__ = ("_heard", "_known", "_new", "_server", "interest", "name")

    def __init__(self, server: Server, caller: TenantContext, room: Room) -> None:
        super().__init__(caller, room, server.streams)
        self._server = server
        self.name = secrets.token_urlsafe(12)
        self.interest: Interest | None = None
        self._new: dict[Change, None] = {}
        self._heard = self._known = 0
        """How often the subscriptions became different, and how many of those times we know of."""

    def in_force(self, record: SessionRecord) -> SessionRecord:
        """The session's record with this as its listener."""
        return msgspec.structs.replace(record, listener=self.name)

    def changed(self, change: Change) -> None:
        """Take a change; tasks are of an extension that these revisions do not have."""
        if change.what == "task" or change in self._new:
            return
        watched = change.what != "document" or self.is_behind
        if not watched and change.name not in self.room.record.subscriptions:
            return
        self._new[change] = None
        self._streams.wake(self)

    def next_frame(self) -> bytes | None:
        """See `Held`."""
        while self._new:
            change = next(iter(self._new))
            del self._new[change]
            if change.what != "document":
                return _said(f"{change.what}/list_changed", {})
            watched = change.name in self.room.record.subscriptions
            if watched and self._server.may_read(self.caller, change.name):
                return _said("resources/updated", {"uri": change.name})
        return None

    @property
    def is_behind(self) -> bool:
        """See `Held`; the subscriptions are different."""
        return self._heard != self._known

    async def catch_up(self) -> None:
        """See `Held`; behind until the store has answered, or what changes meanwhile is lost."""
        heard = self._heard
        await self.room.look()
        self._known = heard

    async def wanted(self) -> bool:
        """Whether this is still the listener of a session that lives."""
        record = await self.room.look()
        return not record.ended and record.listener == self.name

    @property
    def watches(self) -> bool:
        """See `Line`."""
        return bool(self.room.record.subscriptions) or self.is_behind

    def hear(self, signal: Signal) -> None:
        """Another listener, anywhere, ends this one; subscriptions may be different now."""
        super().hear(signal)
        if signal.kind == "listen" and signal.about != self.name:
            self.end()
        elif signal.kind == "watch":
            self._heard += 1
            self._streams.wake(self)

    def release(self) -> None:
        """See `Held`."""
        super().release()
        if self.interest is not None:
            self.interest.end()


def _said(what: str, params: Any) -> bytes:
    return frame(notification(f"notifications/{what}", params))
