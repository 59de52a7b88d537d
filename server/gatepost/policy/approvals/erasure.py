"""Erase a person from the approvals of other people's calls and scripts."""

import time
from collections.abc import AsyncIterator

import msgspec
from msgspec.structs import replace

from gatepost.policy.approvals.grants import giver_of
from gatepost.policy.approvals.request import (
    ApprovalDecision,
    DisplayedParty,
    StoredRequest,
    approval_of,
)
from gatepost.policy.approvals.scripts import (
    APPROVED,
    REJECTED,
    SUBJECT,
    WAITING,
    Rejection,
    ScriptApprover,
    ScriptReview,
)
from gatepost.storage.approvals import ApprovalRecord, ApprovalStore
from gatepost.storage.entries import Entries
from gatepost.storage.records import TenantRecords

PAGE = 200
NOBODY = DisplayedParty(subject="", name="erased")
ERASED = ScriptApprover(subject="", name="erased")


async def forget(records: TenantRecords, issuer: str, subject: str) -> int:
    """
    Erase a person from decisions about other people's calls and scripts; return the number.

    This ends the grants that they gave and withdraws the scripts that they submitted. Waiting
    requests that they have approved need another approver. Raises StoreUnavailable; you can then
    call it again.
    """

    def is_theirs(party: DisplayedParty) -> bool:
        return (party.issuer, party.subject) == (issuer, subject)

    gone = await forget_in_scripts(records.entries(SUBJECT), issuer, subject)
    async for one in _all(records.approvals):
        record: ApprovalRecord | None = one
        while record is not None:
            details = approval_of(record).details
            if not any(is_theirs(decision.by) for decision in details.request.decisions):
                break
            decisions = tuple(
                _unsigned_decision(decision) if is_theirs(decision.by) else decision
                for decision in details.request.decisions
                if record.state != "waiting" or not is_theirs(decision.by)
            )
            if await records.approvals.replace(_with(record, details, decisions)):
                gone += 1
                break
            record = await records.approvals.get(record.id)
    for grant in await records.grants.all(0.0):
        if is_theirs(giver_of(grant)):
            gone += await records.grants.revoke(grant.id)
    return gone


def _unsigned_decision(decision: ApprovalDecision) -> ApprovalDecision:
    return replace(decision, by=NOBODY, reason="")


def _with(
    record: ApprovalRecord, details: StoredRequest, decisions: tuple[ApprovalDecision, ...]
) -> ApprovalRecord:
    changed = replace(details, request=replace(details.request, decisions=decisions))
    return replace(record, details=msgspec.msgpack.encode(changed))


async def _all(approvals: ApprovalStore) -> AsyncIterator[ApprovalRecord]:
    place: tuple[float, str] | None = None
    while page := await approvals.waiting(PAGE, place):
        for record in page:
            yield record
        place = page[-1].created_at, page[-1].id
    place = None
    while page := await approvals.past(place, PAGE):
        for record in page:
            yield record
        place = page[-1].changed_at, page[-1].id


async def forget_in_scripts(entries: Entries, issuer: str, subject: str) -> int:
    """
    Erase a person from their submissions and decisions; return the number of changed contents.
    """
    gone = 0
    for entry in await entries.all():
        if entry.key.startswith(WAITING) and _asked(
            msgspec.json.decode(entry.value, type=ScriptReview), subject
        ):
            gone += await entries.delete(entry.key)
    for entry in await entries.all():
        before: ScriptReview | Rejection
        after: ScriptReview | Rejection
        if entry.key.startswith(APPROVED):
            before = msgspec.json.decode(entry.value, type=ScriptReview)
            after = _unsigned_review(before, issuer, subject)
        elif entry.key.startswith(REJECTED):
            before = msgspec.json.decode(entry.value, type=Rejection)
            after = _without_person(before, issuer, subject)
        else:
            continue
        if after != before:
            value = msgspec.json.encode(after)
            # A concurrent change means that the entry was replaced or removed.
            gone += await entries.put(entry.key, value, now=time.time(), revision=entry.revision)
    return gone


def _asked(review: ScriptReview, subject: str) -> bool:
    """Return whether this person submitted it, or another caller did on their behalf."""
    return review.by == subject or (review.asker is not None and review.asker.actor == subject)


def _unsigned_review(review: ScriptReview, issuer: str, subject: str) -> ScriptReview:
    """Return an approved content, without its approver's name if it is this person's."""
    judge = review.judge
    if judge is None:
        # An older version stored only a text: the subject if the token had no name, which can be
        # matched.
        is_theirs = review.by == subject
    else:
        is_theirs = (judge.issuer, judge.subject) == (issuer, subject)
    return replace(review, by=ERASED.shown, judge=ERASED) if is_theirs else review


def _without_person(rejection: Rejection, issuer: str, subject: str) -> Rejection:
    review = rejection.review
    if _asked(review, subject):
        review = replace(review, by="", asker=None)
    if (rejection.by.issuer, rejection.by.subject) == (issuer, subject):
        return replace(rejection, review=review, by=ERASED, reason="")
    return replace(rejection, review=review)
