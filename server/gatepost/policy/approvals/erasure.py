"""Erase a person from the approvals of other people's calls."""

from collections.abc import AsyncIterator

import msgspec
from msgspec.structs import replace

from gatepost.policy.approvals.grants import giver_of
from gatepost.policy.approvals.request import (
    ERASED,
    ApprovalDecision,
    DisplayedParty,
    StoredRequest,
    approval_of,
)
from gatepost.storage.approvals import ApprovalRecord, ApprovalStore
from gatepost.storage.records import TenantRecords

PAGE = 200


async def erase_person(records: TenantRecords, issuer: str, subject: str) -> int:
    """
    Erase a person from decisions about other people's calls; return the number of changed records.

    This ends the grants that they gave. Waiting requests that they have approved need another
    approver. Raises StoreUnavailable; you can then call it again.
    """

    def is_theirs(party: DisplayedParty) -> bool:
        return (party.issuer, party.subject) == (issuer, subject)

    gone = 0
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
    return replace(decision, by=ERASED, reason="")


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
