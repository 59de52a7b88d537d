"""Waiting requests are listed in pages."""

from gatepost.policy.approvals.request_lists import cursor_of, place_at
from gatepost.policy.script_reviews.script import Script
from gatepost.policy.script_reviews.store import SUBJECT, ScriptApprovals
from tests.support.endpoint import a_caller
from tests.support.runners import ACME, ApprovalDeployment


async def test_waiting_requests_are_listed_by_pages() -> None:
    """Calls and scripts are in one order, also if they came at one moment."""
    deployment = ApprovalDeployment(require=["act"])
    service = deployment.replica().service
    for number in range(7):
        await deployment.replica().asked(what=f"{number}")
        if number == 3:
            scripts = ScriptApprovals(deployment.records.for_tenant(ACME).entries(SUBJECT))
            await scripts.request(
                [Script("s.sh", b"1", "workspace")], caller=a_caller(subject="erin"), max_waiting=9
            )
    every = await service.waiting(ACME)
    ids, position = [], None
    while page := await service.waiting(ACME, after=position, max_requests=2):
        ids.append(len(page))
        position = place_at(cursor_of(page[-1]))
        assert page == every[sum(ids) - len(page) : sum(ids)]

    assert (ids, len(every)) == ([2, 2, 2, 2], 8)
    assert [place_at(text) for text in ("", "x~a", "inf~a", "nan~a", "1.5", "1.5~")] == [None] * 6
