"""Bound how long a request waits for an upstream: in total, and without any message."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ExchangeTimeouts:
    """
    The two timeouts of one request: in total, and without any message.

    Only the time inside `waiting` counts; between two waits the receiver works on a message. A
    request of the upstream suspends both timeouts until it is answered, because a person may have
    to think about it.
    """

    def __init__(self, timeout_s: float, idle_s: float) -> None:
        self._remaining_s, self._idle = timeout_s, idle_s
        self._timer: asyncio.Timeout | None = None
        self._since = 0.0
        self._open = 0
        self.stopped = False
        """Whether `stop` ended the wait."""

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Raise TimeoutError when a timeout ends, or after `stop`."""
        if self.stopped:
            raise TimeoutError
        self._since = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._limit()) as self._timer:
                yield
        finally:
            self._timer = None
            self._spend()

    def pause(self) -> None:
        """Suspend the timeouts, because the upstream waits for an answer."""
        self._open += 1

    def resume(self) -> None:
        """Continue the timeouts once every request of the upstream is answered."""
        if self._open == 0:
            return
        self._spend()
        self._open -= 1
        if self._timer is not None and self._open == 0:
            limit = self._limit()
            deadline = None if limit is None else asyncio.get_running_loop().time() + limit
            self._timer.reschedule(deadline)

    def stop(self) -> None:
        """End the wait, now and for ever."""
        self.stopped = True
        if self._timer is not None:
            self._timer.reschedule(asyncio.get_running_loop().time())

    def _limit(self) -> float | None:
        return None if self._open else max(min(self._remaining_s, self._idle), 0.0)

    def _spend(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self._open:
            self._remaining_s -= now - self._since
        self._since = now
