"""A script under review: rejected with a reason, found again, and approved after all."""

from collections.abc import Iterator
from html import unescape

import pytest

from gatepost.policy.script_reviews.script import Script
from gatepost.policy.script_reviews.store import SUBJECT, ScriptApprovals
from tests.dashboard.billing_server import BillingServer, open_billing_server
from tests.dashboard.test_pages import decide
from tests.support.endpoint import a_caller

pytestmark = pytest.mark.requirement("P11")

SCRIPT = Script("monthly_report", b"send_everything()\n", "workspace")
REASON = "It sends <b>everything</b>."


@pytest.fixture(scope="module")
def billing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BillingServer]:
    with open_billing_server(tmp_path_factory.mktemp("scripts")) as running:
        yield running


def test_a_rejected_script_is_in_the_history_and_can_be_approved_later(
    billing: BillingServer,
) -> None:
    """It has a page and no longer waits in the list."""
    scripts = ScriptApprovals(billing.server.services.records.for_tenant("acme").entries(SUBJECT))
    billing.server.run(scripts.request([SCRIPT], caller=a_caller(subject="erin"), max_waiting=10))
    below = f"script-{SCRIPT.digest}"
    with (
        billing.server.user_browser("alice") as alice,
        billing.server.user_browser("carol") as carol,
    ):
        assert decide(alice, below, "reject", reason=REASON) == 303
        billing.server.run(
            scripts.request([SCRIPT], caller=a_caller(subject="erin"), max_waiting=10)
        )
        inbox, history = alice.get("").text, alice.get("/history?state=rejected").text
        page, theirs = alice.get(f"/approvals/{below}").text, carol.get(f"/approvals/{below}").text
        file = alice.get(f"/approvals/{below}/arguments").text
        again = decide(alice, below, "reject", reason="once more")
        refused, after_all = decide(carol, below, "approve"), decide(alice, below, "approve")
        gone = alice.get(f"/approvals/{below}").status_code

    assert SCRIPT.file not in inbox
    assert below in history
    for text in (history, page):
        assert "Alice Archer" in text
        assert REASON in unescape(text)
        assert REASON not in text
    assert "Gatepost does not submit the same content for approval again" in page
    assert ("Approve anyway" in page, "Approve anyway" in theirs) == (True, False)
    assert file == SCRIPT.text
    assert (again, refused, after_all, gone) == (409, 409, 303, 404)
    assert billing.server.run(scripts.is_approved(SCRIPT))
