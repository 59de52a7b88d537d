"""The number of requests that run at one upstream at once."""

import asyncio
from collections import deque

from gatepost.upstreams.connection import ConnectionFailure

WAIT_S = 5.0
"""How long a request waits until another one ends."""
WAITING = 4
"""How many requests wait for each that may run."""


class UpstreamConcurrency:
    """Admits requests in the order of their arrival; a refused one was not sent."""

    def __init__(self, server: str, most: int, *, wait_s: float = WAIT_S) -> None:
        self._server, self._most, self._wait_s = server, max(most, 1), wait_s
        self._running = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        """Wait for admission; raises ConnectionFailure("overloaded")."""
        if self._running < self._most and not self._waiters:
            self._running += 1
            return
        if len(self._waiters) >= self._most * WAITING:
            raise self._overloaded()
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(self._wait_s):
                await waiter
        except (TimeoutError, asyncio.CancelledError) as error:
            if waiter.done() and not waiter.cancelled():
                self.release()  # it was admitted in the same moment
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            if isinstance(error, TimeoutError):
                raise self._overloaded() from None
            raise

    def resume(self) -> None:
        """Count a request again whose admission was released while the upstream waited for us."""
        self._running += 1

    def release(self) -> None:
        """End an admission, and pass it to the next that waits."""
        self._running -= 1
        while self._waiters and self._running < self._most:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._running += 1
                waiter.set_result(None)

    def _overloaded(self) -> ConnectionFailure:
        return ConnectionFailure(
            "overloaded",
            f"Too many requests to the MCP server {self._server} run at once: wait.",
            retry_after_s=1,
        )
