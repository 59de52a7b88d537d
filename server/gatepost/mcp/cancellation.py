"""Requests of sessions that their client takes back by a notification."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from gatepost.intake import WATCH_AFTER_S, Stopped
from gatepost.mcp.ear import Ear
from gatepost.tools.attend import Attended, Stop
from gatepost.tools.underway import ENDINGS, Underway
from gatepost_authz.caller import TenantContext

T = TypeVar("T")

Running = dict[tuple[bytes, bytes], Stop]
"""Requests of sessions that run in this process, by session and request id."""


class UntilCancelled(Attended[T]):
    """
    Awaits *work*; Stopped when `notifications/cancelled` names it or its session ends.

    A dropped connection is no cancellation in the revisions that have sessions (S-08).
    RevokedToken or TenantSuspended when its caller is shut out.
    """

    __slots__ = ("_caller", "_ear", "_key", "_own", "_running", "_timer", "_underway")

    stopped = Stopped

    def __init__(
        self,
        running: Running,
        ear: Ear,
        work: Awaitable[T],
        caller: TenantContext,
        underway: Underway,
    ) -> None:
        self._work = work.__await__()
        self._stop = None
        self._running = running
        self._ear = ear
        self._key = (ear.room.session.nonce, ear.identity)
        self._caller = caller
        self._underway = underway

    def raised(self) -> type[Exception]:
        return ENDINGS.get(self._own.why, Stopped)

    def begin(self, stop: Stop) -> None:
        self._underway.enter(stop, self._caller)
        self._own = stop
        self._running[self._key] = stop
        # Only then does it hear of other processes: most calls are over before.
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._ear.attend, stop)

    def end(self) -> None:
        self._timer.cancel()
        self._underway.leave(self._own)
        # A client that uses an id twice at once must not lose the later request's entry.
        if self._running.get(self._key) is self._own:
            del self._running[self._key]
