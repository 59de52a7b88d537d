"""Take note of a reload (SIGHUP) that comes while the server starts or stops."""

import signal


class PendingReload:
    """
    A handler of SIGHUP for the time in which a server cannot reload, so that it does not end then.

    It is no blocked signal, which the programs that packs start would inherit.
    """

    def __init__(self) -> None:
        self.has_come = False
        """Whether there was a SIGHUP."""

    def __call__(self, *_: object) -> None:
        """Implement the handler of a signal."""
        self.has_come = True


def install() -> None:
    """Take note of SIGHUP from now on."""
    signal.signal(signal.SIGHUP, PendingReload())


def is_pending(handler: object) -> bool:
    """Return whether this was the handler of SIGHUP, and there was one."""
    return isinstance(handler, PendingReload) and handler.has_come
