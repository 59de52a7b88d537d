"""Time that passes when a test says so."""

import asyncio
import heapq
import itertools
from collections.abc import Callable


class Clock:
    """
    Seconds for a `KeySet` and whoever else takes ``monotonic`` and ``sleep``.

    `advance` wakes sleepers in order and lets what they do run before going on.
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Let so many seconds pass."""
        end = self.now + seconds
        await settled()
        while self._sleepers and self._sleepers[0][0] <= end:
            self.now, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)
                await settled()
        self.now = end
        await settled()


async def settled() -> None:
    """Let everything run that can run without time passing or the network answering."""
    for _ in range(20):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    """Return once *condition* holds, for what another thread has to do; within ten seconds."""
    async with asyncio.timeout(10):
        while not condition():
            await settled()
