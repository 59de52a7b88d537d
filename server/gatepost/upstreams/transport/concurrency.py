"""The number of requests that run at one upstream at once, and the questions that pause them."""

import asyncio
from collections import deque

from gatepost.upstreams.connection import ConnectionFailure
from gatepost.upstreams.transport.clock import ExchangeClock

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


class OpenQuestions:
    """
    The requests of an upstream that wait for an answer, during one request to it.

    The upstream does nothing while a person decides, so its clock stops and another request may
    run.
    """

    def __init__(self, clock: ExchangeClock, concurrency: UpstreamConcurrency) -> None:
        self._clock, self._concurrency = clock, concurrency
        self._open: set[int | str] = set()

    def ask(self, identity: int | str) -> None:
        """Take note of a request."""
        if identity not in self._open:
            self._open.add(identity)
            self._clock.asked()
            self._concurrency.release()

    def take(self, identity: int | str) -> bool:
        """Return whether a request was open, which it is no longer."""
        if identity not in self._open:
            return False
        self._open.discard(identity)
        self._concurrency.resume()
        return True

    def close(self) -> None:
        """Answer none of the others."""
        for _ in self._open:
            self._concurrency.resume()
        self._open.clear()
