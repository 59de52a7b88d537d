"""Poll the change counters, with one statement for all subjects that this process follows."""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from gatepost.background import during
from gatepost.storage.entries import NO_TENANT
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records
from gatepost.storage.shared_store import SharedStore, WakeUps

TOPIC = "changes"
POLL_S = 0.5
"""How often a process polls for changes, in seconds, because a notification may be lost."""
RANDOM = random.SystemRandom()

FollowChange = Callable[[int], Awaitable[None]]
"""Called with a subject's counter after each poll; may raise StoreUnavailable."""

log = logging.getLogger(__name__)


class ChangePoller:
    """
    Polls the counters of all subjects, and gives them to those that follow a subject.

    A follower is called after each poll, whether its counter has changed or not. One that takes
    long delays neither the polls nor the other followers; it then gets the newest counter.
    """

    def __init__(self, records: Records, shared_store: SharedStore) -> None:
        self._records = records
        self._wake_ups = WakeUps(partial(shared_store.for_tenant(NO_TENANT).follow, TOPIC))
        self._followers: set[_ChangeFollower] = set()
        self._failing: set[str] = set()

    @asynccontextmanager
    async def following(self, subject: str, take_up: FollowChange) -> AsyncIterator[None]:
        """Give the counter of a subject (`Records.changes`) to *take_up* during a block."""
        follower = _ChangeFollower(subject, take_up)
        self._followers.add(follower)
        try:
            async with during(subject, lambda: self._hand_over(follower)):
                yield
        finally:
            self._followers.discard(follower)
            self._failing.discard(subject)

    @asynccontextmanager
    async def polling(self, followers: Mapping[str, FollowChange]) -> AsyncIterator[None]:
        """Poll during a block, which begins after these followers have taken up a reading."""
        async with AsyncExitStack() as ending:
            for subject, take_up in followers.items():
                await ending.enter_async_context(self.following(subject, take_up))
            if await self._read():
                for follower in tuple(self._followers):
                    await self._take_up(follower)
            await ending.enter_async_context(during("changes", self._poll))
            await ending.enter_async_context(during("change_notifications", self._follow))
            yield

    def wake(self) -> None:
        """Poll at once."""
        self._wake_ups.wake()

    async def _poll(self) -> None:
        while True:
            # Replicas that started together must not poll at the same moment.
            await self._wake_ups.wait(POLL_S * RANDOM.uniform(0.6, 1.0))
            if await self._read():
                for follower in self._followers:
                    follower.polled.set()

    async def _read(self) -> bool:
        """Read all counters; return whether the database answered."""
        with self._noting_outage("changes"):
            counters = await self._records.changes(
                {follower.subject for follower in self._followers}
            )
            for follower in self._followers:
                follower.counter = counters.get(follower.subject, 0)
        return "changes" not in self._failing

    async def _hand_over(self, follower: "_ChangeFollower") -> None:
        while True:
            await follower.polled.wait()
            follower.polled.clear()
            await self._take_up(follower)

    async def _take_up(self, follower: "_ChangeFollower") -> None:
        with self._noting_outage(follower.subject):
            await follower.take_up(follower.counter)

    @contextlib.contextmanager
    def _noting_outage(self, operation: str) -> Iterator[None]:
        """Log the first of several failures, and once when none is left."""
        try:
            yield
        except StoreUnavailable as outage:
            if not self._failing:
                log.warning("changes_not_read", extra={"reason": str(outage)})
            self._failing.add(operation)
            return
        if operation in self._failing:
            self._failing.discard(operation)
            if not self._failing:
                log.info("changes_read_again")

    async def _follow(self) -> None:
        """Subscribe to notifications of changes; without the shared store only the poll remains."""
        # Beside the poll, which must not wait for a shared store that does not answer.
        async with self._wake_ups as wake_ups:
            wake_ups.wake()
            await asyncio.Event().wait()


class _ChangeFollower:
    """The follower of a subject, and the counter that was read last."""

    def __init__(self, subject: str, take_up: FollowChange) -> None:
        self.subject, self.take_up = subject, take_up
        self.counter = 0
        self.polled = asyncio.Event()


async def notify(shared_store: SharedStore) -> None:
    """Let every process poll; one that misses it finds the change with its next poll."""
    with contextlib.suppress(StoreUnavailable):
        await shared_store.for_tenant(NO_TENANT).publish(TOPIC, b"")
