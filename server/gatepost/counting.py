"""Counts how calls end, on their way to the record."""

from time import perf_counter

from gatepost.approvals.herald import Change
from gatepost.audit.entry import reason_of
from gatepost.pledge import Pledge
from gatepost.telemetry import family
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


class Counting:
    """
    A Recorder that counts, before the one that keeps records; None: nobody keeps any.

    *traced*: the span that a call runs in is told how it ended.
    """

    def __init__(self, meter: Meter, recorder: Recorder | None, *, traced: bool = False) -> None:
        self._traced = traced
        self._meter, self._called = meter, meter.called
        self._recorder = recorder
        self._record = None if recorder is None else recorder.ended

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
        name = None if outcome == "unknown" else call.name
        self._called(call.kind, name, outcome, perf_counter() - began)
        if self._meter.tells_tenants and call.kind == "tool":
            self._meter.called_for(call.caller.tenant_id, outcome)
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
