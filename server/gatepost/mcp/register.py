"""What this process knows of the sessions whose requests it serves."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from gatepost.mcp.legacy import Session
from gatepost.mcp.room import Edit, Room, Signal
from gatepost.stores.api import Following, Records, Relay, SessionRecord, StoreUnavailable

MOST = 5000
# As long as an end or a new level may go unheard where word of it is lost.
GOOD_S = 10.0
IDLE_S = 300.0

Place = tuple[str, bytes]


class Entry:
    """One session, whose record is good until it is said to be different."""

    __slots__ = ("following", "room", "stale", "until", "used")

    def __init__(self, room: Room) -> None:
        self.room = room
        self.until = self.used = 0.0
        self.stale = True
        self.following: Following | None = None

    def hear(self, signal: Signal) -> None:
        """Take what another part of the session tells."""
        if signal.kind in ("end", "watch"):
            self.stale = True


class Register:
    """
    The records of sessions in use, read once instead of for every request.

    Reading one costs more than an ordinary call. Who changes a record tells the session's parts,
    of which this is one at every process; what nobody asked for in a while is forgotten.
    """

    def __init__(
        self, records: Records, relay: Relay, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._records = records
        self._relay = relay
        self._clock = clock
        self._entries: OrderedDict[Place, Entry] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._entries)

    async def room(self, tenant: str, session: Session) -> Room | None:
        """The room of a session; None when it was ended, here or anywhere."""
        place = (tenant, session.key)
        now = self._clock()
        entry = self._entries.get(place)
        if entry is None:
            entry = await self._enter(place, session)
        else:
            self._entries.move_to_end(place)
        entry.used = now
        room = entry.room
        if entry.stale or now >= entry.until:
            # Good for nobody while it is read; what is told meanwhile makes it stale again.
            entry.until, entry.stale = 0.0, entry.following is None
            await room.look()
            entry.until = now + GOOD_S
        if room.record.ended:
            self._drop(place)
            return None
        return room

    async def revise(self, tenant: str, session: Session, change: Edit) -> None:
        """Change what a session remembers, durably, and let all its parts know."""
        room = await self.room(tenant, session)
        if room is not None:
            await room.revise(change)
            self.changed(tenant, session)
            # The session's stream may be at another process.
            await room.tell("watch")

    def changed(self, tenant: str, session: Session) -> None:
        """The record is different now; said here at once, and by the relay elsewhere."""
        entry = self._entries.get((tenant, session.key))
        if entry is not None:
            entry.stale = True

    async def aclose(self) -> None:
        """Hear no more."""
        for place in tuple(self._entries):
            self._drop(place)
        await asyncio.gather(*self._closing)

    async def _enter(self, place: Place, session: Session) -> Entry:
        tenant, _ = place
        sessions, relay = self._records.of(tenant).sessions, self._relay.of(tenant)
        entry = Entry(Room(session, SessionRecord(), sessions=sessions, relay=relay))
        entry.used = self._clock()
        try:
            entry.following = await entry.room.follow(entry.hear)
        except StoreUnavailable:
            return entry  # unheard of changes: read again for each request
        if (other := self._entries.get(place)) is not None:
            self._close(entry)
            return other
        self._entries[place] = entry
        self._make_room()
        return entry

    def _make_room(self) -> None:
        quiet = self._clock() - IDLE_S
        for place in tuple(islice(self._entries, 2)):
            # Two for one that comes: what is idle goes sooner than it came.
            if len(self._entries) > MOST or self._entries[place].used < quiet:
                self._drop(place)

    def _drop(self, place: Place) -> None:
        entry = self._entries.pop(place, None)
        if entry is not None:
            self._close(entry)

    def _close(self, entry: Entry) -> None:
        following, entry.following = entry.following, None
        # Whoever holds it still reads for itself from now on.
        entry.stale = True
        if following is not None:
            task = asyncio.get_running_loop().create_task(following.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
