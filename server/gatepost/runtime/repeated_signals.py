"""Tell a signal that was sent several times at once from a further signal."""

import time

ONE_SIGNAL_S = 1.0
"""A repeated signal within this time is ignored: a terminal or systemd signals every process of a
group, and the parent process passes the signal on as well."""


class RepeatedSignals:
    """The signals to stop that one process has received."""

    def __init__(self) -> None:
        self.last_at: float | None = None
        """The time of the last signal that counted (`time.monotonic`); None: there was none."""

    def is_repeated(self) -> bool:
        """Return whether the signal that has just come repeats the last one; otherwise count it."""
        now = time.monotonic()
        if self.last_at is not None and now - self.last_at < ONE_SIGNAL_S:
            return True
        self.last_at = now
        return False
