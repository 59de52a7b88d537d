"""Approval requests for scripts, which an administrator decides (P11)."""

import time
from collections.abc import Callable
from typing import Literal

from msgspec.structs import replace

from gatepost.policy.approvals import policies
from gatepost.policy.approvals.approval_request import (
    ERASED,
    SCRIPT_PREFIX,
    ApprovalDecision,
    ApprovalRequest,
    Approver,
    Operator,
    Undecidable,
    party_of,
)
from gatepost.policy.approvals.notifications import ApprovalNotifier
from gatepost.policy.approvals.policies import IsRevoked, caller_is_revoked, none_revoked
from gatepost.policy.script_reviews.script import Rejection, Script, ScriptReview
from gatepost.policy.script_reviews.store import SUBJECT, ScriptApprovals
from gatepost.storage.records import Records

APPROVERS = (("role:admin",),)
UNKNOWN_SUBMITTER = (
    "The person who submitted this script was erased, so Gatepost cannot tell whether that was "
    "you. An operator can approve it with `gatepost scripts approve`."
)
NOTHING_WAITS = "No request for that content is waiting. Review the requests that wait now."


class ScriptReviews:
    """
    The waiting and rejected scripts of all tenants; `ApprovalService` shows them among the calls.

    Scripts that a revoked caller has submitted no longer wait.
    """

    def __init__(
        self,
        records: Records,
        notifier: ApprovalNotifier,
        *,
        is_revoked: IsRevoked = none_revoked,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._records, self._notifier = records, notifier
        self._is_revoked, self._clock = is_revoked, clock

    async def tenants(self) -> set[str]:
        """Return the tenants with approved, waiting or rejected scripts."""
        return {*await self._records.tenants(SUBJECT)}

    async def waiting(self, tenant: str) -> list[ApprovalRequest]:
        """Return the tenant's waiting scripts, the oldest first."""
        approvals = self._of(tenant)
        reviews = await approvals.waiting()
        if not reviews:
            return []
        approved = {review.name: review.content for review in await approvals.all_approved()}
        requests = [_request(tenant, review, approved.get(review.name)) for review in reviews]
        return [request for request in requests if not caller_is_revoked(request, self._is_revoked)]

    async def rejected(self, tenant: str) -> list[ApprovalRequest]:
        """Return the tenant's rejected scripts that do not wait again, the latest first."""
        return [
            _rejected(tenant, rejection, None) for rejection in await self._of(tenant).rejected()
        ]

    async def get(self, tenant: str, request_id: str) -> ApprovalRequest | None:
        """Return the script with that id if it waits or was rejected."""
        stored = await self._find(tenant, request_id)
        return None if stored is None else stored[0]

    def objection(self, request: ApprovalRequest, approver: Approver) -> str | None:
        """Return a sentence why *approver* cannot approve the script, or None."""
        if request.state == "rejected":
            if request.caller == ERASED and not isinstance(approver, Operator):
                # The erased person may sign in again, and must not approve a script of their own.
                return UNKNOWN_SUBMITTER
            # A rejection can be reversed, also by the person who rejected the script.
            request = replace(request, state="waiting", decisions=())
        return policies.objection(request, approver, now=self._clock())

    async def decide(
        self,
        tenant: str,
        request_id: str,
        by: Approver,
        decision: ApprovalDecision,
        *,
        seen_digest: str | None = None,
        until: float,
    ) -> ApprovalRequest:
        """
        Approve a waiting or rejected script, or reject it *until* then; Undecidable says why not.

        *seen_digest* is the `digest` of the request as *by* saw it.
        """
        await self.withdraw(tenant)
        verdict = decision.verdict
        decided = await self._decided(tenant, request_id, by, decision, until)
        if seen_digest is not None and seen_digest != decided.digest:
            raise Undecidable(NOTHING_WAITS)
        await self._notifier.record(verdict, decided, by)
        if not await self._store(decided):
            await self._notifier.record("void", decided, by)
            raise Undecidable(NOTHING_WAITS)
        await self._notifier.announce(verdict, decided, by, is_recorded=True)
        return decided

    async def allow(self, tenant: str, script: Script, by: Approver) -> None:
        """
        Approve exactly this script, even if no call has requested it.

        This is for operators, who read the file themselves. Undecidable if it is not text.
        """
        now, party = self._clock(), party_of(by)
        try:
            review = ScriptReview.of(script, at=now)
        except ValueError as unreadable:
            raise Undecidable(str(unreadable)) from None
        request = await self.get(tenant, SCRIPT_PREFIX + script.digest) or _request(tenant, review)
        decided = _with(request, ApprovalDecision(by=party, verdict="approved", at=now))
        await self._notifier.record("approved", decided, by)
        await self._of(tenant).approve(script, by=party)
        await self._notifier.announce("approved", decided, by, is_recorded=True)

    async def revoke(
        self, tenant: str, name: str, by: Approver
    ) -> Literal["approved", "waiting"] | None:
        """Revoke the approval of a name and its waiting scripts; return what existed."""
        approvals, now = self._of(tenant), self._clock()
        reviews = [review for review in await approvals.waiting() if review.name == name]
        if (approved := await approvals.approved(name)) is not None:
            reviews.append(approved)
        requests = [_request(tenant, review) for review in reviews]
        withdrawn = [replace(request, state="withdrawn", decided_at=now) for request in requests]
        for request in withdrawn:
            await self._notifier.record("revoked", request, by)
        revoked = await approvals.revoke(name)
        for request in withdrawn:
            if revoked is None:
                await self._notifier.record("void", request, by)
            else:
                await self._notifier.announce("revoked", request, by, is_recorded=True)
        return revoked

    async def withdraw(self, tenant: str) -> int:
        """Withdraw the waiting scripts of revoked callers; return their number."""
        approvals, count = self._of(tenant), 0
        for review in await approvals.waiting():
            request = _request(tenant, review)
            if caller_is_revoked(request, self._is_revoked) and await approvals.drop(review.digest):
                withdrawn = replace(request, state="withdrawn", decided_at=self._clock())
                await self._notifier.announce("withdrawn", withdrawn)
                count += 1
        return count

    async def tidy(self) -> int:
        """Remove expired rejections of all tenants; return their number."""
        return sum([await self._of(tenant).tidy() for tenant in await self.tenants()])

    def _of(self, tenant: str, now: float | None = None) -> ScriptApprovals:
        clock = self._clock if now is None else lambda: now
        return ScriptApprovals(self._records.of(tenant).entries(SUBJECT), clock=clock)

    async def _find(
        self, tenant: str, request_id: str
    ) -> tuple[ApprovalRequest, ScriptReview] | None:
        """Return a waiting or rejected script, as a request and as it is stored."""
        approvals, digest = self._of(tenant), request_id.removeprefix(SCRIPT_PREFIX)
        for review in await approvals.waiting():
            if review.digest == digest:
                request = _request(tenant, review, await _approved_content(approvals, review))
                is_gone = caller_is_revoked(request, self._is_revoked)
                return None if is_gone else (request, review)
        for rejection in await approvals.rejected():
            if (review := rejection.review).digest == digest:
                content = await _approved_content(approvals, review)
                return _rejected(tenant, rejection, content), review
        return None

    async def _decided(
        self, tenant: str, request_id: str, by: Approver, decision: ApprovalDecision, until: float
    ) -> ApprovalRequest:
        """Return the request with the decision applied; Undecidable if it is not possible."""
        request = await self.get(tenant, request_id)
        if request is None:
            raise Undecidable(NOTHING_WAITS)
        if decision.verdict == "approved":
            objection = self.objection(request, by)
        else:
            objection = policies.objection(request, by, now=decision.at)
            request = replace(request, until=until)
        if objection is not None:
            raise Undecidable(objection)
        return _with(request, decision)

    async def _store(self, request: ApprovalRequest) -> bool:
        """Store a decision; return False if another decision came first."""
        decision = request.decisions[-1]
        stored = await self._find(request.tenant, request.id)
        if stored is None:
            return False
        _, review = stored
        # The record has the time that was announced.
        approvals = self._of(request.tenant, decision.at)
        if decision.verdict == "approved":
            await approvals.approve(review.script, by=decision.by)
            return True
        return await approvals.reject(
            review, by=decision.by, reason=decision.reason, until=request.until
        )


async def _approved_content(approvals: ScriptApprovals, review: ScriptReview) -> str | None:
    """Return the approved content of the same name."""
    approved = await approvals.approved(review.name)
    return None if approved is None else approved.content


def _request(
    tenant: str, review: ScriptReview, approved_content: str | None = None
) -> ApprovalRequest:
    return ApprovalRequest(
        id=SCRIPT_PREFIX + review.digest,
        tenant=tenant,
        kind="script",
        state="waiting",
        tool=f"{review.name}.star",
        caller=review.caller,
        created_at=review.at,
        until=float("inf"),
        by=APPROVERS,
        content=review.content,
        approved_content=approved_content,
    )


def _rejected(tenant: str, rejection: Rejection, approved_content: str | None) -> ApprovalRequest:
    request = _request(tenant, rejection.review, approved_content)
    decision = ApprovalDecision(
        by=rejection.by, verdict="rejected", at=rejection.at, reason=rejection.reason
    )
    return _with(replace(request, until=rejection.until), decision)


def _with(request: ApprovalRequest, decision: ApprovalDecision) -> ApprovalRequest:
    """Return the request with one more decision, which is the last one."""
    return replace(
        request,
        state=decision.verdict,
        decided_at=decision.at,
        decisions=(*request.decisions, decision),
    )
