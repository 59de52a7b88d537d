"""Divide the files and sockets that a process may have open between connections and other uses."""

import contextlib
import os
import resource

import msgspec

UNLIMITED = 1 << 20
"""The limit to use where the system has none: programs that we start close every lower number."""
MIN_SPARE, MAX_SPARE = 16, 1000


def raise_limit() -> int:
    """Raise the soft limit of open descriptors to the hard one, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = UNLIMITED if hard == resource.RLIM_INFINITY else min(hard, UNLIMITED)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return UNLIMITED if soft == resource.RLIM_INFINITY else soft
    # macOS reports a limit that it does not grant.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        return target
    return soft


class DescriptorLimits(msgspec.Struct, frozen=True):
    """
    The descriptors that connections may take; the rest is for files, stores and outgoing requests.

    The system assigns the lowest free number, so the number of a new descriptor tells how many are
    in use.
    """

    almost_full: int
    """From this number on, a new connection ends an idle one."""
    full: int
    """From this number on, no connection is accepted if none is idle."""

    @classmethod
    def from_limit(cls, limit: int, *, share: int = 2) -> "DescriptorLimits":
        """Return the limits; `full` leaves 1/*share* of the spare descriptors free."""
        spare = min(max(limit // 8, MIN_SPARE), MAX_SPARE)
        return cls(max(limit - spare, 1), max(limit - spare // share, 1))

    @classmethod
    def of_process(cls, *, share: int = 2) -> "DescriptorLimits":
        """Return the limits for this process."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return cls.from_limit(UNLIMITED if soft == resource.RLIM_INFINITY else soft, share=share)

    def is_full(self, any_open: int) -> bool:
        """Return whether no connection fits; *any_open* is a descriptor to query the system."""
        try:
            number = os.dup(any_open)
        except OSError:
            return True
        os.close(number)
        return number >= self.full
