"""Approval pages show everything that the approver decides about."""

import json
from collections.abc import Iterator

import pytest

from gatepost.dashboard.argument_tree import MAX_TEXT
from gatepost.dashboard.difference import MAX_LINES
from gatepost.policy.approvals.approval_request import DisplayedParty
from gatepost.policy.script_reviews.script import Script
from gatepost.policy.script_reviews.store import SUBJECT, ScriptApprovals
from tests.dashboard.billing_server import BillingServer, open_billing_server
from tests.dashboard.conftest import HttpBrowser
from tests.dashboard.test_pages import decide
from tests.support.endpoint import a_caller

ALICE = DisplayedParty(subject="alice", name="Alice")
NOT_ALL = "This page does not show everything"


@pytest.fixture(scope="module")
def billing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BillingServer]:
    with open_billing_server(tmp_path_factory.mktemp("found")) as running:
        yield running


@pytest.fixture(scope="module")
def dave(billing: BillingServer) -> Iterator[HttpBrowser]:
    with billing.server.user_browser("dave") as user_browser:
        yield user_browser


def test_the_second_of_two_gets_all_that_the_first_wrote(
    billing: BillingServer, dave: HttpBrowser
) -> None:
    """The page cut it without a word, and the file had the arguments as they were before."""
    request = billing.asks("refund", {"customer": "C-1", "amount": 900.0})
    reason = "x" * MAX_TEXT + "the end"
    form = {"argument.customer": "C-1", "argument.amount": "900.0", "argument.reason": reason}
    assert decide(dave, request, "edit", **form) == 303

    with billing.server.user_browser("alice") as alice:
        assert NOT_ALL in alice.get(f"/approvals/{request}").text
        file = alice.get(f"/approvals/{request}/arguments?edited=yes")
    assert json.loads(file.text)["reason"] == reason


def test_nothing_edited_is_no_file(billing: BillingServer, dave: HttpBrowser) -> None:
    """A link to what is not there leads to nothing, rather than to something else."""
    request = billing.asks("refund", {"customer": "C-2", "amount": 5.0})

    assert dave.get(f"/approvals/{request}/arguments?edited=yes").status_code == 404


def test_a_script_that_is_too_long_to_compare_is_shown(
    billing: BillingServer, dave: HttpBrowser
) -> None:
    """A script of many new lines was approved over a page that had none of them."""
    records = billing.server.services.records
    scripts = ScriptApprovals(records.of("acme").entries(SUBJECT))
    lines = "".join(f"step_{at}()\n" for at in range(MAX_LINES + 10))
    billing.server.run(scripts.approve(Script("long", b"first()\n", "workspace"), by=ALICE))
    after = Script("long", f"evil()\n{lines}".encode(), "workspace")
    billing.server.run(scripts.request([after], caller=a_caller(subject="erin"), max_waiting=10))
    (review,) = billing.server.run(scripts.waiting())

    page = dave.get(f"/approvals/script-{review.digest}").text

    assert "evil()" in page
    assert f"step_{MAX_LINES}()" in page
    assert f"/approvals/script-{review.digest}/arguments" in page


@pytest.mark.parametrize("more", ["", "and=more\n"], ids=["alone", "beside another change"])
def test_another_secret_is_a_change(billing: BillingServer, dave: HttpBrowser, more: str) -> None:
    """Both were withheld, so a file that got another person's token was said to stay the same."""
    first, other = ("token=ghp_" + letter * 36 + "\n" for letter in "ab")
    billing.write("hook.env", first)
    request = billing.asks("workspace_write", {"path": "hook.env", "content": other + more})

    page = dave.get(f"/approvals/{request}").text

    assert "It may differ from the secret in the current file" in page
    assert "No changes" not in page
    assert ("1 line added" in page) == bool(more)
    assert "aaaa" not in page
    assert "bbbb" not in page


def test_a_text_without_secrets_raises_no_alarm(billing: BillingServer, dave: HttpBrowser) -> None:
    """A secret that goes is seen in the comparison."""
    billing.write("goes.env", f"token=ghp_{'a' * 36}\n")
    request = billing.asks("workspace_write", {"path": "goes.env", "content": "x=1\n"})

    assert "It may differ" not in dave.get(f"/approvals/{request}").text
