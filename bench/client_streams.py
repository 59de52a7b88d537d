"""Ten thousand clients in one process: each holds a stream open and reads what comes."""

import resource
import selectors
import socket
import time
from collections.abc import Callable

READ = 65_536
AT_ONCE = 200
SPARE = 500
"""Descriptors that are no streams."""


class Stuck(Exception):
    """Some streams did not say in time what was expected of them."""


def room_for(streams: int) -> None:
    """
    Allow this process, and the servers it starts, that many open files.

    Raises Stuck where the system's hard limit is lower.
    """
    wanted = streams + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise Stuck(f"this system allows {hard} open files, and {streams} streams need {wanted}")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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
        self, count: int, request: Callable[[int], bytes], word: bytes, *, limit_s: float
    ) -> None:
        """Open that many more, each with its request, and wait until each was sent *word*."""
        for first in range(0, count, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, count))
            for number in numbers:
                one = socket.create_connection(("127.0.0.1", self._port), timeout=limit_s)
                one.sendall(request(number))
                one.setblocking(False)
                self._sockets.append(one)
                self._selector.register(one, selectors.EVENT_READ)
            self.hear(word, limit_s=limit_s, of=len(numbers))

    def hear(self, word: bytes, *, limit_s: float, of: int | None = None) -> list[float]:
        """
        Read until *of* streams (default: all) were sent *word*; the moments (monotonic), in order.

        A word may not fall into two packets: servers send an event whole.
        """
        wanted = len(self._sockets) if of is None else of
        heard: dict[int, float] = {}
        deadline = time.monotonic() + limit_s
        while len(heard) < wanted:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Stuck(f"{wanted - len(heard)} of {wanted} streams never heard {word!r}")
            for key, _ in self._selector.select(left):
                data = self._read(key.fd, key.fileobj)
                if word in data:
                    heard.setdefault(key.fd, time.monotonic())
        return sorted(heard.values())

    def idle(self, seconds: float) -> int:
        """Read what comes for a while; how many packets that were."""
        deadline = time.monotonic() + seconds
        packets = 0
        while (left := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                packets += bool(self._read(key.fd, key.fileobj))
        return packets

    def _read(self, descriptor: int, one: object) -> bytes:
        assert isinstance(one, socket.socket)
        try:
            data = one.recv(READ)
        except BlockingIOError:
            return b""
        if not data:
            self._selector.unregister(one)
            raise Stuck(f"the server closed stream {descriptor}")
        return data
