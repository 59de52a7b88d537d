"""Run a call only after it has been approved, and let it wait until then."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec.structs import replace

from gatepost.policy.approvals.approval_request import (
    ApprovalRequest,
    PageUrl,
    check_readable,
    no_page,
    party_of,
    reason_sentence,
)
from gatepost.policy.approvals.policies import ApprovalPolicy, caller_variables, variables_of
from gatepost.policy.approvals.request_store import computed
from gatepost.policy.approvals.service import ApprovalService
from gatepost.policy.approvals.stored_request import StoredApproval, use_of
from gatepost.policy.approvals.waiting_call import WaitingCall
from gatepost.policy.idempotency.execution import RunningCalls, StillRunning
from gatepost.policy.idempotency.idempotency_record import (
    RETRIED_KINDS,
    ConflictReason,
    IdempotentWork,
    may_repeat,
)
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.shared_store import SharedStore
from gatepost.tools.calls.redacted_call import RedactedCall, remark
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.calls.runner import EXPIRED, GRACE_S
from gatepost.tools.calls.stage import Next, Stage
from gatepost.tools.offers.offer import Call, Failure, Offer, Outcome, Tool, ToolFailure
from gatepost_authz.caller import TenantContext

log = logging.getLogger(__name__)

Denied = Callable[[TenantContext], Awaitable[None]]


async def _ignore(caller: TenantContext) -> None:
    """Ignore a denied call."""


MARGIN_S = 60.0

NO_APPROVER = (
    "`{tool}` needs a person's approval, and no rule names an approver for this machine's call. An "
    "operator can name one: `by` in a rule of [[approvals.rules]]."
)
REJECTED = (
    "A person rejected this call, so it was not run.{reason} Do not repeat it as it is: try "
    "something else, or ask your user."
)
NOT_IN_TIME = (
    "The call was not approved in time ({seconds:g} seconds), so it was denied and not run. Try "
    "something else, or tell your user that an approval is needed."
)
WITHDRAWN = "The request for a person's approval was withdrawn, so the call was not run."
REVOKED = "This caller may not call any more."
ALREADY_RUNNING = "This approved call is running already. Call again to get its outcome."
COMMENT = "The person who approved this call wrote: {comment}"
EDITED = "A person approved this call with other arguments. It was run with: {arguments}"


class ApprovalStage(Stage):
    """
    Hold calls that need approval until a person decides; other tools cost nothing.

    *page* returns the URL where a request can be decided. *denied* is called with each caller whose
    call a person or a policy has denied.
    """

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        service: ApprovalService,
        runs: RunningCalls,
        shared_store: SharedStore,
        *,
        redaction: Redaction,
        timeout_s: float,
        max_result_bytes: int,
        page: PageUrl = no_page,
        denied: Denied = _ignore,
    ) -> None:
        self._service, self._requests = service, service.requests
        self._runs, self._shared_store = runs, shared_store
        self._redaction = redaction
        self._timeout_s, self._max_result_bytes = timeout_s, max_result_bytes
        self._page, self._count_denial = page, denied
        # The policies of this moment; a reload creates another stage.
        self._policy_of, self._policies = service.policies.plan.get, service.policies

    def concerns(self, offer: Offer) -> bool:
        """Return whether a call of the tool may need approval."""
        return isinstance(offer, Tool) and self._policies.policy_for(offer) is not None

    def __call__(
        self, call: Call, offer: Offer, arguments: Any, proceed: Next
    ) -> Awaitable[Outcome]:
        """Handle the call; implements `Stage`."""
        if not isinstance(offer, Tool) or call.resumes:
            return proceed(call, offer, arguments)
        policy = self._policy_of(call.name) or self._policies.policy_for(offer)
        if policy is None:
            return proceed(call, offer, arguments)
        return self._hold(policy, call, offer, arguments, proceed)

    async def _hold(
        self, policy: ApprovalPolicy, call: Call, tool: Tool, arguments: Any, proceed: Next
    ) -> Outcome:
        await computed(call, check_readable, call.arguments)
        subject = variables_of(caller_variables(call.caller), tool, call.arguments, arguments)
        need = await computed(call, policy.need, subject)
        if need is None:
            return await proceed(call, tool, arguments)
        self._check(call)
        call_approvals = await self._requests.approvals_of(call, tool, policy)
        granted = None
        if call_approvals.matches.grants:
            granting = self._service.granting
            granted = await granting.use(call, tool, subject, need, call_approvals)
        if granted is not None:
            remark("grant", granted)
            return await proceed(call, tool, arguments)
        if not need.approvers_for(party_of(call.caller)):
            await self._count_denial(call.caller)
            raise ToolFailure("denied", NO_APPROVER.format(tool=tool.name))
        approval = await self._requests.find_or_create(call, tool, need, call_approvals)
        remark("approval", approval.request.id)
        decided: StoredApproval | None = approval
        if approval.request.state == "waiting":
            decided = await self._wait(call, approval)
        self._check(call)
        if decided is None:
            raise ToolFailure("denied", NOT_IN_TIME.format(seconds=need.timeout_s))
        state = decided.request.state
        if state == "waiting":
            return EXPIRED  # the token has expired; a call with a new token joins the same request
        if state in {"approved", "used"}:
            return await self._run(decided, call, tool, proceed)
        if state == "rejected":
            await self._count_denial(call.caller)
        raise await self._denied(decided)

    def _check(self, call: Call) -> None:
        if self._requests.is_revoked(call.caller):
            raise ToolFailure("denied", REVOKED)

    async def _wait(self, call: Call, approval: StoredApproval) -> StoredApproval | None:
        """Return the decided request, or the waiting one if the caller may wait no longer."""
        caller, request, requests = call.caller, approval.request, self._requests
        until = float("inf") if call.lasting else caller.expires_at + GRACE_S

        def is_gone() -> bool:
            return until <= requests.clock() or self._requests.is_revoked(caller)

        page = self._page(request.tenant, request.id)
        self._service.waiting_calls += 1
        try:
            await call.client.wait_for_decision(
                WaitingCall(
                    requests,
                    self._shared_store,
                    self._service.decision_poll,
                    request,
                    page,
                    is_gone,
                )
            )
        finally:
            self._service.waiting_calls -= 1
        return await requests.get(request.tenant, request.id)

    async def _denied(self, approval: StoredApproval) -> ToolFailure:
        request = approval.request
        if request.state == "rejected":
            reason = reason_sentence(request.decisions[-1].reason)
            return ToolFailure("denied", REJECTED.format(reason=reason))
        if request.state == "withdrawn":
            return ToolFailure("denied", WITHDRAWN)
        if approval.record.binding is not None:
            # The caller has been told; its next call makes a new request.
            await self._requests.change(approval, binding=None)
        return ToolFailure("denied", NOT_IN_TIME.format(seconds=approval.details.timeout_s))

    async def _run(
        self, approval: StoredApproval, call: Call, tool: Tool, proceed: Next
    ) -> Outcome:
        """Run the call under the approval's idempotency record, or return its stored outcome."""
        request = approval.request
        if request.state == "used":
            proceed = _already_used
        else:
            call = replace(call, arguments=self._approved_arguments(approval, call))
            approval = await self._extend(approval, tool)
        arguments = await computed(call, tool.check, call.arguments)
        work = IdempotentWork(
            call,
            tool,
            arguments,
            proceed,
            # A used approval only returns the outcome of its call.
            repeatable=request.state != "used" and may_repeat(tool, arguments),
            limit_s=tool.timeout_s or self._timeout_s,
            max_result_bytes=self._max_result_bytes,
            redacted=RedactedCall(self._redaction, call, tool),
        )
        try:
            outcome, conflict = await self._runs.join(work, use_of(request.id))
        except StillRunning as refused:
            kind, retry_after = refused.failure.kind, refused.failure.retry_after
            raise ToolFailure(kind, ALREADY_RUNNING, retry_after=retry_after) from None
        if not _is_still_usable(outcome, conflict):
            try:
                await self._requests.close(approval)
            except StoreUnavailable:
                # The call has run, and the idempotency record prevents a second run.
                log.warning("approval_not_closed", extra={"approval": request.id})
        return _with_notes(_with_own_words(outcome, conflict), request)

    def _approved_arguments(self, approval: StoredApproval, call: Call) -> bytes:
        """
        Return the arguments that the approver saw, not those of this retry.

        Equal arguments may be written with other digits (`digest_of`), and a tool may pass them on
        as they are written.
        """
        opened = self._requests.arguments.open(approval.record)
        if approval.request.edited is not None and (opened is None or opened.edited is None):
            raise ToolFailure(
                "denied",
                "A person approved this call with other arguments, and the key that keeps them is "
                "gone. It was not run.",
            )
        return call.arguments if opened is None else opened.approved

    async def _extend(self, approval: StoredApproval, tool: Tool) -> StoredApproval:
        """Return the approval, extended so that it does not expire while the tool runs."""
        until = self._requests.clock() + (tool.timeout_s or self._timeout_s) + MARGIN_S
        while approval.request.until < until:
            if (extended := await self._requests.change(approval, until=until)) is not None:
                return extended
            request = approval.request
            now = await self._requests.get(request.tenant, request.id)
            if now is None:
                timeout_s = approval.details.timeout_s
                raise ToolFailure("denied", NOT_IN_TIME.format(seconds=timeout_s))
            if now.request.state == "used":
                return now  # by another connection; its record has the outcome
            if now.request.state != "approved":
                raise await self._denied(now)
            approval = now
        return approval


async def _already_used(call: Call, offer: Offer, arguments: Any) -> Outcome:
    """Replace the tool of a used approval: its outcome is in the idempotency record or lost."""
    raise ToolFailure("conflict", "The approval of this call was used already.")


def _is_still_usable(outcome: Outcome, conflict: ConflictReason | None) -> bool:
    """Return whether nothing was done, or the outcome is unknown; the approval then stays."""
    failure = outcome.failure
    return conflict == "unknown" or (failure is not None and failure.kind in RETRIED_KINDS)


APPROVED_CALL_MESSAGES: Mapping[ConflictReason, str] = {
    "unknown": "Whether this approved call did its work is not known: the server that ran it is "
    "gone. It was not run again. Check what was done before you ask for it anew.",
    "stopped": "This approved call was stopped while its tool ran, so part of its work may be "
    "done. It was not run again. Check what was done before you ask for it anew.",
    "too large": "This approved call was carried out, and its answer was too large to be kept. It "
    "was not run again.",
}
"""Conflicts of idempotency keys, reworded for agents that have sent no key."""


def _with_own_words(outcome: Outcome, conflict: ConflictReason | None) -> Outcome:
    words = None if conflict is None else APPROVED_CALL_MESSAGES.get(conflict)
    return outcome if words is None else Outcome(failure=Failure("conflict", words))


def _with_notes(outcome: Outcome, request: ApprovalRequest) -> Outcome:
    """Return the outcome with the arguments that were run and the comments of the approvers."""
    notes = [
        COMMENT.format(comment=decision.reason) for decision in request.decisions if decision.reason
    ]
    if request.edited is not None:
        notes.insert(0, EDITED.format(arguments=request.edited.decode()))
    if not notes:
        return outcome
    note = "\n".join(notes)
    if outcome.failure is not None:
        failure: Failure = replace(outcome.failure, message=f"{outcome.failure.message} ({note})")
        return replace(outcome, failure=failure)
    return replace(outcome, content=(*outcome.content, {"type": "text", "text": note}))
