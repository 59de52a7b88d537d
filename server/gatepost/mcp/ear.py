"""What one running request of a session hears from other processes."""

import asyncio
import contextlib
from collections.abc import Coroutine
from functools import cached_property

from gatepost.mcp.room import Hear, Room, Signal
from gatepost.stores.api import Following, StoreUnavailable
from gatepost.tools.attend import Stop


class Ear:
    """
    A request's ear on its session; opened only when there is something to hear for.

    Where the relay does not answer there is nothing to hear: the request goes on, deaf.
    """

    # Most requests are over before there is anything to hear for.
    _following: Following | None = None
    _stop: Stop | None = None
    _opened = False
    _closed = False

    def __init__(self, room: Room, identity: bytes) -> None:
        self.room = room
        self.identity = identity
        """The request's id, as JSON."""

    @cached_property
    def _ears(self) -> list[Hear]:
        return []

    @cached_property
    def _turn(self) -> asyncio.Lock:
        return asyncio.Lock()

    @cached_property
    def _tasks(self) -> set[asyncio.Task[None]]:
        return set()

    async def open(self, hear: Hear) -> None:
        """Let *hear* have what is told from now on."""
        self._ears.append(hear)
        await self._open()

    def mute(self, hear: Hear) -> None:
        """Let it have no more."""
        self._ears.remove(hear)

    def attend(self, stop: Stop) -> None:
        """Pull *stop* when the request is cancelled or its session ended, also if that is past."""
        self._stop = stop
        self._soon(self._catch_up())

    def close(self) -> None:
        """Hear no more; nobody waits for the relay to agree."""
        self._closed = True
        self._stop = None
        if self._opened:
            self._soon(self._close())

    async def _open(self) -> None:
        self._opened = True
        with contextlib.suppress(StoreUnavailable):
            async with self._turn:
                if self._following is None and not self._closed:
                    self._following = await self.room.follow(self._hear)

    async def _catch_up(self) -> None:
        await self._open()
        with contextlib.suppress(StoreUnavailable):
            # What was told before we listened left a note, or an ended session, behind.
            cancelled = await self.room.collect("cancel", self.identity.decode()) is not None
            if cancelled or (await self.room.look()).ended:
                self._pull()

    async def _close(self) -> None:
        async with self._turn:
            following, self._following = self._following, None
        if following is not None:
            await following.aclose()

    def _hear(self, signal: Signal) -> None:
        if signal.kind == "end":
            self._pull()
        elif signal.kind == "cancel" and signal.about == self.identity.decode():
            self._cancel()
        for hear in tuple(self._ears):
            hear(signal)

    def _cancel(self) -> None:
        if self._stop is not None:
            self._stop.pull()
            # Without its note: a client that uses an id again means another request.
            self._soon(self._forget())

    async def _forget(self) -> None:
        with contextlib.suppress(StoreUnavailable):
            await self.room.collect("cancel", self.identity.decode())

    def _pull(self) -> None:
        if self._stop is not None:
            self._stop.pull()

    def _soon(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
