"""Pass the changes that an upstream announces to their followers in this process."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

from gatepost.upstreams.connection import ConnectionFailure, UpstreamNotification

MAX_WAITING = 256
"""The number of notifications that wait for one follower; it misses further ones."""


class AnnouncementQueue:
    """The waiting notifications for one follower, each kind once."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], UpstreamNotification] = {}
        self._filled = asyncio.Event()
        self._failure: ConnectionFailure | None = None

    def put(self, notification: UpstreamNotification) -> None:
        """Add a notification."""
        key = (notification.method, str(notification.params.get("uri", "")))
        if key in self._waiting or len(self._waiting) < MAX_WAITING:
            self._waiting[key] = notification
        self._filled.set()

    def end(self, failure: ConnectionFailure) -> None:
        """End the iteration with a failure, after what waits."""
        self._failure = failure
        self._filled.set()

    async def __aiter__(self) -> AsyncGenerator[UpstreamNotification, None]:
        while True:
            await self._filled.wait()
            while self._waiting:
                yield self._waiting.pop(next(iter(self._waiting)))
            if self._failure is not None:
                raise self._failure
            self._filled.clear()


class Announcements:
    """Passes each notification to all followers."""

    def __init__(self) -> None:
        self._queues: set[AnnouncementQueue] = set()

    @contextmanager
    def following(self) -> Iterator[AnnouncementQueue]:
        """Return a queue that is filled for the duration of the block."""
        queue = AnnouncementQueue()
        self._queues.add(queue)
        try:
            yield queue
        finally:
            self._queues.discard(queue)

    def publish(self, notification: UpstreamNotification) -> None:
        """Add a notification to every queue."""
        for queue in self._queues:
            queue.put(notification)

    def end(self, failure: ConnectionFailure) -> None:
        """End every iteration."""
        for queue in self._queues:
            queue.end(failure)
