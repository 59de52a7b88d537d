"""Count the open streams of a process, limit them for each caller, and end them."""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

from gatepost_authz.caller import TenantContext

KEEP_ALIVE_S = 4.0
"""
How often a client gets a keep-alive message while it waits.

Less than the five seconds after which HTTP clients such as httpx2 give up on a silent response.
"""
TICKS_A_SECOND = 50
WOKEN_AT_ONCE = 32
"""The streams that are written to before other requests get their turn: about a millisecond."""


class OpenStream(Protocol):
    """One open stream."""

    caller: TenantContext

    @property
    def watches(self) -> bool:
        """Return whether the stream shows something that this caller was allowed to watch."""

    def wake(self) -> None:
        """Let the stream send, in turn with other streams; call it on the event loop."""

    def send_keep_alive(self) -> None:
        """Send a comment that keeps the connection open; called on the event loop."""

    def end(self) -> None:
        """Send the last event and close; a second call does nothing."""


class TooMany(Exception):
    """The caller, or the process, has as many streams open as allowed."""


class ServerStopping(Exception):
    """The server is about to stop and opens no more streams."""


class OpenStreams:
    """
    Every open stream of this process.

    One timer sends keep-alive comments to all of them, a few at a time. A timer for each stream
    would cost more than the stream, and writing to all at once would delay all requests. At its
    turn, a stream ends if its caller's token has expired.
    """

    def __init__(
        self,
        *,
        max_streams: int = 20_000,
        max_per_caller: int = 50,
        is_refused: Callable[[TenantContext], bool] = lambda caller: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.apply(max_streams, max_per_caller)
        self._clock = clock
        self.is_refused = is_refused
        """Returns whether the caller was revoked or suspended since the gate let it pass."""
        self._open: dict[OpenStream, set[OpenStream]] = {}
        self._of_caller: Counter[tuple[str, str, str, str]] = Counter()
        self._ring: list[set[OpenStream]] = [
            set() for _ in range(int(KEEP_ALIVE_S * TICKS_A_SECOND))
        ]
        self._next = 0
        self._position = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self.stopping = asyncio.Event()
        """Set when a stop has begun. From then on, no call waits for a person."""
        self._to_wake: OrderedDict[OpenStream, None] = OrderedDict()

    def apply(self, max_streams: int, max_per_caller: int) -> None:
        """Hold no more than these streams from now on; those that are open stay open."""
        self.max_streams, self.max_per_caller = max_streams, max_per_caller

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenStream]:
        return iter(tuple(self._open))

    def enter(self, stream: OpenStream) -> None:
        """Add a stream; a second call does nothing. Raises TooMany or ServerStopping."""
        if self._closing:
            raise ServerStopping
        if stream in self._open:
            return
        owner = stream.caller.principal_key
        if len(self._open) >= self.max_streams or self._of_caller[owner] >= self.max_per_caller:
            raise TooMany
        self._of_caller[owner] += 1
        # In turn, not by the time, because clients that arrived all at once must not be served all
        # at once.
        self._next = (self._next + 1) % len(self._ring)
        group = self._open[stream] = self._ring[self._next]
        group.add(stream)
        if self._timer is None:
            self._wait()
        if self.is_refused(stream.caller):
            # The caller was revoked while the stream opened, so the stream ends with its first
            # event.
            stream.end()

    def leave(self, stream: OpenStream) -> None:
        """Remove a stream; a second call does nothing."""
        group = self._open.pop(stream, None)
        if group is None:
            return
        group.discard(stream)
        self._to_wake.pop(stream, None)
        owner = stream.caller.principal_key
        self._of_caller[owner] -= 1
        if not self._of_caller[owner]:
            del self._of_caller[owner]
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wake(self, stream: OpenStream) -> None:
        """
        Wake a stream soon, because one change may concern ten thousand and must not delay calls.
        """
        if not self._to_wake:
            asyncio.get_running_loop().call_soon(self._wake_some)
        self._to_wake[stream] = None

    def end(self, is_ended: Callable[[TenantContext], bool]) -> None:
        """End the streams of these callers."""
        for stream in self:
            if is_ended(stream.caller):
                stream.end()

    def end_watching(self) -> None:
        """End the streams that report documents or tasks."""
        for stream in self:
            if stream.watches:
                stream.end()

    def close(self) -> None:
        """End all streams and accept no more, because a stop must not wait for listeners."""
        self._closing = True
        self.stopping.set()
        self.end(lambda caller: True)

    def is_over(self, caller: TenantContext) -> bool:
        """Return whether the caller's token has expired."""
        return caller.expires_at <= self._clock()

    def _wake_some(self) -> None:
        woken = [
            self._to_wake.popitem(last=False)[0]
            for _ in range(min(len(self._to_wake), WOKEN_AT_ONCE))
        ]
        if self._to_wake:
            asyncio.get_running_loop().call_soon(self._wake_some)
        send_each(iter(woken), lambda stream: stream.wake())

    @property
    def steps(self) -> int:
        """Return how many calls of `check_next` visit every stream once."""
        return len(self._ring)

    def check_next(self) -> None:
        """Send a keep-alive comment on the next few streams; end those whose token has expired."""
        self._position = (self._position + 1) % len(self._ring)
        send_each(iter(tuple(self._ring[self._position])), self._keep_alive)

    def _keep_alive(self, stream: OpenStream) -> None:
        if self.is_over(stream.caller):
            stream.end()
        else:
            stream.send_keep_alive()

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(1 / TICKS_A_SECOND, self._tick)

    def _tick(self) -> None:
        self._wait()
        self.check_next()


def send_each(streams: Iterator[OpenStream], send: Callable[[OpenStream], None]) -> None:
    """
    Call *send* with each of these streams.

    An error ends its stream alone: the event loop logs it, and goes on to the other streams.
    """
    unsent = None
    try:
        for unsent in streams:
            send(unsent)
        unsent = None
    finally:
        if unsent is not None:
            asyncio.get_running_loop().call_soon(send_each, streams, send)
            unsent.end()
