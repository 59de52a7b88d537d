"""Grants whose arguments are long cost neither the database nor the pages much."""

import pytest

from tests.dashboard.billing_server import BillingServer
from tests.dashboard.conftest import HttpBrowser
from tests.dashboard.test_pages import billing, dave, decide, fields_of

__all__ = ["billing", "dave"]


def test_a_grant_for_exactly_very_long_arguments_is_refused(
    billing: BillingServer, dave: HttpBrowser
) -> None:
    """A tenant's grants keep their arguments; one with a condition keeps none."""
    arguments = {"customer": "C-long", "amount": 3, "reason": "x" * 17_000}
    request = billing.request_approval("refund", arguments)
    fields = fields_of(dave.get(f"/approvals/{request}").text)
    refused = dave.post(f"/approvals/{request}/approve", fields | {"uses": "3"})

    assert refused.status_code == 409
    assert "at most 16384 are kept" in refused.text
    condition = {"pattern": "condition", "condition": "arguments.amount == 3.0"}
    assert decide(dave, request, "approve", uses="3", **condition) == 303
    grants = billing.server.run(billing.server.services.approvals.granting.all("acme"))
    assert [grant.arguments for grant in grants if grant.request == request] == [b"{}"]


def test_long_arguments_of_a_grant_are_not_on_the_page(
    billing: BillingServer, dave: HttpBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of a hundred would delay all other requests for seconds."""
    monkeypatch.setattr("gatepost.dashboard.grants.PAGE_BYTES", 400)
    for characters in (10, 90, 5_000, 250):
        arguments = {"customer": "C-1", "amount": 7, "reason": "x" * characters}
        request = billing.request_approval("refund", arguments)
        assert decide(dave, request, "approve", uses="3") == 303

    page = dave.get("/grants").text

    assert page.count("The arguments are too long for this page") == 2
    assert page.count("Show the arguments") == 2
