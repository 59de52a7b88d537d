"""What a session holds open with GET, and why that ends."""

import asyncio
from abc import abstractmethod

from gatepost.mcp.jsonrpc import INTERNAL_ERROR, RATE_LIMITED, Refused
from gatepost.mcp.line import Line
from gatepost.mcp.room import Room, Signal
from gatepost.mcp.stream import SIGN_OF_LIFE
from gatepost.stores.api import Following, StoreUnavailable
from gatepost.streams import Closing, Streams, TooMany
from gatepost_authz.caller import TenantContext

LOOK_EVERY = 3
"""Beats after which a stream asks the store whether it is still wanted: word of it may be lost."""

# What limits refuse is no login failure and no lost session.
CROWDED = Refused(
    RATE_LIMITED,
    "Too many streams are open",
    legacy_status=429,
    headers=((b"retry-after", b"10"),),
)
STOPPING = Refused(
    INTERNAL_ERROR,
    "The server is about to stop",
    legacy_status=503,
    headers=((b"retry-after", b"1"),),
)


class Held(Line):
    """
    One GET of a session.

    It ends when the client hangs up, its token is over, its session ends, another connection takes
    its place, or the server stops; and where the stores do not answer, because nobody could tell.
    """

    __slots__ = ("_beats", "_following", "_tasks", "room")

    def __init__(self, caller: TenantContext, room: Room, streams: Streams) -> None:
        super().__init__(caller, streams)
        self.room = room
        self._beats = 0
        self._following: Following | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def wanted(self) -> bool:
        """Whether the store still knows of this stream."""

    @abstractmethod
    def next_frame(self) -> bytes | None:
        """See `Line.news`; asked only while the token is good and nothing must be looked up."""

    @property
    @abstractmethod
    def is_behind(self) -> bool:
        """Whether `catch_up` has something to do."""

    @abstractmethod
    async def catch_up(self) -> None:
        """Read what there is to read at the stores; raises StoreUnavailable."""

    def hear(self, signal: Signal) -> None:
        """Take what another part of the session tells."""
        if signal.kind == "end":
            self.end()

    async def enter(self) -> None:
        """Take a place, and hear of the session from now on; raises Refused."""
        try:
            self._streams.enter(self)
        except TooMany:
            raise CROWDED from None
        except Closing:
            raise STOPPING from None
        self._following = await self.room.follow(self.hear)

    def news(self) -> bytes | None:
        """See `Line`."""
        if self.must_look_up:
            return None
        if self._streams.is_over(self.caller):
            self.end()
            return None
        return self.next_frame()

    @property
    def must_look_up(self) -> bool:
        """See `Line`."""
        return self.is_behind or self._beats >= LOOK_EVERY

    async def look_up(self) -> None:
        """See `Line`."""
        try:
            if self._beats >= LOOK_EVERY:
                self._beats = 0
                if not await self.wanted():
                    self.end()
            if self.is_behind:
                await self.catch_up()
        except StoreUnavailable:
            self.end()

    def beat(self) -> None:
        """See `Line`."""
        self._beats += 1
        super().beat()

    def greeting(self) -> bytes:
        """See `Line`; some proxies hold the head back until there is more."""
        return SIGN_OF_LIFE

    def farewell(self) -> bytes:
        """See `Line`; the client comes back and finds another process, or a reason not to."""
        return b""

    def release(self) -> None:
        """See `Line`."""
        if self._following is not None:
            # Whoever hangs up must not wait for the relay to agree.
            task = asyncio.get_running_loop().create_task(self._following.aclose())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._following = None

    def leave(self) -> None:
        """Give up before anything was sent."""
        self._streams.leave(self)
        self.release()
