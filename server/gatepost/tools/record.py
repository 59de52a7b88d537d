"""What the runner tells of each call, so that it is on record before its caller hears of it."""

import asyncio
from typing import Protocol

from gatepost.redaction.place import HERE
from gatepost.tools.api import Call, Failure
from gatepost.tools.redaction import Guard


class NotRecorded(Exception):
    """What happened could not be put on record; whoever asked for it must hear that."""


class Recorder(Protocol):
    """Puts calls on record."""

    refusing: bool
    """Whether calls must not begin, as nothing could be said of them."""

    def ended(
        self, call: Call, began: float, guards: list[Guard], ending: Failure | BaseException | None
    ) -> "asyncio.Future[None]":
        """
        A call that began at that time of `perf_counter` has ended; None is a success.

        *guards* holds its guard if it came so far. The answer is done when the record is
        durable, or raises NotRecorded; whoever does not wait for it loses nothing.
        """


def remark(name: str, value: str) -> None:
    """Say something of the call that this code runs for, where its record will have it."""
    here = HERE.get()
    if isinstance(here, Guard):
        here.remarks = {**(here.remarks or {}), name: value}
