"""Writing to a client no faster than it reads, and not for ever."""

import asyncio
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from gatepost.http.edge import peer_of
from gatepost.http.scope import CALLER
from gatepost.http.unread_responses import UnreadResponses

PIECE_BYTES = 64 * 1024
"""What is handed to the transport at once. Over TLS it says nothing of what it has taken already:
an answer of megabytes in one piece would be gone from here, unread and counted nowhere."""


class Writes(Protocol):
    """The connection that a `ResponseFlow` belongs to."""

    def owner(self) -> Hashable:
        """Whose answer is being written."""

    def drained(self) -> None:
        """Go on after the client has read all buffered bytes."""

    def hang_up(self) -> None:
        """Close the connection behind what has been written."""


class ResponseFlow(FlowControl):
    """
    What is written to one connection: as its transport for who answers, in pieces to the real one.

    What the client has not read is kept here and counted in *answers*. A client that reads less
    than the least rate over a window is cut off: uvicorn would keep its request, the answer and the
    connection for as long as it acknowledges that its window is closed.
    """

    def __init__(
        self, transport: asyncio.Transport, answers: UnreadResponses, connection: Writes
    ) -> None:
        super().__init__(transport)
        # Until nothing is left: the end of a large answer would keep the whole of it.
        transport.set_write_buffer_limits(high=PIECE_BYTES - 1, low=0)
        self._answers = answers
        self._connection = connection
        self._rest: deque[memoryview] = deque()
        self._whole = 0
        self._blocked = False
        self._ending = False
        self._owner: Hashable = None
        self._left_before = 0
        self._timer: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        """Write *data* as fast as the client reads."""
        if self._blocked or len(data) > PIECE_BYTES:
            self._rest.append(memoryview(data))
            self._whole += len(data)
            self._left_before += len(data)
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
        """Return whether the connection only sends what is buffered."""
        return self._ending or self._transport.is_closing()

    def close(self) -> None:
        """Close the connection behind what has been written."""
        if self._rest:
            self._ending = True
        else:
            self._transport.close()

    def drop(self) -> None:
        """Close an idle connection; what it has left unread all the while is given up."""
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        """End the connection with what is unread."""
        self.forget()
        self._transport.abort()

    def forget(self) -> None:
        """Drop the buffered bytes of a closed connection."""
        self._rest.clear()
        self._whole = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._answers.drop(self, self._owner)

    def pause_writing(self) -> None:
        self._blocked = True
        if not self.write_paused:
            super().pause_writing()
            self._owner = self._connection.owner()
            self._watch()
        # What is cut into pieces stays in memory as a whole.
        kept = self._whole if self._rest else self._transport.get_write_buffer_size()
        self._answers.keep(self, self._owner, kept)

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
        while self._rest and not self._blocked:
            piece, rest = self._rest[0][:PIECE_BYTES], self._rest[0][PIECE_BYTES:]
            if rest:
                self._rest[0] = rest
            else:
                self._rest.popleft()
            # A copy, or the last of it would keep all of it.
            self._transport.write(bytes(piece))
        if not self._rest:
            self._whole = 0

    def _left(self) -> int:
        return sum(map(len, self._rest)) + self._transport.get_write_buffer_size()

    def _watch(self) -> None:
        self._left_before = self._left()
        window_s = self._answers.limits.window_s
        self._timer = asyncio.get_running_loop().call_later(window_s, self._look)

    def _look(self) -> None:
        limits = self._answers.limits
        if self._left_before - self._left() >= max(1, limits.bytes_per_s * limits.window_s):
            self._watch()
        else:
            self._timer = None
            self._answers.end(self, self._owner, "slow")


def owner_of(scope: Any) -> Hashable:
    """Return the caller of a request, or its address if it has no caller."""
    caller = scope.get(CALLER)
    return peer_of(scope) if caller is None else caller.principal_key
