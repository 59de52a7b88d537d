"""Approval requests for scripts, which an administrator decides (P11)."""

from collections.abc import Callable
from typing import Literal

import msgspec

from gatepost.policy.approvals import rules
from gatepost.policy.approvals.notifications import ApprovalNotifier
from gatepost.policy.approvals.request import (
    ApprovalDecision,
    ApprovalRequest,
    Approver,
    DisplayedParty,
    IsRevoked,
    Undecidable,
    caller_is_revoked,
    none_revoked,
    party_of,
)
from gatepost.policy.approvals.scripts import (
    SUBJECT,
    Rejection,
    Script,
    ScriptApprovals,
    ScriptApprover,
    ScriptReview,
)
from gatepost.storage.records import Records

PREFIX = "script:"
"""Prefix of a script's request id; the digest of the script follows."""
BY = (("role:admin",),)

GONE = "Nothing of that content waits any more; look at what waits now."


class ScriptReviews:
    """
    The waiting and rejected scripts of all tenants; a part of `ApprovalService`.

    Scripts that a revoked caller has submitted no longer wait.
    """

    def __init__(
        self,
        records: Records,
        notifier: ApprovalNotifier,
        clock: Callable[[], float],
        *,
        is_revoked: IsRevoked = none_revoked,
    ) -> None:
        self._notifier = notifier
        self._records, self._clock, self._is_revoked = records, clock, is_revoked

    async def waiting(self, tenant: str) -> list[ApprovalRequest]:
        """Return the tenant's waiting scripts, the oldest first."""
        approvals = self._of(tenant)
        reviews = await approvals.waiting()
        if not reviews:
            return []
        approved = {one.name: one.content for one in await approvals.all_approved()}
        found = [_request(tenant, one, approved.get(one.name)) for one in reviews]
        return [one for one in found if not caller_is_revoked(one, self._is_revoked)]

    async def rejected(self, tenant: str) -> list[ApprovalRequest]:
        """Return the tenant's rejected scripts that do not wait again, the latest first."""
        rejections = await self._of(tenant).rejected()
        return [_request(tenant, one.review, None, one) for one in rejections]

    async def one(self, tenant: str, request_id: str) -> ApprovalRequest | None:
        """Return the script with that id if it waits or was rejected."""
        found = await self._found(tenant, request_id)
        return None if found is None else found[0]

    async def decide(
        self,
        tenant: str,
        request_id: str,
        by: Approver,
        decision: ApprovalDecision,
        *,
        seen: str | None = None,
        until: float,
    ) -> ApprovalRequest:
        """
        Approve a waiting or rejected script, or reject it *until* then; Undecidable says why not.

        *seen* is the `digest` of the request as *by* saw it.
        """
        await self.withdraw(tenant)
        verdict = decision.verdict
        decided = await self._judged(tenant, request_id, by, decision, until)
        if seen is not None and seen != decided.digest:
            raise Undecidable(GONE)
        await self._notifier.record(verdict, decided, by)
        if not await self._keep(decided):
            await self._notifier.record("void", decided, by)
            raise Undecidable(GONE)
        await self._notifier.request(verdict, decided, by, is_recorded=True)
        return decided

    async def allow(self, tenant: str, script: Script, by: Approver) -> None:
        """
        Approve exactly this script, even if no call has requested it.

        This is for operators, who read the file themselves. Undecidable if it is not text.
        """
        now, digest = self._clock(), script.digest
        if script.text is None:
            raise Undecidable(f"{script.file} is no UTF-8 text, so it cannot be approved.")
        known = await self.one(tenant, PREFIX + digest)
        request = known or _without_call(tenant, _reviewed(script, now))
        decided = _decided(request, ApprovalDecision(by=party_of(by), verdict="approved", at=now))
        await self._notifier.record("approved", decided, by)
        await self._of(tenant).approve(script, by=_approver(party_of(by)))
        await self._notifier.request("approved", decided, by, is_recorded=True)

    async def revoke(
        self, tenant: str, name: str, by: Approver
    ) -> Literal["approved", "waiting"] | None:
        """Revoke the approval of a name and its waiting scripts; return what existed."""
        approvals, now = self._of(tenant), self._clock()
        approved = await approvals.approved(name)
        known = [
            _request(tenant, one, None) for one in await approvals.waiting() if one.name == name
        ]
        if approved is not None:
            known.append(_without_call(tenant, approved))
        ended = [msgspec.structs.replace(one, state="withdrawn", decided_at=now) for one in known]
        for request in ended:
            await self._notifier.record("revoked", request, by)
        was = await approvals.revoke(name)
        for request in ended:
            if was is None:
                await self._notifier.record("void", request, by)
            else:
                await self._notifier.request("revoked", request, by, is_recorded=True)
        return was

    async def withdraw(self, tenant: str) -> int:
        """Withdraw the waiting scripts of revoked callers; return their number."""
        approvals, gone = self._of(tenant), 0
        for review in await approvals.waiting():
            request = _request(tenant, review, None)
            if caller_is_revoked(request, self._is_revoked) and await approvals.drop(review.digest):
                ended = msgspec.structs.replace(
                    request, state="withdrawn", decided_at=self._clock()
                )
                await self._notifier.request("withdrawn", ended)
                gone += 1
        return gone

    async def tidy(self) -> int:
        """Remove expired rejections of all tenants; return their number."""
        tenants = await self._records.tenants(SUBJECT)
        return sum([await self._of(tenant).tidy() for tenant in tenants])

    def _of(self, tenant: str, now: float | None = None) -> ScriptApprovals:
        clock = self._clock if now is None else lambda: now
        return ScriptApprovals(self._records.of(tenant).entries(SUBJECT), clock=clock)

    async def _found(
        self, tenant: str, request_id: str
    ) -> tuple[ApprovalRequest, ScriptReview] | None:
        approvals, digest = self._of(tenant), request_id.removeprefix(PREFIX)
        known: list[tuple[ScriptReview, Rejection | None]]
        known = [(review, None) for review in await approvals.waiting()]
        known += [(rejection.review, rejection) for rejection in await approvals.rejected()]
        for review, rejection in known:
            if review.digest != digest:
                continue
            before = await approvals.approved(review.name)
            content = None if before is None else before.content
            request = _request(tenant, review, content, rejection)
            is_gone = rejection is None and caller_is_revoked(request, self._is_revoked)
            return None if is_gone else (request, review)
        return None

    async def _judged(
        self, tenant: str, request_id: str, by: Approver, decision: ApprovalDecision, until: float
    ) -> ApprovalRequest:
        """Return the request with the decision applied; Undecidable if it is not possible."""
        request = await self.one(tenant, request_id)
        if request is None:
            raise Undecidable(GONE)
        judged = objection if decision.verdict == "approved" else rules.objection
        if (why := judged(request, by, now=decision.at)) is not None:
            raise Undecidable(why)
        if decision.verdict == "rejected":
            request = msgspec.structs.replace(request, until=until)
        return _decided(request, decision)

    async def _keep(self, request: ApprovalRequest) -> bool:
        """Store a decision; return False if another decision came first."""
        decision = request.decisions[-1]
        found = await self._found(request.tenant, request.id)
        if found is None:
            return False
        _, review = found
        # The record has the time that was announced.
        approvals = self._of(request.tenant, decision.at)
        by = _approver(decision.by)
        if decision.verdict == "approved":
            script = Script(review.name, review.content.encode(), review.place)
            await approvals.approve(script, by=by)
            return True
        return await approvals.reject(review, by=by, reason=decision.reason, until=request.until)


def _reviewed(script: Script, now: float) -> ScriptReview:
    return ScriptReview(
        name=script.name,
        digest=script.digest,
        content=script.text or "",
        place=script.place,
        by="",
        at=now,
    )


def _without_call(tenant: str, review: ScriptReview) -> ApprovalRequest:
    """Return a request for a script that no call has requested."""
    return msgspec.structs.replace(
        _request(tenant, review, None), caller=DisplayedParty(subject="")
    )


def _approver(party: DisplayedParty) -> ScriptApprover:
    return ScriptApprover(
        subject=party.subject,
        issuer=party.issuer,
        name=party.name,
        operator=party.kind == "operator",
    )


def objection(request: ApprovalRequest, who: Approver, *, now: float) -> str | None:
    """Return a sentence why *who* cannot approve the script, or None."""
    if request.state == "rejected":
        # A rejection can be reversed, also by the person who rejected the script.
        request = msgspec.structs.replace(request, state="waiting", decisions=())
    return rules.objection(request, who, now=now)


async def tenants(records: Records) -> list[str]:
    """Return all tenants that may have requests or grants."""
    calls = await records.tenant_data.tenants("approval_requests", "grants")
    return sorted({*calls, *await records.tenants(SUBJECT)})


def _request(
    tenant: str, review: ScriptReview, approved: str | None, rejection: Rejection | None = None
) -> ApprovalRequest:
    request = ApprovalRequest(
        id=PREFIX + review.digest,
        tenant=tenant,
        kind="script",
        state="waiting",
        tool=f"{review.name}.star",
        caller=_caller(review),
        created_at=review.at,
        until=float("inf"),
        by=BY,
        content=review.content,
        approved_content=approved,
    )
    if rejection is None:
        return request
    by = rejection.by
    who = DisplayedParty(
        subject=by.subject,
        issuer=by.issuer,
        kind="operator" if by.operator else "user",
        name=by.name,
    )
    decision = ApprovalDecision(
        by=who, verdict="rejected", at=rejection.at, reason=rejection.reason
    )
    return _decided(msgspec.structs.replace(request, until=rejection.until), decision)


def _caller(review: ScriptReview) -> DisplayedParty:
    """Return the first caller; records of older versions have only the id."""
    asker = review.asker
    if asker is None:
        return DisplayedParty(subject=review.by, name="" if review.by else "erased")
    return DisplayedParty(
        subject=review.by,
        issuer=asker.issuer,
        kind=asker.kind,
        client_id=asker.client_id,
        actor=asker.actor,
        issued_at=asker.issued_at,
    )


def _decided(request: ApprovalRequest, decision: ApprovalDecision) -> ApprovalRequest:
    return msgspec.structs.replace(
        request,
        state=decision.verdict,
        decided_at=decision.at,
        decisions=(*request.decisions, decision),
    )
