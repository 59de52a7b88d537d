"""Requests of sessions that their client takes back by a notification."""

from collections.abc import Awaitable
from typing import TypeVar

from gatepost.intake import Stopped
from gatepost.tools.attend import Attended, Stop

T = TypeVar("T")

Running = dict[tuple[bytes, bytes], Stop]
"""Requests of sessions that run in this process, by session and request id."""


class UntilCancelled(Attended[T]):
    """
    Awaits *work*; Stopped when `notifications/cancelled` names it.

    A dropped connection is no cancellation in the revisions that have sessions (S-08).
    """

    __slots__ = ("_key", "_own", "_running")

    stopped = Stopped

    def __init__(self, running: Running, key: tuple[bytes, bytes], work: Awaitable[T]) -> None:
        self._work = work.__await__()
        self._stop = None
        self._running = running
        self._key = key

    def begin(self, stop: Stop) -> None:
        self._own = stop
        self._running[self._key] = stop

    def end(self) -> None:
        # A client that uses an id twice at once must not lose the later request's entry.
        if self._running.get(self._key) is self._own:
            del self._running[self._key]
