"""The requests that wait in this process, so that they end when their caller is shut out."""

from collections.abc import Callable, Mapping
from typing import Literal

from gatepost.tools.attend import Stop
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import RevokedToken

Why = Literal["revoked", "suspended"]


class TenantSuspended(Exception):
    """The tenant of the request's caller was suspended while it waited."""


ENDINGS: Mapping[str | None, type[Exception]] = {
    "revoked": RevokedToken,
    "suspended": TenantSuspended,
}
"""What a request ends with, by the word that its stop was pulled with."""


class Underway:
    """
    The requests that wait for something, each by what stops it.

    One that never waits is not entered: it is over before anybody could end it.
    """

    def __init__(self) -> None:
        self.is_revoked: Callable[[TenantContext], bool] = nobody
        """Whether a caller's token was taken back since the gate let it pass."""
        self._waiting: dict[Stop, TenantContext] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, stop: Stop, caller: TenantContext) -> None:
        """A request begins to wait."""
        self._waiting[stop] = caller

    def leave(self, stop: Stop) -> None:
        """It is over; a second time does nothing."""
        self._waiting.pop(stop, None)

    def end(self, which: Callable[[TenantContext], bool], why: Why) -> None:
        """Stop the requests of these callers, whatever runs or waits for them."""
        for stop, caller in tuple(self._waiting.items()):
            if which(caller):
                stop.pull(why)


def nobody(caller: TenantContext) -> bool:
    """No caller at all."""
    return False
