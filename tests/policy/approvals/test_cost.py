"""What approvals cost a call that needs none."""

from typing import Any

import pytest

from gatepost.policy.approvals.approval_request import no_page, page_of
from gatepost.tools.offers.offer import Call, Offer
from tests.support.measuring import count_lines
from tests.support.runners import ALICE, ApprovalDeployment

MAX_STEPS = 8


@pytest.mark.requirement("A7")
def test_a_tool_that_needs_no_approval_costs_one_lookup() -> None:
    """Rules for other tools do not matter; the stage awaits and decodes nothing."""
    rules = [{"tools": ["put"], "when": f"arguments.amount > {number}"} for number in range(50)]
    replica = ApprovalDeployment(rules=rules, require=["look"]).replica()
    [stage] = [stage for stage in replica.stages if type(stage).__name__ == "ApprovalStage"]
    call = Call(caller=ALICE, name="act", arguments=b"{}", request_id="r")
    offer, answered = replica.tools["act"], object()

    def proceed(call: Call, offer: Offer, arguments: Any) -> Any:
        return answered

    assert stage(call, offer, {}, proceed) is answered
    assert count_lines(lambda: stage(call, offer, {}, proceed)) <= MAX_STEPS


PAGES = {
    "beside the endpoint": (
        "https://mcp.example.com/mcp",
        "a1",
        "https://mcp.example.com/dashboard/approvals/a1",
    ),
    "of a tenant's own resource": (
        "https://mcp.example.com/t/{tenant}/mcp",
        "a1",
        "https://mcp.example.com/t/acme/dashboard/approvals/a1",
    ),
    "of a script": (
        "https://mcp.example.com/mcp",
        "script:a1",
        "https://mcp.example.com/dashboard/approvals/script-a1",
    ),
}


@pytest.mark.parametrize(("resource", "request_id", "page"), PAGES.values(), ids=PAGES)
def test_a_request_has_the_address_of_its_dashboard_page(
    resource: str, request_id: str, page: str
) -> None:
    """The page of the dashboard; none where there is no dashboard."""
    assert page_of(resource)("acme", request_id) == page
    assert no_page("acme", request_id) == ""
