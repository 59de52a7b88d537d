"""Track the waiting requests of this process, to end them when their caller loses its access."""

from collections.abc import Callable, Mapping
from typing import Literal

from gatepost.tools.interruption import Stop
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import RevokedToken

Why = Literal["revoked", "suspended"]


class TenantSuspended(Exception):
    """The tenant of the request's caller was suspended while it waited."""


ENDINGS: Mapping[str | None, type[Exception]] = {
    "revoked": RevokedToken,
    "suspended": TenantSuspended,
}
"""The exception that ends a request, by the reason for which it was stopped."""


class RunningRequests:
    """
    The requests that wait for something, with what stops each of them.

    One that never waits is not entered: it is over before anybody could end it. *is_revoked* says
    whether a caller's token was revoked since the gate let it pass.
    """

    def __init__(self, is_revoked: Callable[[TenantContext], bool] | None = None) -> None:
        self.is_revoked = is_revoked or nobody
        self._waiting: dict[Stop, TenantContext] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, stop: Stop, caller: TenantContext) -> None:
        """Add a request that starts to wait."""
        self._waiting[stop] = caller

    def leave(self, stop: Stop) -> None:
        """Remove a request; a second call does nothing."""
        self._waiting.pop(stop, None)

    def end(self, which: Callable[[TenantContext], bool], why: Why) -> None:
        """Stop all waiting requests of these callers."""
        for stop, caller in tuple(self._waiting.items()):
            if which(caller):
                stop.pull(why)


def nobody(caller: TenantContext) -> bool:
    """Return False for every caller."""
    return False
