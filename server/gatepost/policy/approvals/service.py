"""The service for approval requests: what people see, decide, grant and revoke."""

import asyncio
import logging
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from msgspec.structs import replace

from gatepost.background import during
from gatepost.config.approvals import ApprovalsSettings
from gatepost.policy.approvals.approvers import objection, outdated
from gatepost.policy.approvals.arguments import merged, shown_arguments
from gatepost.policy.approvals.grants import GrantService
from gatepost.policy.approvals.notifications import ApprovalNotifier
from gatepost.policy.approvals.policies import Plan, TenantTools, ToolPolicies, variables_of
from gatepost.policy.approvals.request import (
    SCRIPT_PREFIX,
    ApprovalDecision,
    ApprovalGrant,
    ApprovalRequest,
    Approver,
    GrantScope,
    IsRevoked,
    Operator,
    Undecidable,
    none_revoked,
    party_of,
)
from gatepost.policy.approvals.request_store import RequestStore
from gatepost.policy.approvals.stored_request import SealedArguments, StoredApproval
from gatepost.policy.approvals.waiting import RequestLists, ScriptRequests
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.approvals import ApprovalStore
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records
from gatepost.telemetry.logs import UNSEEN
from gatepost.tools.api import Tool, ToolFailure
from gatepost.tools.redaction import Redaction

MOST_REASON = 1_000
HALF = re.compile("[\ud800-\udfff]")
"""The replacement for bytes of a terminal that are not UTF-8."""
EXPIRE_EVERY_S = 5.0
TIDY_EVERY = 720
"""Rejected scripts, which are kept for weeks, are removed every so many runs (about an hour)."""
DICE = random.SystemRandom()

DECIDED = "Another person approved the original arguments. Approve them too, or reject the call."
UNKNOWN = "There is no such request (any more)."

log = logging.getLogger("gatepost.approvals")


class ApprovalService(RequestLists):
    """
    The requests of all tenants; one per process, and one for a command.

    All methods raise StoreUnavailable. A change is durable when its method returns. If several
    attempts are made at the same time, one of them succeeds. Requests and grants of revoked callers
    do not count.
    """

    plan: Plan
    policies: ToolPolicies
    settings: ApprovalsSettings

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
        self.granting = GrantService(records, self.requests, notifier, clock, is_revoked=is_revoked)
        self.apply(ApprovalsSettings(), {}, {})

    def apply(
        self,
        settings: ApprovalsSettings,
        plan: Plan,
        tools: Mapping[str, Tool],
        beside: TenantTools | None = None,
    ) -> None:
        """
        Take up a configuration: its settings, its policies, and its tools by name.

        *beside* are the tools of tenants; None if there are none.
        """
        self.settings, self.plan = settings, plan
        self.policies = ToolPolicies(settings, plan, tools, beside)
        self.requests.apply(settings, self.policies)

    async def get(self, tenant: str, request_id: str) -> ApprovalRequest | None:
        """Return a call or script in any state; None if the tenant has none with this id."""
        if request_id.startswith(SCRIPT_PREFIX):
            return await self._scripts.get(tenant, request_id)
        approval = await self.requests.get(tenant, request_id)
        if approval is None:
            return None
        request = approval.request
        progress = await self.requests.progress(request)
        return request if progress in (None, "done") else replace(request, use=progress)

    def objection(self, request: ApprovalRequest, who: Approver) -> str | None:
        """Return a sentence why *who* cannot approve the request, or None."""
        if request.kind == "script":
            return self._scripts.objection(request, who)
        return objection(request, who, now=self.clock()) or outdated(request, self.policies)

    async def approve(  # noqa: PLR0913  # what a person may say with a yes, by name
        self,
        tenant: str,
        request_id: str,
        by: Approver,
        *,
        seen: str | None = None,
        edited: bytes | None = None,
        grant: GrantScope | None = None,
        reason: str = "",
    ) -> ApprovalRequest:
        """
        Approve a request; the call runs once all needed people have approved.

        Undecidable says why not. *seen* is the `digest` of the request as *by* saw it; a request
        that has changed since is not approved. *edited* are other arguments, a JSON object that
        may contain the redaction placeholders unchanged. *grant* covers further calls.
        """
        if request_id.startswith(SCRIPT_PREFIX):
            yes = ApprovalDecision(by=party_of(by), verdict="approved", at=self.clock())
            return await self._decide_script(tenant, request_id, by, yes, seen=seen)
        while True:
            approval = await self._decidable(tenant, request_id, by)
            if seen is not None and seen != approval.request.digest:
                raise Undecidable("The request is not what you saw any more. Look at it again.")
            if grant is not None:
                self.granting.check(approval, grant, edited)
            changed = self._approved(approval, by, edited, self._cleaned(tenant, reason))
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
            reason = self._cleaned(tenant, reason)
            no = ApprovalDecision(
                by=party_of(by), verdict="rejected", at=self.clock(), reason=reason
            )
            return await self._decide_script(tenant, request_id, by, no)
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
        ended = await self.granting.withdraw(tenant) + await self._scripts.withdraw(tenant)
        for approval_id in await self._of(tenant).undecided():
            approval = await self.requests.get(tenant, approval_id)
            ended += approval is not None and approval.request.state == "withdrawn"
        return ended

    async def grants(self, tenant: str) -> list[ApprovalGrant]:
        """Return the valid grants, the oldest first."""
        return await self.granting.all(tenant)

    async def revoke_grant(self, tenant: str, grant_id: str, by: Approver) -> bool:
        """End a grant; return whether it existed. Undecidable if *by* may not do so."""
        _check_tenant(tenant, by)
        return await self.granting.revoke(tenant, grant_id, by)

    @asynccontextmanager
    async def expiring(self, *, every_s: float = EXPIRE_EVERY_S) -> AsyncIterator[None]:
        """Expire requests that are not decided in time, in the background, during a block."""
        async with during("expiry", lambda: self._expire_always(every_s)):
            yield

    async def _expire_always(self, every_s: float) -> None:
        for run in count():
            # Random, so that replicas do not query at the same time.
            await asyncio.sleep(every_s * DICE.uniform(0.7, 1.1))
            try:
                await self.requests.expire_due()
                if run % TIDY_EVERY == 0:
                    await self._scripts.tidy()
            except StoreUnavailable as outage:
                log.debug("approvals_not_expired", extra={"reason": str(outage)})

    async def _decide_script(
        self,
        tenant: str,
        request_id: str,
        by: Approver,
        decision: ApprovalDecision,
        *,
        seen: str | None = None,
    ) -> ApprovalRequest:
        _check_tenant(tenant, by)
        until = decision.at + self.settings.keep_s
        return await self._scripts.decide(tenant, request_id, by, decision, seen=seen, until=until)

    def _of(self, tenant: str) -> ApprovalStore:
        return self.records.of(tenant).approvals

    async def _decidable(self, tenant: str, request_id: str, by: Approver) -> StoredApproval:
        """Return a request about which *by* can decide; raises Undecidable."""
        _check_tenant(tenant, by)
        approval = await self.requests.get(tenant, request_id)
        if approval is None:
            raise Undecidable(UNKNOWN)
        if approval.request.facts is not None:
            await self.policies.ready(approval.request)
        if (why := self.objection(approval.request, by)) is not None:
            raise Undecidable(why)
        return approval

    def _approved(
        self, approval: StoredApproval, by: Approver, edited: bytes | None, reason: str
    ) -> StoredApproval:
        request, now = approval.request, self.clock()
        changes = {} if edited is None else self._edited(approval, edited)
        decision = ApprovalDecision(
            by=party_of(by), verdict="approved", at=now, reason=reason, edited="edited" in changes
        )
        changes["decisions"] = (*request.decisions, decision)
        if request.given + 1 >= request.needed:
            until = now + approval.details.timeout_s
            changes |= {"state": "approved", "until": until, "decided_at": now}
        return approval.changed(now, keep_s=self.settings.keep_s, **changes)

    def _edited(self, approval: StoredApproval, edited: bytes) -> dict[str, Any]:
        """Return the changes for edited arguments; raises Undecidable."""
        request = approval.request
        if request.given:
            raise Undecidable(DECIDED)
        sealer, tool = self.requests.arguments, self.policies.tool_of(request)
        sealed = sealer.open(approval.record)
        if sealed is None or tool is None:
            raise Undecidable("The arguments cannot be opened here, so they cannot be edited.")
        arguments = merged(edited, request.arguments, sealed.arguments)
        if sealer.digest(tool, arguments) == approval.details.digest:
            return {}
        try:
            checked = tool.check(arguments)
            shown = shown_arguments(self._redaction, request.tenant, tool, arguments)
        except ToolFailure as refused:
            message = self._redaction.clean(request.tenant, refused.failure.message)
            raise Undecidable(f"The tool does not take these arguments: {message}") from None
        subject = variables_of(approval.details.caller, tool, arguments, checked)
        policy = self.policies.of(tool)
        need = None if policy is None else policy.need(subject)
        if need is not None and not need.within(request.caller, request.needed, request.by):
            raise Undecidable("These arguments need other approvers. Reject, and call again.")
        both = sealer.seal(request.id, SealedArguments(sealed.arguments, arguments))
        return {"sealed": both, "edited": shown}

    def _cleaned(self, tenant: str, reason: str) -> str:
        """
        Return a person's reason without secrets; Undecidable if it is too long or not text.

        Unseen characters could hide instructions for the agent in what a person has pasted.
        """
        reason = UNSEEN.sub("", reason).strip()
        if len(reason) > MOST_REASON:
            raise Undecidable(f"A reason has at most {MOST_REASON} characters.")
        if HALF.search(reason):
            raise Undecidable("A reason must be UTF-8 text. Type it again in a UTF-8 terminal.")
        return self._redaction.clean(tenant, reason)


def _check_tenant(tenant: str, by: Approver) -> None:
    if not isinstance(by, Operator) and by.tenant_id != tenant:
        raise Undecidable(UNKNOWN)
