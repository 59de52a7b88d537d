"""Count the outcomes of calls before they reach the audit writer."""

import asyncio
from time import perf_counter

from gatepost.policy.approvals.approval_request import ApprovalRequest
from gatepost.policy.approvals.notifications import ApprovalChange
from gatepost.storage.commit import NO_COMMIT, CommitFuture
from gatepost.telemetry import metric_families
from gatepost.telemetry.access import COLLECTED_S
from gatepost.telemetry.metrics import Meter
from gatepost.telemetry.trace import CURRENT_SPAN
from gatepost.tools.calls.redacted_call import RedactedCall
from gatepost.tools.calls.stage import Recorder, reason_of
from gatepost.tools.offers.offer import Call, Failure

CallLabels = tuple[str, str, str, str | None]
"""Kind, name and outcome of calls, and their tenant if it is a label."""


class CallBatch:
    """
    Durations of ended calls and of commits of audit records, added to the meter in batches.

    There is one object per process; it survives reloads.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.seconds: dict[CallLabels, list[float]] = {}
        """Durations of calls; the dict is emptied but never replaced."""
        self._commits: list[float] = []

    def add_outcome(self, labels: CallLabels) -> list[float]:
        """Return a new list for the durations of calls with this ending."""
        if not self.seconds and not self._commits:
            asyncio.get_running_loop().call_later(COLLECTED_S, self.flush)
        return self.seconds.setdefault(labels, [])

    def committed(self, seconds: float) -> None:
        """Add the duration of a commit of audit records."""
        if not self.seconds and not self._commits:
            asyncio.get_running_loop().call_later(COLLECTED_S, self.flush)
        self._commits.append(seconds)

    def flush(self) -> None:
        """Add all to the meter now; call this before the event loop ends."""
        gathered, commits = [*self.seconds.items()], self._commits
        self.seconds.clear()
        self._commits = []
        for commit_s in commits:
            self._meter.observe(metric_families.AUDIT_SECONDS, commit_s)
        for (kind, name, outcome, tenant), seconds in gathered:
            tool = None if outcome == "unknown" else name
            self._meter.called(kind, tool, outcome, *seconds)
            if tenant is not None and kind == "tool":
                self._meter.called_for(tenant, outcome, len(seconds))


class CountingRecorder:
    """
    A `Recorder` that counts and passes calls on to the audit writer (None: there is none).

    With *traced*, the call's span gets its outcome.
    """

    def __init__(
        self, meter: Meter, batch: CallBatch, recorder: Recorder | None, *, traced: bool = False
    ) -> None:
        self._traced = traced
        self._meter = meter
        self._recorder = recorder
        self._record = None if recorder is None else recorder.record_end
        self._seconds, self._add_outcome = batch.seconds, batch.add_outcome

    @property
    def refusing(self) -> bool:
        """Implement `Recorder`."""
        return self._recorder is not None and self._recorder.refusing

    def record_end(
        self,
        call: Call,
        began: float,
        redacted_calls: list[RedactedCall],
        ending: Failure | BaseException | None,
    ) -> CommitFuture:
        """Implement `Recorder`."""
        outcome = "success" if ending is None else self._outcome(ending)
        if self._traced and not call.depth and (span := CURRENT_SPAN.get()) is not None:
            span.span.set_attribute("gatepost.outcome", outcome)
        tenant = call.caller.tenant_id if self._meter.counts_tenants else None
        labels = (call.kind, call.name, outcome, tenant)
        seconds = self._seconds.get(labels)
        if seconds is None:
            seconds = self._add_outcome(labels)
        seconds.append(perf_counter() - began)
        return (
            NO_COMMIT if self._record is None else self._record(call, began, redacted_calls, ending)
        )

    def _outcome(self, ending: Failure | BaseException) -> str:
        """Return the outcome label, and count refusals by limits."""
        if isinstance(ending, Failure):
            # Without a limit it is a rate limit of an upstream, reported by the tool.
            if ending.limit is not None:
                self._meter.limited(ending.limit)
            return ending.kind
        outcome = reason_of(ending).outcome
        if outcome in INSUFFICIENT:
            self._meter.refused(outcome)
        return outcome


INSUFFICIENT = frozenset({"insufficient_scope", "insufficient_authentication"})
"""The exceptions that are answered like refusals of the gate."""


class DecisionMetrics:
    """Count the outcomes of approval requests, in the process that ended them."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    async def __call__(self, change: ApprovalChange) -> None:
        """Count a change; implements `ApprovalListener`."""
        is_waiting = (
            isinstance(change.changed, ApprovalRequest) and change.changed.state == "waiting"
        )
        if change.kind == "approved" and is_waiting:
            return  # the first of two approvals
        if change.kind in DECISIONS:
            self._meter.decided(change.kind)


DECISIONS = frozenset(metric_families.DECISIONS)
