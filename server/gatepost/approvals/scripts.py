"""Scripts that wait for an administrator (P11), or were rejected, among the calls that do."""

import msgspec

from gatepost.approvals import judgement
from gatepost.approvals.reach import IsCut, is_dropped
from gatepost.approvals.request import Approver, Decision, Party, Request, Undecidable
from gatepost.packs.scripts.approvals import SUBJECT, Approvals, Judge, Rejection, Review
from gatepost.packs.scripts.script import Script
from gatepost.stores.api import Records

PREFIX = "script:"
"""Begins the id of a script that waits, or was rejected; its digest follows."""
BY = (("role:admin",),)

GONE = "Nothing of that content waits any more; look at what waits now."


async def waiting(records: Records, tenant: str, *, now: float) -> list[Request]:
    """Every script of the tenant that waits, the oldest first."""
    approvals = _of(records, tenant, now)
    reviews = await approvals.waiting()
    if not reviews:
        return []
    approved = {one.name: one.content for one in await approvals.all_approved()}
    return [_request(tenant, one, approved.get(one.name)) for one in reviews]


async def rejected(records: Records, tenant: str, *, now: float) -> list[Request]:
    """Every script of the tenant that was rejected and does not wait again, the last first."""
    rejections = await _of(records, tenant, now).rejected()
    return [_request(tenant, one.review, None, one) for one in rejections]


async def one(records: Records, tenant: str, request_id: str, *, now: float) -> Request | None:
    """The script of that id, if it waits or was rejected."""
    found = await _found(records, tenant, request_id, now)
    return None if found is None else found[0]


def objection(request: Request, who: Approver, *, now: float) -> str | None:
    """Why this person cannot approve it, after all or at once; None when they can."""
    if request.state == "rejected":
        # Whoever rejected it may think better of it: what was decided keeps nobody out.
        request = msgspec.structs.replace(request, state="waiting", decisions=())
    return judgement.objection(request, who, now=now)


async def decided(
    records: Records,
    request_id: str,
    by: Approver,
    decision: Decision,
    *,
    tenant: str,
    until: float,
) -> Request:
    """The script as it is once this is decided, *until* when a rejection holds; Undecidable."""
    found = await _found(records, tenant, request_id, decision.at)
    if found is None:
        raise Undecidable(GONE)
    request, _ = found
    judged = objection if decision.verdict == "approved" else judgement.objection
    if (why := judged(request, by, now=decision.at)) is not None:
        raise Undecidable(why)
    if decision.verdict == "rejected":
        request = msgspec.structs.replace(request, until=until)
    return _decided(request, decision)


async def keep(records: Records, request: Request) -> bool:
    """Let what was decided count; False when somebody else was faster."""
    decision = request.decisions[-1]
    found = await _found(records, request.tenant, request.id, decision.at)
    if found is None:
        return False
    _, review = found
    approvals, by = _of(records, request.tenant, decision.at), decision.by
    judge = Judge(
        subject=by.subject, issuer=by.issuer, name=by.name, operator=by.kind == "operator"
    )
    if decision.verdict == "approved":
        script = Script(review.name, review.content.encode(), review.place)
        await approvals.approve(script, by=judge)
        return True
    return await approvals.reject(review, by=judge, reason=decision.reason, until=request.until)


async def withdraw(records: Records, tenant: str, is_cut: IsCut, *, now: float) -> list[Request]:
    """Let what somebody wanted to run who is shut out wait no more; all that did."""
    approvals, gone = _of(records, tenant, now), []
    for review in await approvals.waiting():
        request = _request(tenant, review, None)
        if is_dropped(request, is_cut) and await approvals.drop(review.digest):
            gone.append(msgspec.structs.replace(request, state="withdrawn", decided_at=now))
    return gone


async def tenants(records: Records) -> list[str]:
    """Every tenant for which anything may wait, or was decided."""
    calls = await records.estate.tenants("approvals", "grants")
    return sorted({*calls, *await records.tenants(SUBJECT)})


async def tidy(records: Records, *, now: float) -> int:
    """Forget rejections whose time is over, of every tenant; how many."""
    tenants = await records.tenants(SUBJECT)
    return sum([await _of(records, tenant, now).tidy() for tenant in tenants])


def _of(records: Records, tenant: str, now: float) -> Approvals:
    return Approvals(records.of(tenant).entries(SUBJECT), clock=lambda: now)


async def _found(
    records: Records, tenant: str, request_id: str, now: float
) -> tuple[Request, Review] | None:
    approvals, digest = _of(records, tenant, now), request_id.removeprefix(PREFIX)
    known: list[tuple[Review, Rejection | None]]
    known = [(review, None) for review in await approvals.waiting()]
    known += [(rejection.review, rejection) for rejection in await approvals.rejected()]
    for review, rejection in known:
        if review.digest == digest:
            before = await approvals.approved(review.name)
            content = None if before is None else before.content
            return _request(tenant, review, content, rejection), review
    return None


def _request(
    tenant: str, review: Review, approved: str | None, rejection: Rejection | None = None
) -> Request:
    request = Request(
        id=PREFIX + review.digest,
        tenant=tenant,
        kind="script",
        state="waiting",
        tool=f"{review.name}.star",
        caller=_asker(review),
        created_at=review.at,
        until=float("inf"),
        by=BY,
        content=review.content,
        approved_content=approved,
    )
    if rejection is None:
        return request
    by = rejection.by
    who = Party(
        subject=by.subject,
        issuer=by.issuer,
        kind="operator" if by.operator else "user",
        name=by.name,
    )
    decision = Decision(by=who, verdict="rejected", at=rejection.at, reason=rejection.reason)
    return _decided(msgspec.structs.replace(request, until=rejection.until), decision)


def _asker(review: Review) -> Party:
    """Whose call asked for it first; an older version kept the id alone."""
    asker = review.asker
    if asker is None:
        return Party(subject=review.by, name="" if review.by else "erased")
    return Party(
        subject=review.by,
        issuer=asker.issuer,
        kind=asker.kind,
        client_id=asker.client_id,
        actor=asker.actor,
        issued_at=asker.issued_at,
    )


def _decided(request: Request, decision: Decision) -> Request:
    return msgspec.structs.replace(
        request,
        state=decision.verdict,
        decided_at=decision.at,
        decisions=(*request.decisions, decision),
    )
