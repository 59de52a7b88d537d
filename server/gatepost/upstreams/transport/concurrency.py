"""Limit the requests that run at one upstream at once; those that wait for the client pause."""

import asyncio
from collections import Counter

from gatepost.upstreams.connection import ConnectionFailure
from gatepost.upstreams.transport.exchange_timeouts import ExchangeTimeouts

WAIT_S = 5.0
"""How long a request waits until another one ends."""
WAITING_PER_RUNNING = 4
"""The number of requests that may wait for each that may run."""
RESERVED = 4
"""One in this many requests is kept for callers other than the one that uses all others."""

ConcurrencyKey = tuple[str, ...] | None


class UpstreamConcurrency:
    """
    Admits requests in the order of their arrival; a refused one was not sent.

    One caller gets at most three quarters of the running and of the waiting requests, so that its
    slow requests leave room for others. None stands for requests without a caller, which fetch
    catalogues.
    """

    def __init__(self, server: str, max_requests: int, *, wait_s: float = WAIT_S) -> None:
        self._server, self._max_requests, self._wait_s = server, max(max_requests, 1), wait_s
        self._share = self._max_requests - self._max_requests // RESERVED
        self._running = 0
        self._of_caller: Counter[ConcurrencyKey] = Counter()
        self._waiters: dict[asyncio.Future[None], ConcurrencyKey] = {}
        """In the order of arrival; each request that may run is admitted at once."""

    async def acquire(self, caller: ConcurrencyKey = None) -> None:
        """Wait for admission; raises ConnectionFailure("overloaded")."""
        if self._running < self._max_requests and self._has_share(caller):
            self._admit(caller)
            return
        waiting = list(self._waiters.values())
        max_running = self._max_requests if caller is None else self._share
        if (
            len(waiting) >= self._max_requests * WAITING_PER_RUNNING
            or waiting.count(caller) >= max_running * WAITING_PER_RUNNING
        ):
            raise self._overloaded()
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = caller
        try:
            async with asyncio.timeout(self._wait_s):
                await waiter
        except (TimeoutError, asyncio.CancelledError) as error:
            if waiter.done() and not waiter.cancelled():
                self.release(caller)  # it was admitted at the same moment
            else:
                self._waiters.pop(waiter, None)
            if isinstance(error, TimeoutError):
                raise self._overloaded() from None
            raise

    def resume(self, caller: ConcurrencyKey = None) -> None:
        """Count a request again whose admission was released while the upstream waited for us."""
        self._admit(caller)

    def release(self, caller: ConcurrencyKey = None) -> None:
        """End an admission, and pass it to the next that waits and may run."""
        self._running -= 1
        self._of_caller[caller] -= 1
        if self._of_caller[caller] == 0:
            del self._of_caller[caller]
        for waiter, waiting in list(self._waiters.items()):
            if self._running >= self._max_requests:
                return
            if waiter.done():
                del self._waiters[waiter]
            elif self._has_share(waiting):
                del self._waiters[waiter]
                self._admit(waiting)
                waiter.set_result(None)

    def _admit(self, caller: ConcurrencyKey) -> None:
        self._running += 1
        self._of_caller[caller] += 1

    def _has_share(self, caller: ConcurrencyKey) -> bool:
        return caller is None or self._of_caller[caller] < self._share

    def _overloaded(self) -> ConnectionFailure:
        return ConnectionFailure(
            "overloaded",
            f"Too many requests to the MCP server {self._server} run at once: wait.",
            retry_after_s=1,
        )


class OpenClientRequests:
    """
    The requests of an upstream that wait for an answer, during one request to it.

    The upstream does nothing while a person decides, so its clock stops and another request may
    run.
    """

    def __init__(
        self, timeouts: ExchangeTimeouts, concurrency: UpstreamConcurrency, caller: ConcurrencyKey
    ) -> None:
        self._timeouts, self._concurrency, self._caller = timeouts, concurrency, caller
        self._open: set[int | str] = set()

    def ask(self, identity: int | str) -> None:
        """Take note of a request."""
        if identity not in self._open:
            self._open.add(identity)
            self._timeouts.pause()
            self._concurrency.release(self._caller)

    def take(self, identity: int | str) -> bool:
        """Return whether a request was open, which it is no longer."""
        if identity not in self._open:
            return False
        self._open.discard(identity)
        self._concurrency.resume(self._caller)
        return True

    def close(self) -> None:
        """Answer none of the others."""
        for _ in self._open:
            self._concurrency.resume(self._caller)
        self._open.clear()
