"""Where code runs: whose secrets must not be in what is logged there."""

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Protocol
from weakref import WeakSet

from gatepost.redaction.automaton import Redactor


class Here(Protocol):
    """A call; what it leaves running remembers it when it has ended."""

    over: bool

    def now(self) -> Redactor:
        """The redactor of its tenant's secrets as they are now."""


class House(Protocol):
    """Whoever holds redactors of several tenants."""

    def redactors(self) -> Iterable[Redactor]:
        """All of them."""


HERE: ContextVar[Here | None] = ContextVar("gatepost_call", default=None)
"""The call that this code runs for; threads and tasks that it starts have it from there."""

_houses: WeakSet[House] = WeakSet()
_PLAIN = Redactor({})


def join(house: House) -> None:
    """Clean what is logged outside of calls of this one's secrets, as long as it lives."""
    _houses.add(house)


def cleaned(text: str) -> str:
    """
    A text that is about to be logged, without secrets.

    Within a call these are its tenant's. What is logged elsewhere (a task whose failure nobody
    heard, a connection that ends by itself) may be about any tenant that is known here.
    """
    here = HERE.get()
    if here is not None and not here.over:
        return here.now().clean(text)
    for house in [*_houses]:
        for redactor in [*house.redactors()]:
            text = redactor.clean(text)
    return _PLAIN.clean(text)
