"""Log the tool that blocks the event loop, while it does."""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from types import FrameType

from gatepost.tools.calls.redacted_call import running_call

EVERY_S = 0.25
BLOCKED_S = 1.0
"""After this time without a turn, the event loop counts as blocked."""

log = logging.getLogger(__name__)


class Watchdog:
    """
    A thread that watches the event loop.

    The loop notes the time four times a second. If it stops, the thread logs the call that the loop
    runs, and the place of its code.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._stopped = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._turned_at = time.monotonic()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the running loop during a block."""
        self._watch_loop()
        threading.Thread(target=self._watch, name="gatepost-watchdog", daemon=True).start()
        try:
            yield
        finally:
            self._stopped.set()
            if self._timer is not None:
                self._timer.cancel()

    def _watch_loop(self) -> None:
        self._turned_at = time.monotonic()
        self._timer = self._loop.call_later(EVERY_S, self._watch_loop, context=Context())

    def _watch(self) -> None:
        logged_at = 0.0
        while not self._stopped.wait(EVERY_S):
            turned_at = self._turned_at
            blocked_s = time.monotonic() - turned_at
            if blocked_s > BLOCKED_S + EVERY_S and turned_at != logged_at:
                logged_at = turned_at  # once per blockage
                self._log_block(blocked_s)

    def _log_block(self, blocked_s: float) -> None:
        """
        Log the place of the code that blocks the loop, and the tool whose call runs it.

        The tool's name is empty if no call runs, as in a task that a tool has started.
        """
        call = running_call(self._loop)
        frame = sys._current_frames().get(self._thread_id)
        log.warning(
            "loop_blocked",
            extra={
                "for_s": round(blocked_s, 1),
                "tool": "" if call is None else call.name,
                "request_id": "" if call is None else call.request_id,
                "where": "" if frame is None else _position(frame),
            },
        )


def _position(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}:{frame.f_lineno}"
