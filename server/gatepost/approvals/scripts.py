"""Scripts that wait for an administrator (P11), in the same inbox as calls."""

from gatepost.approvals.judgement import objection
from gatepost.approvals.request import Approver, Decision, Party, Request, Undecidable, party_of
from gatepost.packs.scripts.approvals import SUBJECT, Approvals, Review
from gatepost.packs.scripts.script import Script
from gatepost.stores.api import Records

PREFIX = "script:"
"""Begins the id of a script that waits; its digest follows."""
BY = (("role:admin",),)

GONE = "Nothing of that content waits any more; look at what waits now."


async def waiting(records: Records, tenant: str) -> list[Request]:
    """Every script of the tenant that waits, the oldest first."""
    approvals = _of(records, tenant)
    reviews = await approvals.waiting()
    if not reviews:
        return []
    approved = {one.name: one.content for one in await approvals.all_approved()}
    return [_request(tenant, one, approved.get(one.name)) for one in reviews]


async def one(records: Records, tenant: str, request_id: str) -> Request | None:
    """The script of that id, if it waits."""
    found = [each for each in await waiting(records, tenant) if each.id == request_id]
    return found[0] if found else None


async def approve(
    records: Records, tenant: str, request_id: str, by: Approver, *, seen: str | None, now: float
) -> Request:
    """Let exactly this content run; Undecidable."""
    request, review = await _judged(records, tenant, request_id, by, now)
    if seen is not None and seen != request.digest:
        raise Undecidable(GONE)
    script = Script(review.name, review.content.encode(), review.place)
    await _of(records, tenant).approve(script, by=party_of(by).shown)
    return _decided(request, Decision(by=party_of(by), verdict="approved", at=now))


async def reject(
    records: Records, tenant: str, request_id: str, by: Approver, *, reason: str, now: float
) -> Request:
    """Drop it from what waits; Undecidable."""
    request, review = await _judged(records, tenant, request_id, by, now)
    await _of(records, tenant).drop(review.digest)
    decision = Decision(by=party_of(by), verdict="rejected", at=now, reason=reason)
    return _decided(request, decision)


def _of(records: Records, tenant: str) -> Approvals:
    return Approvals(records.of(tenant).entries(SUBJECT))


async def _judged(
    records: Records, tenant: str, request_id: str, by: Approver, now: float
) -> tuple[Request, Review]:
    approvals = _of(records, tenant)
    digest = request_id.removeprefix(PREFIX)
    review = next((one for one in await approvals.waiting() if one.digest == digest), None)
    if review is None:
        raise Undecidable(GONE)
    before = await approvals.approved(review.name)
    request = _request(tenant, review, None if before is None else before.content)
    if (why := objection(request, by, now=now)) is not None:
        raise Undecidable(why)
    return request, review


def _request(tenant: str, review: Review, approved: str | None) -> Request:
    return Request(
        id=PREFIX + review.digest,
        tenant=tenant,
        kind="script",
        state="waiting",
        tool=f"{review.name}.star",
        # Whose call asked for it first: its id, which is all that is kept.
        caller=Party(subject=review.by),
        created_at=review.at,
        until=float("inf"),
        by=BY,
        content=review.content,
        approved_content=approved,
    )


def _decided(request: Request, decision: Decision) -> Request:
    return Request(
        **{
            **{name: getattr(request, name) for name in request.__struct_fields__},
            "state": decision.verdict,
            "decided_at": decision.at,
            "decisions": (decision,),
        }
    )
