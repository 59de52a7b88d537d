"""A GET that stays open, and why it ends."""

import asyncio
import contextlib
from abc import ABC, abstractmethod

from gatepost.mcp.exchange import Exchange
from gatepost.mcp.room import Room, Signal
from gatepost.mcp.stream import HEADERS
from gatepost.stores.api import StoreUnavailable
from gatepost.streams import Streams

LOOK_EVERY = 3
"""Beats after which a stream asks the store whether it is still wanted: word of it may be lost."""


class Channel(ABC):
    """
    One open GET of a session.

    It ends when the client hangs up, its token is over, its session ends, another connection takes
    its place, or the server stops. Each write waits until the client takes it; what has to wait
    meanwhile is for `turn` to bound.
    """

    def __init__(self, exchange: Exchange, room: Room, streams: Streams) -> None:
        self.caller = exchange.caller
        self.room = room
        self._exchange = exchange
        self._streams = streams
        self._wake = asyncio.Event()
        self._over = False
        self._beats = 0
        self._owed = False

    @abstractmethod
    async def begin(self) -> None:
        """Called once, with the ear open and before anything is sent."""

    @abstractmethod
    async def turn(self) -> bool:
        """Write what there is to say; False when nothing more will come."""

    @abstractmethod
    async def wanted(self) -> bool:
        """Whether the store still knows of this stream."""

    @abstractmethod
    def hear(self, signal: Signal) -> None:
        """Take what another part of the session tells."""

    patience_s: float | None = None
    """How long to wait for a reason to take the next turn; None: until there is one."""

    def stir(self) -> None:
        """There may be something to say."""
        self._wake.set()

    def beat(self) -> None:
        """Show the client that the connection lives."""
        self._owed = True
        self._wake.set()

    def end(self) -> None:
        """Close at the next opportunity."""
        self._over = True
        self._wake.set()

    async def hold(self) -> None:
        """Serve the stream to its end; raises TooMany or Closing before anything was sent."""
        self._streams.enter(self)
        try:
            following = await self.room.follow(self._hear)
            try:
                await self.begin()
                await self._serve()
            finally:
                await following.aclose()
        finally:
            self._streams.leave(self)

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send bytes of the stream; waits for a client that reads slowly."""
        message = {"type": "http.response.body", "body": data, "more_body": more}
        await self._exchange.send(message)

    async def _serve(self) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": HEADERS.copy()}
        await self._exchange.send(start)
        # Without a first byte some proxies hold the head back.
        await self.write(b":\n\n")
        gone = asyncio.get_running_loop().create_task(self._until_gone())
        # The stream just ends; the client may come back and finds another process.
        with contextlib.suppress(StoreUnavailable):
            await self._take_turns()
        gone.cancel()
        await self.write(b"", more=False)

    async def _take_turns(self) -> None:
        while not self._over:
            self._wake.clear()
            if not await self.turn():
                return
            if self._owed:
                await self._keep_alive()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self.patience_s)

    async def _keep_alive(self) -> None:
        self._owed = False
        self._beats += 1
        if self._beats % LOOK_EVERY == 0 and not await self.wanted():
            self.end()
            return
        await self.write(b":\n\n")

    async def _until_gone(self) -> None:
        while (await self._exchange.receive())["type"] != "http.disconnect":
            pass
        self.end()

    def _hear(self, signal: Signal) -> None:
        if signal.kind == "end":
            self.end()
        self.hear(signal)
