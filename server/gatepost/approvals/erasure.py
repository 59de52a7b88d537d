"""Takes a person who decided out of other people's requests."""

from collections.abc import AsyncIterator

import msgspec
from msgspec.structs import replace

from gatepost.approvals.filing import File, case_of
from gatepost.approvals.grants import giver_of
from gatepost.approvals.request import Decision, Party
from gatepost.packs.scripts.approvals import SUBJECT
from gatepost.packs.scripts.approvals import Approvals as Scripts
from gatepost.stores.api import TenantRecords
from gatepost.stores.approvals import ApprovalRecord, Approvals

PAGE = 200
MOST_WAITING = 100_000
NOBODY = Party(subject="", name="erased")


async def forget(records: TenantRecords, issuer: str, subject: str) -> int:
    """
    Forget who decided about calls and scripts of others, and end the grants that they gave; how
    many of all these. Scripts that they wanted to run wait no more.

    What they have approved and is waited for still needs somebody else. Raises StoreUnavailable;
    it may be called again then.
    """

    def theirs(party: Party) -> bool:
        return (party.issuer, party.subject) == (issuer, subject)

    gone = await Scripts(records.entries(SUBJECT)).forget(issuer, subject)
    async for one in _all(records.approvals):
        record: ApprovalRecord | None = one
        while record is not None:
            file = case_of(record).file
            if not any(theirs(decision.by) for decision in file.request.decisions):
                break
            decisions = tuple(
                _without(decision) if theirs(decision.by) else decision
                for decision in file.request.decisions
                if record.state != "waiting" or not theirs(decision.by)
            )
            if await records.approvals.replace(_with(record, file, decisions)):
                gone += 1
                break
            record = await records.approvals.get(record.id)
    for grant in await records.grants.all(0.0):
        if theirs(giver_of(grant)):
            gone += await records.grants.revoke(grant.id)
    return gone


def _without(decision: Decision) -> Decision:
    return replace(decision, by=NOBODY, reason="")


def _with(record: ApprovalRecord, file: File, decisions: tuple[Decision, ...]) -> ApprovalRecord:
    kept = replace(file, request=replace(file.request, decisions=decisions))
    return replace(record, details=msgspec.msgpack.encode(kept))


async def _all(approvals: Approvals) -> AsyncIterator[ApprovalRecord]:
    for record in await approvals.waiting(MOST_WAITING):
        yield record
    place: tuple[float, str] | None = None
    while page := await approvals.past(place, PAGE):
        for record in page:
            yield record
        place = page[-1].changed_at, page[-1].id
