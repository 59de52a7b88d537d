"""The service for approval requests: what people see, decide, grant and revoke."""

import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gatepost.config.approvals import ApprovalsSettings
from gatepost.execution.cpu_thread import in_cpu_thread
from gatepost.policy.approvals.approval_request import (
    SCRIPT_PREFIX,
    ApprovalDecision,
    ApprovalRequest,
    ApprovalVerdict,
    Approver,
    GrantScope,
    Operator,
    Undecidable,
    party_of,
)
from gatepost.policy.approvals.grants import GrantService
from gatepost.policy.approvals.notifications import ApprovalNotifier
from gatepost.policy.approvals.policies import (
    OTHER_TOOL,
    IsRevoked,
    none_revoked,
    objection,
    outdated,
    variables_of,
)
from gatepost.policy.approvals.request_lists import RequestLists, ScriptRequests
from gatepost.policy.approvals.request_store import RequestStore
from gatepost.policy.approvals.stored_request import (
    ArgumentSealer,
    SealedArguments,
    StoredApproval,
    merged,
    shown_arguments,
)
from gatepost.policy.approvals.tool_policies import ToolPolicies
from gatepost.policy.approvals.waiting_call import DecisionPoll
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.records import Records
from gatepost.telemetry.logs import INVISIBLE
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.calls.registry import Registry
from gatepost.tools.offers.offer import Tool, ToolFailure

MAX_REASON = 1_000
SURROGATE = re.compile("[\ud800-\udfff]")
"""The replacement for bytes of a terminal that are not UTF-8."""
UNKNOWN = "There is no such request (any more)."
DECIDED = "Another person approved the original arguments. Approve them too, or reject the call."


class ApprovalService(RequestLists):
    """
    The requests of all tenants; one per process, and one for a command.

    All methods raise StoreUnavailable. A change is durable when its method returns. If several
    attempts are made at the same time, one of them succeeds. Requests and grants of revoked callers
    do not count.
    """

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        records: Records,
        keyring: KeyRing,
        redaction: Redaction,
        notifier: ApprovalNotifier,
        scripts: ScriptRequests,
        *,
        is_revoked: IsRevoked = none_revoked,
        clock: Callable[[], float] = time.time,
    ) -> None:
        requests = RequestStore(
            records, keyring, redaction, notifier, is_revoked=is_revoked, clock=clock
        )
        super().__init__(records, requests, scripts)
        self.clock, self._redaction = clock, redaction
        self.waiting_calls = 0
        """Number of calls of this process that wait for a decision."""
        self.decision_poll = DecisionPoll(records)
        self.granting = GrantService(records, notifier, clock, is_revoked=is_revoked)
        self.apply(ApprovalsSettings(), {})

    def apply(
        self,
        settings: ApprovalsSettings,
        tools: Mapping[str, Tool],
        tenant_tools: Registry | None = None,
    ) -> None:
        """
        Take up a configuration: its settings, and its tools by name; raises BadCondition.

        *tenant_tools* are the tools of tenants; None if there are none.
        """
        self.settings = settings
        self.policies = ToolPolicies(settings, tools, tenant_tools)
        self.requests.apply(settings, self.policies)
        self.granting.apply(settings)

    def objection(self, request: ApprovalRequest, approver: Approver) -> str | None:
        """Return a sentence why *approver* cannot approve the request, or None."""
        if request.kind == "script":
            return self._scripts.objection(request, approver)
        why, policies = objection(request, approver, now=self.clock()), self.policies
        if request.facts is None:
            return why or outdated(request, policies.plan.get(request.tool))
        why = why or outdated(request, policies.of_request(request))
        return OTHER_TOOL if why is None and policies.has_changed(request) else why

    async def approve(  # noqa: PLR0913  # what a person may say with a yes, by name
        self,
        tenant: str,
        request_id: str,
        by: Approver,
        *,
        seen_digest: str | None = None,
        edited: bytes | None = None,
        grant: GrantScope | None = None,
        reason: str = "",
    ) -> ApprovalRequest:
        """
        Approve a request; the call runs once all needed people have approved.

        Undecidable says why not. *seen_digest* is the `digest` of the request as *by* saw it; a
        request that has changed since is not approved. *edited* are other arguments, a JSON object
        that may contain the redaction placeholders unchanged. *grant* covers further calls.
        """
        if request_id.startswith(SCRIPT_PREFIX):
            return await self._decide_script(
                tenant, request_id, by, "approved", seen_digest=seen_digest
            )
        while True:
            approval = await self._decidable(tenant, request_id, by)
            if seen_digest is not None and seen_digest != approval.request.digest:
                raise Undecidable("The request is not what you saw any more. Look at it again.")
            if grant is not None:
                await self.granting.check(approval, grant, edited)
            changes = {} if edited is None else await self._edited(approval, by, edited)
            changed = self._approved(approval, by, changes, self._cleaned(tenant, reason))
            if await self.requests.decide("approved", changed, by):
                break
        if grant is not None:
            await self.granting.give(changed, grant, by)
        return changed.request

    async def reject(
        self, tenant: str, request_id: str, by: Approver, reason: str
    ) -> ApprovalRequest:
        """Reject the call; the agent gets *reason*, which may be empty. Raises Undecidable."""
        if request_id.startswith(SCRIPT_PREFIX):
            return await self._decide_script(tenant, request_id, by, "rejected", reason)
        while True:
            approval, now = await self._decidable(tenant, request_id, by), self.clock()
            decision = ApprovalDecision(
                by=party_of(by), verdict="rejected", at=now, reason=self._cleaned(tenant, reason)
            )
            changed = approval.changed(
                now,
                keep_s=self.settings.keep_s,
                state="rejected",
                # Until that time the same call is refused, so that an agent cannot ask again and
                # again.
                until=now + approval.details.timeout_s,
                decided_at=now,
                decisions=(*approval.request.decisions, decision),
                sealed=None,
            )
            if await self.requests.decide("rejected", changed, by):
                return changed.request

    async def withdraw(self, tenant: str) -> int:
        """End requests, unused approvals and grants of revoked people; return their number."""
        withdrawn = await self.granting.withdraw(tenant) + await self._scripts.withdraw(tenant)
        for approval_id in await self.records.for_tenant(tenant).approvals.undecided():
            approval = await self.requests.get(tenant, approval_id)
            withdrawn += approval is not None and approval.request.state == "withdrawn"
        return withdrawn

    async def revoke_grant(self, tenant: str, grant_id: str, by: Approver) -> bool:
        """End a grant; return whether it existed. Undecidable if *by* may not do so."""
        _check_tenant(tenant, by)
        return await self.granting.revoke(tenant, grant_id, by)

    async def _decide_script(
        self,
        tenant: str,
        request_id: str,
        by: Approver,
        verdict: ApprovalVerdict,
        reason: str = "",
        *,
        seen_digest: str | None = None,
    ) -> ApprovalRequest:
        _check_tenant(tenant, by)
        reason, now = self._cleaned(tenant, reason), self.clock()
        decision = ApprovalDecision(by=party_of(by), verdict=verdict, at=now, reason=reason)
        until = now + self.settings.keep_s
        return await self._scripts.decide(
            tenant, request_id, by, decision, seen_digest=seen_digest, until=until
        )

    async def _decidable(self, tenant: str, request_id: str, by: Approver) -> StoredApproval:
        """Return a request about which *by* can decide; raises Undecidable."""
        _check_tenant(tenant, by)
        approval = await self.requests.get(tenant, request_id)
        if approval is None:
            raise Undecidable(UNKNOWN)
        if approval.request.facts is not None:
            await self.policies.load_tools(approval.request)
        if (why := self.objection(approval.request, by)) is not None:
            raise Undecidable(why)
        return approval

    async def _edited(
        self, approval: StoredApproval, by: Approver, edited: bytes
    ) -> dict[str, Any]:
        """Return the changes for edited arguments; raises Undecidable or TooManyWaiting."""
        services = self.requests.arguments, self.policies, self._redaction
        edit = partial(edited_changes, approval, edited, *services)
        if isinstance(by, Operator):
            return edit()  # a command serves no other requests
        return await in_cpu_thread(by, edit)

    def _approved(
        self, approval: StoredApproval, by: Approver, changes: dict[str, Any], reason: str
    ) -> StoredApproval:
        request, now = approval.request, self.clock()
        decision = ApprovalDecision(
            by=party_of(by),
            verdict="approved",
            at=now,
            reason=reason,
            edited=changes.get("edited") is not None,
        )
        changes["decisions"] = (*request.decisions, decision)
        if request.approvals_given + 1 >= request.needed:
            until = now + approval.details.timeout_s
            changes |= {"state": "approved", "until": until, "decided_at": now}
        return approval.changed(now, keep_s=self.settings.keep_s, **changes)

    def _cleaned(self, tenant: str, reason: str) -> str:
        """
        Return a person's reason without secrets; Undecidable if it is too long or not text.

        Unseen characters could hide instructions for the agent in what a person has pasted.
        """
        reason = INVISIBLE.sub("", reason).strip()
        if len(reason) > MAX_REASON:
            raise Undecidable(f"A reason has at most {MAX_REASON} characters.")
        if SURROGATE.search(reason):
            raise Undecidable("A reason must be UTF-8 text. Type it again in a UTF-8 terminal.")
        return self._redaction.clean(tenant, reason)


def _check_tenant(tenant: str, by: Approver) -> None:
    if not isinstance(by, Operator) and by.tenant_id != tenant:
        raise Undecidable(UNKNOWN)


def edited_changes(
    approval: StoredApproval,
    edited: bytes,
    sealer: ArgumentSealer,
    policies: ToolPolicies,
    redaction: Redaction,
) -> dict[str, Any]:
    """Return the changes of a request for arguments that an approver edited; raises Undecidable."""
    request = approval.request
    if request.approvals_given:
        raise Undecidable(DECIDED)
    tool, sealed = policies.tool_of(request), sealer.open(approval.record)
    if sealed is None or tool is None:
        raise Undecidable("The arguments cannot be opened here, so they cannot be edited.")
    arguments = merged(edited, request.arguments, sealed.arguments)
    if sealer.digest(tool, arguments) == approval.details.digest:
        if request.edited is None:
            return {}
        # The approval of the person who edited them is gone; the edit must not outlast it.
        original = sealer.seal(request.id, SealedArguments(sealed.arguments))
        return {"sealed": original, "edited": None}
    try:
        checked = tool.check(arguments)
        redacted = shown_arguments(redaction, request.tenant, tool, arguments)
    except ToolFailure as refused:
        message = redaction.clean(request.tenant, refused.failure.message)
        raise Undecidable(f"The tool does not take these arguments: {message}") from None
    variables = variables_of(approval.details.caller, tool, arguments, checked)
    policy = policies.policy_for(tool)
    need = None if policy is None else policy.need(variables)
    if need is not None and not need.is_met_by(request.caller, request.needed, request.by):
        raise Undecidable("These arguments need other approvers. Reject, and call again.")
    both = sealer.seal(request.id, SealedArguments(sealed.arguments, arguments))
    return {"sealed": both, "edited": redacted}
