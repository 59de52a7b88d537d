"""Approval pages show everything that the approver decides about."""

import json

import pytest

from gatepost.dashboard.argument_tree import MAX_TEXT
from gatepost.dashboard.difference import MAX_LINES
from gatepost.policy.approvals.approval_request import DisplayedParty
from gatepost.policy.script_reviews.script import Script
from gatepost.policy.script_reviews.store import SUBJECT, ScriptApprovals
from tests.dashboard.billing_server import BillingServer
from tests.dashboard.conftest import HttpBrowser
from tests.dashboard.test_pages import billing, dave, decide
from tests.support.endpoint import a_caller

__all__ = ["billing", "dave"]  # fixtures

ALICE = DisplayedParty(subject="alice", name="Alice")
NOT_ALL = "This page does not show everything"


def test_the_second_approver_can_download_the_whole_edit_of_the_first(
    billing: BillingServer, dave: HttpBrowser
) -> None:
    """The page truncates a long edit and says so; the file has all of it."""
    request = billing.request_approval("refund", {"customer": "C-1", "amount": 900.0})
    reason = "x" * MAX_TEXT + "the end"
    form = {"argument.customer": "C-1", "argument.amount": "900.0", "argument.reason": reason}
    assert decide(dave, request, "edit", **form) == 303

    with billing.server.user_browser("alice") as alice:
        assert NOT_ALL in alice.get(f"/approvals/{request}").text
        file = alice.get(f"/approvals/{request}/arguments?edited=yes")
    assert json.loads(file.text)["reason"] == reason


def test_the_file_of_edited_arguments_is_404_without_an_edit(
    billing: BillingServer, dave: HttpBrowser
) -> None:
    """The server does not send the original arguments in place of an edit."""
    request = billing.request_approval("refund", {"customer": "C-2", "amount": 5.0})

    assert dave.get(f"/approvals/{request}/arguments?edited=yes").status_code == 404


def test_a_script_that_is_too_long_to_compare_is_shown(
    billing: BillingServer, dave: HttpBrowser
) -> None:
    """The approver sees every line of a script without a comparison."""
    records = billing.server.services.records
    scripts = ScriptApprovals(records.for_tenant("acme").entries(SUBJECT))
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
def test_replacing_one_secret_with_another_is_shown_as_a_change(
    billing: BillingServer, dave: HttpBrowser, more: str
) -> None:
    """Both secrets are redacted, so the page says that they may differ."""
    first, other = ("token=ghp_" + letter * 36 + "\n" for letter in "ab")
    billing.write("hook.env", first)
    request = billing.request_approval(
        "workspace_write", {"path": "hook.env", "content": other + more}
    )

    page = dave.get(f"/approvals/{request}").text

    assert "It may differ from the secret in the current file" in page
    assert "No changes" not in page
    assert ("1 line added" in page) == bool(more)
    assert "aaaa" not in page
    assert "bbbb" not in page


def test_removing_a_secret_shows_no_warning_about_another_secret(
    billing: BillingServer, dave: HttpBrowser
) -> None:
    """The comparison already shows that the line with the secret goes."""
    billing.write("goes.env", f"token=ghp_{'a' * 36}\n")
    request = billing.request_approval("workspace_write", {"path": "goes.env", "content": "x=1\n"})

    assert "It may differ" not in dave.get(f"/approvals/{request}").text
