"""Keep HTTP connections for further requests, at a cost that does not grow with their number."""

import asyncio
import sys
import time
from collections.abc import Callable
from math import inf

import httpcore2
import httpx2

from gatepost_authz.pooled_connection import PooledConnection

ConnectionOrigin = tuple[bytes, bytes, int]
"""Scheme, host and port."""


class HttpConnectionPool:
    """
    Connections of HTTP/1.1, each of which is used by one request at a time.

    `httpcore2.AsyncConnectionPool` looks at every connection twice for each request, and asks the
    socket of every idle one. *create* makes a connection that opens with its first request and
    knows no time limit of its own.

    While a request waits, there is no idle connection and none may be opened: a connection that
    becomes free goes to the request that has waited longest. `acquire` alone waits, so that no
    cancellation comes between two changes.
    """

    def __init__(
        self, create: Callable[[httpcore2.Origin], PooledConnection], limits: httpx2.Limits
    ) -> None:
        self._create = create
        self._max_open = _or_unlimited(limits.max_connections)
        self._max_idle = _or_unlimited(limits.max_keepalive_connections)
        self._idle_s = inf if limits.keepalive_expiry is None else limits.keepalive_expiry
        self._open: dict[PooledConnection, ConnectionOrigin] = {}
        """Also those that a request is opening."""
        self._idle: dict[PooledConnection, float] = {}
        """The end of each idle connection by the monotonic clock, in the order of last use."""
        self._idle_by_origin: dict[ConnectionOrigin, dict[PooledConnection, None]] = {}
        self._waiting: dict[asyncio.Future[PooledConnection], ConnectionOrigin] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        """Return the number of connections, idle ones included."""
        return len(self._open)

    def __contains__(self, connection: PooledConnection) -> bool:
        """Return whether a connection belongs to the pool, which has not closed it."""
        return connection in self._open

    async def acquire(self, origin: ConnectionOrigin, timeout_s: float | None) -> PooledConnection:
        """
        Return a connection for one request, after which the caller calls `release`.

        Raises PoolTimeout if none becomes free within *timeout_s*, and ConnectError after `close`.
        """
        if self._is_closed:
            raise _closed()
        self._close_expired()
        connection = self._take_idle(origin)
        if connection is not None:
            return connection
        if len(self._open) >= self._max_open and self._idle:
            self._close(self._first_idle())
        if len(self._open) < self._max_open:
            return self._new(origin)
        return await self._next_free(origin, timeout_s)

    def release(self, connection: PooledConnection) -> None:
        """Keep a connection whose response was read completely, and close any other."""
        origin = self._open.get(connection)
        is_usable = origin is not None and connection.is_available()
        first = self._first_waiting()
        if is_usable and first is not None:
            if self._waiting[first] == origin and not connection.has_expired():
                del self._waiting[first]
                first.set_result(connection)
                return
            is_usable = False
        if origin is None or not is_usable:
            self._close(connection)
            self._open_for_waiting()
            return
        self._idle[connection] = time.monotonic() + self._idle_s
        self._idle_by_origin.setdefault(origin, {})[connection] = None
        if len(self._idle) > self._max_idle:
            self._close(self._first_idle())

    def close(self) -> None:
        """Begin to close every connection, also those in use; requests that wait for one fail."""
        self._is_closed = True
        while (first := self._first_waiting()) is not None:
            del self._waiting[first]
            first.set_exception(_closed())
        self._idle.clear()
        self._idle_by_origin.clear()
        for connection in list(self._open):
            self._close(connection)

    async def aclose(self) -> None:
        """Close every connection, and wait until they are closed."""
        self.close()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _next_free(
        self, origin: ConnectionOrigin, timeout_s: float | None
    ) -> PooledConnection:
        free: asyncio.Future[PooledConnection] = asyncio.get_running_loop().create_future()
        self._waiting[free] = origin
        try:
            async with asyncio.timeout(timeout_s):
                return await free
        except (asyncio.CancelledError, TimeoutError) as error:
            self._waiting.pop(free, None)
            if free.done() and not free.cancelled() and free.exception() is None:
                # It was given a connection in the moment of its cancellation.
                self.release(free.result())
            if isinstance(error, TimeoutError):
                raise httpcore2.PoolTimeout("no connection became free") from error
            raise

    def _new(self, origin: ConnectionOrigin) -> PooledConnection:
        connection = self._create(httpcore2.Origin(*origin))
        self._open[connection] = origin
        return connection

    def _open_for_waiting(self) -> None:
        while len(self._open) < self._max_open and (first := self._first_waiting()) is not None:
            first.set_result(self._new(self._waiting.pop(first)))

    def _first_waiting(self) -> asyncio.Future[PooledConnection] | None:
        while self._waiting:
            first = next(iter(self._waiting))
            if not first.done():
                return first
            del self._waiting[first]  # cancelled, which its task has not noticed yet
        return None

    def _take_idle(self, origin: ConnectionOrigin) -> PooledConnection | None:
        """Return the last used of the idle connections that their peer has not closed."""
        while origin in self._idle_by_origin:
            connection = next(reversed(self._idle_by_origin[origin]))
            self._remove_idle(connection)
            if not connection.has_expired():
                return connection
            self._close(connection)
        return None

    def _first_idle(self) -> PooledConnection:
        """Remove and return the idle connection that was not used for longest."""
        connection = next(iter(self._idle))
        self._remove_idle(connection)
        return connection

    def _remove_idle(self, connection: PooledConnection) -> None:
        del self._idle[connection]
        origin = self._open[connection]
        del self._idle_by_origin[origin][connection]
        if not self._idle_by_origin[origin]:
            del self._idle_by_origin[origin]

    def _close_expired(self) -> None:
        now = time.monotonic()
        while self._idle and next(iter(self._idle.values())) < now:
            self._close(self._first_idle())

    def _close(self, connection: PooledConnection) -> None:
        """Close a connection in a task, which does not end if a request is cancelled."""
        self._open.pop(connection, None)
        closing = asyncio.ensure_future(connection.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


def _or_unlimited(count: int | None) -> int:
    return sys.maxsize if count is None else count


def _closed() -> httpcore2.ConnectError:
    return httpcore2.ConnectError("the connections were closed")
