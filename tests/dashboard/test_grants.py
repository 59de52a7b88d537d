"""Grants as the pages give and list them."""

import re
from html import unescape

import pytest

from gatepost.config.approvals import ApprovalsSettings
from tests.dashboard.billing_server import BillingServer
from tests.dashboard.conftest import HttpBrowser
from tests.dashboard.test_pages import billing, dave, decide, fields_of

__all__ = ["billing", "dave"]


def test_the_page_refuses_a_grant_beyond_the_quota(
    billing: BillingServer, dave: HttpBrowser
) -> None:
    """It says what to do, and the request can be approved without the grant."""
    granting = billing.server.services.approvals.granting
    granting.apply(ApprovalsSettings(max_grants_per_tenant=0))
    request = billing.request_approval("refund", {"customer": "C-full", "amount": 5})
    fields = fields_of(dave.get(f"/approvals/{request}").text)
    refused = dave.post(f"/approvals/{request}/approve", fields | {"uses": "3"})
    granting.apply(ApprovalsSettings())

    assert refused.status_code == 409
    assert "Revoke one that is not needed" in refused.text
    assert 'value="3"' in refused.text
    assert billing.state_of(request) == "waiting"
    assert decide(dave, request, "approve") == 303


def test_grants_are_shown_page_by_page(
    billing: BillingServer, dave: HttpBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link leads to the grants after the last one that is shown."""
    monkeypatch.setattr("gatepost.policy.approvals.grants.PAGE", 1)
    for customer in ("C-older", "C-newer"):
        request = billing.request_approval("refund", {"customer": customer, "amount": 5})
        assert decide(dave, request, "approve", uses="3") == 303
    first = dave.get("/grants").text
    (link,) = re.findall(r'href="[^"]*(/grants\?[^"]*)">Newer', first)
    rest = dave.get(unescape(link)).text

    assert ("C-older" in first, "C-newer" in first) == (True, False)
    assert ("C-older" in rest, "C-newer" in rest, "Newer" in rest) == (False, True, False)
