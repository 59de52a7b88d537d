"""What waits, told to every open page as it changes."""

import asyncio
from collections.abc import AsyncIterator, Callable

from gatepost.approvals.desk import Desk
from gatepost.approvals.herald import TOPIC
from gatepost.approvals.request import Request
from gatepost.chore import always
from gatepost.stores.api import Following, Relay, StoreUnavailable

POLL_S = 1.0
"""The relay may lose a message: how long a page may be behind then."""

Waiting = tuple[Request, ...] | None
"""What waits, the oldest first; None while the store does not answer."""


class Live:
    """
    Looks at what waits for as long as somebody has a page open that shows it.

    One look at the store is for all pages of a tenant.
    """

    def __init__(self, desk: Desk, relay: Relay, *, poll_s: float = POLL_S) -> None:
        self._desk, self._relay, self._poll_s = desk, relay, poll_s
        self._rooms: dict[str, _Room] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def watch(self, tenant: str) -> AsyncIterator[Waiting]:
        """What waits now, and again whenever that is something else."""
        room = self._rooms.get(tenant)
        if room is None:
            room = self._rooms[tenant] = _Room()
            room.task = asyncio.create_task(always("live", lambda: self._look(tenant, room)))
        room.visitors += 1
        seen = 0
        try:
            while True:
                while room.version == seen:
                    await room.news.wait()
                seen = room.version
                yield room.waiting
        finally:
            room.visitors -= 1
            if not room.visitors:
                self._close(tenant, room)

    def _close(self, tenant: str, room: "_Room") -> None:
        if self._rooms.get(tenant) is room:
            del self._rooms[tenant]
        if room.task is not None:
            room.task.cancel()
            self._closing.add(room.task)
            room.task.add_done_callback(self._closing.discard)

    async def _look(self, tenant: str, room: "_Room") -> None:
        wake = asyncio.Event()
        following: Following | None = None
        try:
            while True:
                wake.clear()
                try:
                    if following is None:
                        following = await self._follow(tenant, wake.set)
                    room.tell(tuple(await self._desk.waiting(tenant)))
                except StoreUnavailable:
                    room.tell(None)
                try:
                    async with asyncio.timeout(self._poll_s):
                        await wake.wait()
                except TimeoutError:
                    continue
        finally:
            if following is not None:
                await following.aclose()

    async def _follow(self, tenant: str, wake: Callable[[], None]) -> Following | None:
        try:
            return await self._relay.of(tenant).follow(TOPIC, lambda _: wake())
        except StoreUnavailable:
            return None  # we look every second anyway


class _Room:
    """The visitors of one tenant who look at what waits."""

    def __init__(self) -> None:
        self.visitors, self.version = 0, 0
        self.waiting: Waiting = None
        self.news = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def tell(self, waiting: Waiting) -> None:
        """Wake everybody when it is something else."""
        if self.version and waiting == self.waiting:
            return
        self.waiting = waiting
        self.version += 1
        self.news.set()
        self.news = asyncio.Event()
