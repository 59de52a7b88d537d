"""What approvals cost a call that needs none, and what long arguments cost other calls."""

import asyncio
import json
from typing import Any

import pytest

from gatepost import CallContext
from gatepost.policy.approvals.approval_request import no_page, page_of
from gatepost.policy.approvals.stored_request import shown_arguments
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.offers.offer import Call, Offer
from tests.support.measuring import count_lines, functions_called
from tests.support.runners import ACME, ALICE, ApprovalDeployment, failure_kind

MAX_STEPS = 8
GITHUB_TOKEN = f"ghp_{'a1B2c3D4e5F6' * 3}"


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


def _lines_of_a_request(rows: int) -> int:
    """Return the lines that run on the event loop while a call with so many rows is held."""
    deployment = ApprovalDeployment(require=["keep"])

    async def keep(ctx: CallContext, data: list[Any]) -> str:
        """Keep rows."""
        return "kept"

    deployment.pack.tool(name="keep")(keep)
    replica = deployment.replica()
    raw = json.dumps({"data": [GITHUB_TOKEN, *({"a": 1, "b": "x"} for _ in range(rows))]}).encode()

    async def ask() -> None:
        assert failure_kind(await replica.call("keep", raw=raw)) == "approval_pending"

    return count_lines(lambda: asyncio.run(ask()))


def test_long_arguments_of_a_call_that_waits_are_read_in_a_thread() -> None:
    """Ten thousand values would delay the calls of all tenants by tenths of a second."""
    few, many = _lines_of_a_request(600), _lines_of_a_request(5_000)

    assert many - few < 500


def test_arguments_without_secrets_are_not_compared_with_what_is_shown() -> None:
    """Comparing each name and value takes as long as all else that is done with a request."""
    tool = ApprovalDeployment().pack.tools["act"]
    raw = json.dumps({"what": "a", "rows": [{"a": 1}] * 5_000}).encode()

    called = functions_called(lambda: shown_arguments(Redaction(), ACME, tool, raw))

    assert not {"hides_words", "hides_arguments"} & {*called}
    assert shown_arguments(Redaction(), ACME, tool, raw) is raw


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
