"""Counts how calls end, on their way to the record."""

import asyncio
from time import perf_counter

from gatepost.approvals.herald import Change
from gatepost.audit.entry import reason_of
from gatepost.pledge import Pledge
from gatepost.telemetry import family
from gatepost.telemetry.access import GATHERED_S
from gatepost.telemetry.metrics import Meter
from gatepost.telemetry.trace import CURRENT
from gatepost.tools.api import Call, Failure
from gatepost.tools.record import Recorder
from gatepost.tools.redaction import Guard


def _settled() -> Pledge:
    pledge = Pledge()
    pledge.keep()
    return pledge


SETTLED = _settled()
"""Where nobody keeps records there is nothing to wait for."""


Ended = tuple[str, str, str, str | None]
"""Kind, name and outcome of calls, and their tenant where calls are told by it."""


class Tally:
    """
    Calls that have ended, put into the meter for some time together.

    One for a process, whatever configurations come and go.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.seconds: dict[Ended, list[float]] = {}
        """How long calls took, gathered; it is emptied, and never another one."""

    def first(self, ended: Ended) -> list[float]:
        """Where the times of calls are gathered that ended so, when there are none yet."""
        if not self.seconds:
            asyncio.get_running_loop().call_later(GATHERED_S, self.settle)
        return self.seconds.setdefault(ended, [])

    def settle(self) -> None:
        """Put all into the meter now: what is gathered when the loop ends is never counted."""
        gathered = [*self.seconds.items()]
        self.seconds.clear()
        for (kind, name, outcome, tenant), seconds in gathered:
            told = None if outcome == "unknown" else name
            self._meter.called(kind, told, outcome, *seconds)
            if tenant is not None and kind == "tool":
                self._meter.called_for(tenant, outcome, len(seconds))


class Counting:
    """
    A Recorder that counts, before the one that keeps records; None: nobody keeps any.

    *traced*: the span that a call runs in is told how it ended.
    """

    def __init__(
        self, meter: Meter, tally: Tally, recorder: Recorder | None, *, traced: bool = False
    ) -> None:
        self._traced = traced
        self._meter = meter
        self._recorder = recorder
        self._record = None if recorder is None else recorder.ended
        self._seconds, self._first = tally.seconds, tally.first

    @property
    def refusing(self) -> bool:
        """See `Recorder`."""
        return self._recorder is not None and self._recorder.refusing

    def ended(
        self, call: Call, began: float, guards: list[Guard], ending: Failure | BaseException | None
    ) -> Pledge:
        """See `Recorder`."""
        outcome = "success" if ending is None else self._outcome(ending)
        if self._traced and not call.depth and (mark := CURRENT.get()) is not None:
            mark.span.say("gatepost.outcome", outcome)
        tenant = call.caller.tenant_id if self._meter.tells_tenants else None
        ended = (call.kind, call.name, outcome, tenant)
        seconds = self._seconds.get(ended)
        if seconds is None:
            seconds = self._first(ended)
        seconds.append(perf_counter() - began)
        return SETTLED if self._record is None else self._record(call, began, guards, ending)

    def _outcome(self, ending: Failure | BaseException) -> str:
        """The word for it; what it is besides a call is counted, too."""
        if isinstance(ending, Failure):
            # Without the name of a limit it is an upstream's, which the tool tells.
            if ending.limit is not None:
                self._meter.limited(ending.limit)
            return ending.kind
        outcome = reason_of(ending).outcome
        if outcome in LACKING:
            self._meter.refused(outcome)
        return outcome


LACKING = frozenset({"insufficient_scope", "insufficient_authentication"})
"""What is answered as the gate answers it."""


class Decided:
    """Counts how approval requests end; hears of each from the process that ended it."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    async def __call__(self, change: Change) -> None:
        """See `gatepost.approvals.herald.Hears`."""
        request = change.request
        if change.what == "approved" and request is not None and request.state == "waiting":
            return  # the first of two
        if change.what in ENDS:
            self._meter.decided(change.what)


ENDS = frozenset(family.DECISIONS)
