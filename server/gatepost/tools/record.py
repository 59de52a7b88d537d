"""What the runner tells of each call, so that it is on record before its caller hears of it."""

from typing import Protocol

from gatepost.pledge import Pledge
from gatepost.redaction.place import HERE
from gatepost.tools.api import Call, Failure
from gatepost.tools.redaction import Guard


class Recorder(Protocol):
    """Puts calls on record."""

    @property
    def refusing(self) -> bool:
        """Whether calls must not begin, as nothing could be said of them."""

    def ended(
        self, call: Call, began: float, guards: list[Guard], ending: Failure | BaseException | None
    ) -> Pledge:
        """
        A call that began at that time of `perf_counter` has ended; None is a success.

        *guards* holds its guard if it came so far. The pledge is kept once the record is durable;
        whoever does not wait for it loses nothing.
        """


def remark(name: str, value: str) -> None:
    """Say something of the call that this code runs for, where its record will have it."""
    here = HERE.get()
    if isinstance(here, Guard):
        here.remarks = {**(here.remarks or {}), name: value}


def peer_here() -> str:
    """Where the call comes from that this code runs for; empty outside of calls."""
    here = HERE.get()
    return here.call.peer if isinstance(here, Guard) else ""
