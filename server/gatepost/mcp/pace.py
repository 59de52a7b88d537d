"""How often something may happen."""

import time
from collections.abc import Callable


class Pace:
    """*burst* times at once, then *per_second*."""

    __slots__ = ("_at", "_burst", "_clock", "_left", "_per_second")

    def __init__(
        self, per_second: float, burst: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._left = float(burst)
        self._at = clock()

    def take(self) -> bool:
        """Whether it may happen now; that counts as once."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
