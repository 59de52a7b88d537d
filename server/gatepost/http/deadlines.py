"""Limit how long a connection may take to send a head, be idle, or send a body that is not read."""

import asyncio
import logging
from typing import Any

import msgspec
import uvicorn

from gatepost.http.flow_control import UnreadLimits, UnreadResponses

log = logging.getLogger(__name__)

HEAD_LINES_BYTES = 96 * 1024
"""
Room above the configured header limit for one credential, which the gate refuses itself. A head
that never ends is refused at this size, before it fills the memory.
"""
TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """How long a connection may take; seconds and bytes."""

    head_s: float = 10.0
    """
    The time from the connection, or from the first byte after the last answer, to the end of the
    head.
    """
    keep_alive_s: int = 65
    """
    How long an idle connection stays open. Load balancers keep theirs for less time (60 s);
    otherwise they would send a request into a connection that is just being closed.
    """
    drain_s: int = 30
    """How long running requests may take to finish when the server stops."""
    max_head_bytes: int = 32_768
    unread: UnreadLimits = UnreadLimits()


class ListenConfig(uvicorn.Config):
    """uvicorn's configuration, with the settings that our protocols read in addition."""

    def __init__(self, app: Any, deadlines: Deadlines, **settings: Any) -> None:
        super().__init__(app, **settings)
        self.deadlines = deadlines
        self.unread = UnreadResponses(deadlines.unread)


class HeadWatch:
    """
    The deadline of one connection's request heads, and of bodies that are no longer read.

    uvicorn starts no timer before the first byte of an answer, so a client that sends a byte a
    minute would hold a connection forever. If a head arrives completely, as most do, no timer is
    created.
    """

    __slots__ = ("_config", "_loop", "_protocol", "armed", "received", "timer")

    def __init__(self, protocol: Any, config: ListenConfig, loop: asyncio.AbstractEventLoop):
        self._protocol = protocol
        self._config = config
        self._loop = loop
        self.timer: asyncio.TimerHandle | None = None
        self.received = 0
        self.armed = False
        """Whether `disarm` has something to do."""

    def arm(self) -> None:
        self.armed = True
        if self.timer is None:
            self.timer = self._loop.call_later(self._config.deadlines.head_s, self._on_timeout)

    def disarm(self) -> None:
        self.armed = False
        self.received = 0
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def leave(self) -> None:
        """Stop the timer of a closed connection, and forget the connection."""
        self.disarm()
        self._protocol = None

    def count(self, size: int) -> None:
        """Count bytes that arrived while the head is incomplete."""
        self.received += size
        max_bytes = self._config.deadlines.max_head_bytes + HEAD_LINES_BYTES
        if self.received > max_bytes:
            # The request reaches no check of ours, so no other line explains why the client got no
            # answer.
            log.warning(
                "request_head_too_large", extra={"peer": self._protocol.client, "limit": max_bytes}
            )
            self._end(TOO_LARGE)
        else:
            self.arm()

    def count_trailer(self, size: int) -> None:
        """Count bytes that are neither head nor body: the fields behind a chunked body."""
        self.received += size
        if self.received > self._config.deadlines.max_head_bytes + HEAD_LINES_BYTES:
            self._end(b"")

    def _on_timeout(self) -> None:
        self.timer = None
        cycle = self._protocol.cycle
        if cycle is None or cycle.response_complete:
            # A silent client has sent no request, and a served client has its answer.
            silent = self.received == 0 or (cycle is not None and cycle.more_body)
            self._end(b"" if silent else TOO_LATE)

    def _end(self, answer: bytes) -> None:
        flow = self._protocol.flow
        if flow is not None and not flow.is_closing():
            # After the part of the last answer that the client has not read yet.
            if answer:
                flow.write(answer)
            flow.close()


class IdleWatch:
    """
    Closes a connection that has been idle for too long.

    One timer checks when the time may be over, and waits again if it is not. A timer for each
    answer would cost as much as parsing its request.
    """

    __slots__ = ("_limit_s", "_loop", "_protocol", "_timer", "since")

    def __init__(self, protocol: Any, limit_s: float, loop: asyncio.AbstractEventLoop) -> None:
        self._protocol = protocol
        self._limit_s = limit_s
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self.since: float | None = None
        """The loop's time at the end of the last answer; None while a request is running."""

    def arm(self) -> None:
        """Start the timer of a new connection."""
        self._timer = self._loop.call_later(self._limit_s, self._check)

    def leave(self) -> None:
        """Stop the timer of a closed connection, and forget the connection."""
        if self._timer is not None:
            self._timer.cancel()
        self._protocol = None

    def _check(self) -> None:
        remaining_s = self._limit_s
        if self.since is not None:
            remaining_s += self.since - self._loop.time()
        if remaining_s > 0:
            self._timer = self._loop.call_later(remaining_s, self._check)
        else:
            self._timer = None
            self._protocol.flow.drop()
