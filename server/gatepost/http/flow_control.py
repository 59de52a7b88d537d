"""Write to a client no faster than it reads, and bound what a process keeps for slow readers."""

import asyncio
import logging
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, Protocol, cast

import msgspec
from uvicorn.protocols.http.flow_control import FlowControl

from gatepost.http.edge import peer_of
from gatepost.http.scope import CALLER
from gatepost_authz.ratelimited import RateLimitedLog

_log = logging.getLogger(__name__)

PIECE_BYTES = 64 * 1024
"""
The bytes that the transport gets at once. Over TLS, the transport does not report what it has
taken: an answer of megabytes in one part would leave this class and be counted nowhere.
"""


class UnreadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """
    The limits for bytes that clients leave unread, and for how slowly they read; 0 is no limit.
    """

    process_bytes: int = 256_000_000
    """The bytes of all callers together."""
    caller_bytes: int = 64_000_000
    """The bytes of one caller; of an address, if no token was verified."""
    bytes_per_s: int = 500
    """Minimum rate at which a client must read."""
    window_s: float = 30.0
    """The time over which the rate is measured."""


class Reader(Protocol):
    """A connection whose client has not read all that was sent."""

    def abort(self) -> None:
        """End the connection, and drop the unread bytes."""


class UnreadResponses:
    """
    The bytes that all connections of a process keep for clients that read slowly.

    Only connections whose socket accepts no more bytes are counted, each with its complete answer.
    Beyond a limit, one connection is ended: the one that has waited longest, of the caller that is
    over its limit or else of the caller that keeps the most. The only connection of a caller is
    left to its reading rate, so that a limit below the size of one answer refuses none.
    """

    def __init__(self, limits: UnreadLimits) -> None:
        self.limits = limits
        self._sizes: dict[Hashable, dict[Reader, int]] = {}
        self._sums: dict[Hashable, int] = {}
        self._log = RateLimitedLog(_log)
        self.total = 0

    def count(self, reader: Reader, owner: Hashable, size: int) -> None:
        """Count *size* bytes for *owner*, instead of this connection's previous count."""
        self._add(reader, owner, size)
        limits = self.limits
        while 0 < limits.caller_bytes < self._sums.get(owner, 0) and len(self._sizes[owner]) > 1:
            self._end_oldest(owner, "caller")
        while (
            0 < limits.process_bytes < self.total
            and (owner_of_most := self._owner_of_most()) is not None
        ):
            self._end_oldest(owner_of_most, "process")

    def drop(self, reader: Reader, owner: Hashable) -> int:
        """Stop counting this connection, and return its last count."""
        sizes = self._sizes.get(owner)
        size = 0 if sizes is None else sizes.pop(reader, 0)
        if sizes is not None:
            self.total -= size
            self._sums[owner] -= size
            if not sizes:
                del self._sizes[owner], self._sums[owner]
        return size

    def end(self, reader: Reader, owner: Hashable, reason: str) -> None:
        """End a connection and say so in the log."""
        size = self.drop(reader, owner)
        tenant = owner[0] if isinstance(owner, tuple) else None
        self._log.warning("unread_answer_dropped", reason=reason, tenant=tenant, bytes=size)
        reader.abort()

    def _add(self, reader: Reader, owner: Hashable, size: int) -> None:
        sizes = self._sizes.setdefault(owner, {})
        growth = size - sizes.get(reader, 0)
        sizes[reader] = size  # it keeps its old place, because the first is the oldest
        self._sums[owner] = self._sums.get(owner, 0) + growth
        self.total += growth

    def _owner_of_most(self) -> Hashable | None:
        """Return the caller with the most unread bytes; None if only one connection is left."""
        if len(self._sizes) < 2 and all(len(sizes) < 2 for sizes in self._sizes.values()):
            return None
        return max(self._sums, key=self._sums.__getitem__)

    def _end_oldest(self, owner: Hashable, reason: str) -> None:
        self.end(next(iter(self._sizes[owner])), owner, reason)


class Writes(Protocol):
    """The connection that a `ResponseFlow` belongs to."""

    def owner(self) -> Hashable:
        """Return the caller whose answer is being written."""

    def drained(self) -> None:
        """Go on after the client has read all buffered bytes."""

    def hang_up(self) -> None:
        """Close the connection behind what has been written."""


class ResponseFlow(FlowControl):
    """
    The bytes written to one connection: a transport for the application, which passes them on in
    parts to the real one.

    Bytes that the client has not read are kept here and counted in *answers*. The connection of a
    client that reads more slowly than the least rate over a window is ended. uvicorn would keep its
    request, the answer and the connection as long as the client acknowledges that its window is
    closed.
    """

    def __init__(
        self, transport: asyncio.Transport, answers: UnreadResponses, connection: Writes
    ) -> None:
        super().__init__(transport)
        # Wait until the buffer is empty: the end of a large answer would keep all of it in memory.
        transport.set_write_buffer_limits(high=PIECE_BYTES - 1, low=0)
        self._answers = answers
        self._connection = connection
        self._unwritten: deque[memoryview] = deque()
        self._buffered = 0
        self._blocked = False
        self._ending = False
        self._owner: Hashable = None
        self._unread_before = 0
        self._timer: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        """Write *data* as fast as the client reads."""
        if self._blocked or len(data) > PIECE_BYTES:
            self._unwritten.append(memoryview(data))
            self._buffered += len(data)
            self._unread_before += len(data)
            self._push()
        else:
            self._transport.write(data)

    def writelines(self, lines: Sequence[bytes]) -> None:
        """Write several pieces of one answer, the large one last."""
        if self._blocked or len(lines[-1]) > PIECE_BYTES:
            self.write(b"".join(lines[:-1]))
            self.write(lines[-1])
        else:
            self._transport.writelines(lines)

    def is_closing(self) -> bool:
        """Return whether the connection only sends its buffer."""
        return self._ending or self._transport.is_closing()

    def close(self) -> None:
        """Close the connection behind what has been written."""
        if self._unwritten:
            self._ending = True
        else:
            self._transport.close()

    def drop(self) -> None:
        """Close an idle connection, and drop its unread bytes."""
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        """End the connection, and drop the unread bytes."""
        self.forget()
        self._transport.abort()

    def forget(self) -> None:
        """Drop the buffered bytes of a closed connection."""
        self._unwritten.clear()
        self._buffered = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._answers.drop(self, self._owner)

    def leave(self) -> None:
        """Forget the closed connection."""
        self._connection = cast("Any", None)

    def pause_writing(self) -> None:
        self._blocked = True
        if not self.write_paused:
            super().pause_writing()
            self._owner = self._connection.owner()
            self._watch()
        # The parts of an answer keep the whole of it in memory.
        in_memory = self._buffered if self._unwritten else self._transport.get_write_buffer_size()
        self._answers.count(self, self._owner, in_memory)

    def resume_writing(self) -> None:
        self._blocked = False
        self._push()
        if self._blocked or not self.write_paused:
            return
        self.forget()
        super().resume_writing()
        if self._ending:
            self._connection.hang_up()
        else:
            self._connection.drained()

    def _push(self) -> None:
        while self._unwritten and not self._blocked:
            piece, remaining = self._unwritten[0][:PIECE_BYTES], self._unwritten[0][PIECE_BYTES:]
            if remaining:
                self._unwritten[0] = remaining
            else:
                self._unwritten.popleft()
            # Copied, because a view would keep the whole answer in memory.
            self._transport.write(bytes(piece))
        if not self._unwritten:
            self._buffered = 0

    def _unread(self) -> int:
        return sum(map(len, self._unwritten)) + self._transport.get_write_buffer_size()

    def _watch(self) -> None:
        self._unread_before = self._unread()
        window_s = self._answers.limits.window_s
        self._timer = asyncio.get_running_loop().call_later(window_s, self._check)

    def _check(self) -> None:
        limits = self._answers.limits
        if self._unread_before - self._unread() >= max(1, limits.bytes_per_s * limits.window_s):
            self._watch()
        else:
            self._timer = None
            self._answers.end(self, self._owner, "slow")


def owner_of(scope: Any) -> Hashable:
    """Return the caller of a request, or its address if it has no caller."""
    caller = scope.get(CALLER)
    return peer_of(scope) if caller is None else caller.principal_key
