"""Log warnings that callers can cause at will, at a bounded rate."""

import logging
import time
from collections.abc import Callable

EVERY_S = 10.0
"""The seconds within which at most one line of an event is written."""


class RateLimitedLog:
    """Writes one line of each event at once, then one in `EVERY_S` with how many there were."""

    def __init__(
        self, logger: logging.Logger, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._monotonic = monotonic
        self._written: dict[str, float] = {}
        self._unwritten: dict[str, int] = {}

    def warning(self, event: str, *args: object, **fields: object) -> None:
        """
        Log *event*, a constant of ours that may have places for *args*.

        ``times`` counts those since its last line.
        """
        now = self._monotonic()
        times = self._unwritten.get(event, 0) + 1
        if now - self._written.get(event, -EVERY_S) < EVERY_S:
            self._unwritten[event] = times
            return
        self._written[event], self._unwritten[event] = now, 0
        self._logger.warning(event, *args, extra={"times": times, **fields})
