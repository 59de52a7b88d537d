"""
What a server process makes of signals: those that repeat the last one, early ones, ignored ones.
"""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

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


class PendingReload:
    """
    A handler of the reload signal while a server cannot reload, so that it does not end then.

    It is no blocked signal, which the programs that packs start would inherit.
    """

    def __init__(self) -> None:
        self.has_come = False
        """Whether there was a signal."""

    def __call__(self, *_: object) -> None:
        """Implement the handler of a signal."""
        self.has_come = True


def note_reloads(reload_signal: signal.Signals = signal.SIGHUP) -> None:
    """Take note of the reload signal from now on."""
    signal.signal(reload_signal, PendingReload())


def is_pending(handler: object) -> bool:
    """Return whether this was the handler of the reload signal, and there was one."""
    return isinstance(handler, PendingReload) and handler.has_come


@contextmanager
def exiting_at(*numbers: signal.Signals) -> Iterator[None]:
    """
    Exit at these signals during a block, as a shell says it, with all that its `finally` does.

    A signal that is ignored stays so: `nohup` ignores SIGHUP.
    """

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = {number: signal.getsignal(number) for number in numbers if not is_ignored(number)}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_ignored(number: signal.Signals) -> bool:
    """Return whether this process ignores a signal."""
    return signal.getsignal(number) is signal.SIG_IGN
