"""Accept connections: end idle ones to make room for new ones, and reset none."""

import asyncio
import errno
import heapq
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Collection
from operator import itemgetter
from typing import Any, Protocol

from gatepost.http.file_descriptors import DescriptorLimits
from gatepost_authz.ratelimited import RateLimitedLog

QUEUE = 2048
"""Maximum number of connections that wait to be accepted."""
LAST_HANDSHAKES_S = 0.5
"""
How long handshakes may continue when the server stops: a client sends its request at the end of its
handshake.
"""
ACCEPTS_PER_TURN = 16
"""The connections that are accepted in one turn; other workers accept the rest."""
LOOKED_UP = 256
"""The idle connections that one search through all connections finds."""
AGAIN_S = 0.1
IDLE_S = 1.0
"""A connection that is idle for less time may have its next request on the way."""
CLIENT_GONE = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EINTR, errno.EAGAIN})
"""The errors of accept(2) for a client that has left already, and for an empty queue."""

_log = logging.getLogger(__name__)


class IdleConnection(Protocol):
    """A connection that may be idle."""

    transport: asyncio.Transport

    def idle_since(self) -> float | None:
        """Return since when no request is running; None while one is."""


class Acceptor:
    """
    Accepts the connections of one listening socket, as an `asyncio.Server` would.

    If no descriptor is left, libuv accepts a connection and closes it without an error. This class
    ends the oldest idle connection when the descriptors run out. If no connection is idle, new
    clients wait in the socket's queue until there is room.
    """

    def __init__(
        self,
        sock: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        connections: Collection[Any],
        *,
        descriptors: DescriptorLimits,
        tls: ssl.SSLContext | None = None,
        handshake_s: float | None = None,
    ) -> None:
        self._sock = sock
        self._protocol = protocol
        self._connections: Collection[IdleConnection] = connections
        self._descriptors = descriptors
        self._tls, self._handshake_s = tls, handshake_s
        self._loop = asyncio.get_running_loop()
        self._idle: deque[tuple[float, IdleConnection]] = deque()
        self._look_at = 0.0
        self._opening: dict[asyncio.Task[None], float] = {}
        """
        The connections whose handshake is not over, the oldest first, and the times of their
        beginning.
        """
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._log = RateLimitedLog(_log)
        self._begin()

    def close(self) -> None:
        """
        Accept the connections in the socket's queue, and close the socket.

        The system would reset them. A proxy has sent requests on some, and sends none of those
        again.
        """
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        else:
            self._loop.remove_reader(self._sock.fileno())
        self._accept_queue()
        self._sock.close()

    def _accept_queue(self) -> None:
        for _ in range(QUEUE):
            if self._descriptors.is_full(self._sock.fileno()):
                return
            try:
                accepted, _ = self._sock.accept()
            except BlockingIOError:
                return
            except OSError:
                continue  # that client has left already
            self._open(accepted)

    async def wait_closed(self) -> None:
        """Return when every accepted connection is open, or its handshake has taken too long."""
        if not self._opening:
            return
        _, unfinished = await asyncio.wait(tuple(self._opening), timeout=LAST_HANDSHAKES_S)
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished)

    def _begin(self) -> None:
        self._timer = None
        if self._descriptors.is_full(self._sock.fileno()) and not self._make_room():
            self._wait("descriptors")
        else:
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def _wait(self, reason: str) -> None:
        """Leave new clients in the socket's queue for a moment."""
        self._log.warning("connections_wait", reason=reason, open=len(self._connections))
        self._timer = self._loop.call_later(AGAIN_S, self._begin)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, _ = self._sock.accept()
            except OSError as error:
                if error.errno not in CLIENT_GONE:
                    self._loop.remove_reader(self._sock.fileno())
                    # A single descriptor would go to the next client, but files and stores need
                    # some as well.
                    for _ in range(ACCEPTS_PER_TURN):
                        self._make_room()
                    self._wait(errno.errorcode.get(error.errno or 0, "unknown"))
                return
            number = accepted.fileno()
            self._open(accepted)
            if number < self._descriptors.almost_full:
                continue
            has_room = self._make_room()
            if number < self._descriptors.full:
                continue
            # An ended connection is closed after this turn, and the next one takes its place.
            if not has_room:
                self._loop.remove_reader(self._sock.fileno())
                self._wait("descriptors")
            return

    def _open(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        task = self._loop.create_task(self._opened(accepted))
        self._opening[task] = self._loop.time()
        task.add_done_callback(lambda handshake: self._opening.pop(handshake, None))

    async def _opened(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._protocol,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_s,
            )
        except OSError:
            # The client left, sent invalid data or took too long for its handshake.
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise

    def _make_room(self) -> bool:
        """End the connection that has been idle longest, or a handshake; False: there is none."""
        oldest = self._oldest()
        task, began = next(iter(self._opening.items()), (None, 0.0))
        if oldest is not None:
            oldest.transport.abort()
        elif task is not None and began <= self._loop.time() - IDLE_S:
            del self._opening[task]
            task.cancel()
        else:
            return False
        self._log.warning("idle_connection_ended", open=len(self._connections))
        return True

    def _oldest(self) -> IdleConnection | None:
        now = self._loop.time()
        while True:
            while self._idle:
                since, connection = self._idle.popleft()
                if connection.idle_since() == since and not connection.transport.is_closing():
                    return connection
            if now < self._look_at:
                return None
            # One search goes through twenty thousand connections, and its result serves the next
            # few hundred.
            self._look_at = now + AGAIN_S
            self._find_idle()

    def _find_idle(self) -> None:
        before = self._loop.time() - IDLE_S
        idle = (
            (since, connection)
            for connection in self._connections
            if (since := connection.idle_since()) is not None and since <= before
        )
        self._idle.extend(heapq.nsmallest(LOOKED_UP, idle, key=itemgetter(0)))
