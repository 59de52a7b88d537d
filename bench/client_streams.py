"""Ten thousand clients in one process: each holds a stream open and reads what comes."""

import resource
import selectors
import socket
import time
from collections.abc import Callable

READ_BYTES = 65_536
AT_ONCE = 200
SPARE = 500
"""Descriptors that are no streams."""


class Stuck(Exception):
    """Some streams did not report_progress in time what was expected of them."""


def room_for(streams: int) -> None:
    """
    Allow this process, and the servers it starts, that many open files.

    Raises Stuck where the system's hard limit is lower.
    """
    needed = streams + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise Stuck(f"this system allows {hard} open files, and {streams} streams need {needed}")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class ClientStreams:
    """Open streams to one server, all read by one loop."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._selector = selectors.DefaultSelector()
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> "ClientStreams":
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            each.close()
        self._selector.close()

    def join(
        self, count: int, request: Callable[[int], bytes], marker: bytes, *, limit_s: float
    ) -> None:
        """Open that many more, each with its request, and wait until each was sent *marker*."""
        for first in range(0, count, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, count))
            for number in numbers:
                connection = socket.create_connection(("127.0.0.1", self._port), timeout=limit_s)
                connection.sendall(request(number))
                connection.setblocking(False)
                self._sockets.append(connection)
                self._selector.register(connection, selectors.EVENT_READ)
            self.hear(marker, limit_s=limit_s, of=len(numbers))

    def hear(self, marker: bytes, *, limit_s: float, of: int | None = None) -> list[float]:
        """
        Read until *of* streams (default: all) were sent *marker*; the moments (monotonic), in
        order.

        A word may not fall into two packets: servers send an event whole.
        """
        expected = len(self._sockets) if of is None else of
        heard: dict[int, float] = {}
        deadline = time.monotonic() + limit_s
        while len(heard) < expected:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise Stuck(f"{expected - len(heard)} of {expected} streams never heard {marker!r}")
            for key, _ in self._selector.select(remaining_s):
                data = self._read(key.fd, key.fileobj)
                if marker in data:
                    heard.setdefault(key.fd, time.monotonic())
        return sorted(heard.values())

    def idle(self, seconds: float) -> int:
        """Read what comes for a while; how many packets that were."""
        deadline = time.monotonic() + seconds
        packets = 0
        while (remaining_s := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(remaining_s):
                packets += bool(self._read(key.fd, key.fileobj))
        return packets

    def _read(self, descriptor: int, file: object) -> bytes:
        assert isinstance(file, socket.socket)
        try:
            data = file.recv(READ_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            self._selector.unregister(file)
            raise Stuck(f"the server closed stream {descriptor}")
        return data
