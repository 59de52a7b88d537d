"""The context of the running code: the tenant whose secrets are redacted from its logs."""

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Protocol
from weakref import WeakSet

from gatepost.redaction.redactor import Redactor, cleaned_text


class LogContext(Protocol):
    """The current call; tasks that it leaves behind keep it."""

    over: bool

    def now(self) -> Redactor:
        """Return the current redactor of its tenant."""


class TenantRedactors(Protocol):
    """Holds the redactors of several tenants."""

    def redactors(self) -> Iterable[Redactor]:
        """Return all redactors."""


HERE: ContextVar[LogContext | None] = ContextVar("gatepost_call", default=None)
"""The current call; threads and tasks inherit it."""

_houses: WeakSet[TenantRedactors] = WeakSet()
_PLAIN = Redactor({})


def join(house: TenantRedactors) -> None:
    """Redact log lines outside calls with the secrets of this holder while it exists."""
    _houses.add(house)


def cleaned(text: str) -> str:
    """
    Return a text for the log, redacted.

    Within a call, the secrets of its tenant are redacted; elsewhere those of all known tenants.
    """
    here = HERE.get()
    if here is not None and not here.over:
        return cleaned_text(text, here.now())
    for house in [*_houses]:
        for redactor in [*house.redactors()]:
            text = cleaned_text(text, redactor)
    return _PLAIN.clean(text)
