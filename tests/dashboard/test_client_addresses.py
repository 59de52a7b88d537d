"""The dashboard records and shows from which address people sign in and decide."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from gatepost.audit.record import AuditRecord, search
from gatepost.storage.audit import AuditQuery
from tests.dashboard.billing_server import BillingServer, open_billing_server
from tests.dashboard.conftest import HttpBrowser
from tests.dashboard.test_pages import decide, fields_of

SOCKET, CLIENT_ADDRESS = "127.0.0.1", "203.0.113.9"


class BillingServerBehindProxy(NamedTuple):
    """A company, and the address that it knows of who says that they come from `CLIENT_ADDRESS`."""

    billing: BillingServer
    seen: str


@pytest.fixture(scope="module", params=["behind a proxy", "alone"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BillingServerBehindProxy]:
    trusted = request.param == "behind a proxy"
    root = tmp_path_factory.mktemp("whence")
    with open_billing_server(root, proxies=(f"{SOCKET}/32",) if trusted else ()) as running:
        yield BillingServerBehindProxy(running, CLIENT_ADDRESS if trusted else SOCKET)


@pytest.fixture
def dave(server: BillingServerBehindProxy) -> Iterator[HttpBrowser]:
    """Yield the browser of an approver, which has an address of its own."""
    with server.billing.server.user_browser() as user_browser:
        user_browser.http.headers["x-forwarded-for"] = CLIENT_ADDRESS
        user_browser.sign_in("dave")
        yield user_browser


def newest_record(billing: BillingServer, kind: str) -> AuditRecord:
    """Return the newest record of that kind."""
    audit_store = billing.server.services.audit_writer.store
    seen_records: list[AuditRecord] = billing.server.run(
        search(audit_store, "acme", AuditQuery(kind=kind, limit=1))
    )
    return seen_records[0]


def recorded_origin(billing: BillingServer, kind: str) -> tuple[str, str, str]:
    """Return the outcome, the subject and the address of the newest record of that kind."""
    record = newest_record(billing, kind)
    assert record.caller is not None
    return record.outcome, record.caller.subject, record.caller.peer


@pytest.mark.requirement("AU10")
def test_records_of_sign_in_and_sign_out_have_the_client_address(
    server: BillingServerBehindProxy, dave: HttpBrowser
) -> None:
    """The edge decides the address; headers of the user have no effect."""
    assert recorded_origin(server.billing, "signin") == ("signed_in", "dave", server.seen)
    dave.post("/sign-out")
    assert recorded_origin(server.billing, "signin") == ("signed_out", "dave", server.seen)


STATE_BY_VERB = {"approve": "approved", "reject": "rejected", "edit": "approved"}


@pytest.mark.requirement("AU10")
@pytest.mark.parametrize("verb", STATE_BY_VERB)
def test_the_record_of_a_decision_has_the_approvers_address(
    server: BillingServerBehindProxy, dave: HttpBrowser, verb: str
) -> None:
    """It does not have the address of the caller whose call is decided."""
    request = server.billing.request_approval("refund", {"customer": f"C-{verb}", "amount": 5})
    form = {"argument.amount": "4"} if verb == "edit" else {}

    assert decide(dave, request, verb, **form) == 303
    assert recorded_origin(server.billing, "approval") == (STATE_BY_VERB[verb], "dave", server.seen)
    about = newest_record(server.billing, "approval").person
    assert about is not None
    assert (about.subject, about.peer) == ("erin", "")


@pytest.mark.requirement("AU10")
def test_records_of_a_grant_and_its_revocation_have_the_client_address(
    server: BillingServerBehindProxy, dave: HttpBrowser
) -> None:
    """A granted call has no approver who looks at it, so the record of the grant matters more."""
    request = server.billing.request_approval("refund", {"customer": "C-grant", "amount": 5})
    assert decide(dave, request, "approve", uses="3") == 303
    assert recorded_origin(server.billing, "grant") == ("granted", "dave", server.seen)
    page = dave.get("/grants").text
    grant = page.partition("/grants/")[2].partition("/")[0]
    dave.post(f"/grants/{grant}/revoke", fields_of(page))
    assert recorded_origin(server.billing, "grant") == ("revoked", "dave", server.seen)


@pytest.mark.requirement("AU10")
def test_the_audit_pages_show_and_find_the_client_address(
    server: BillingServerBehindProxy, dave: HttpBrowser
) -> None:
    """The search finds records by any part of the address."""
    server.billing.call("find_customer", {"name": "somewhere"})
    call = newest_record(server.billing, "call")
    signed_in = newest_record(server.billing, "signin")
    pages = [dave.get(f"/audit/{record.number}").text for record in (call, signed_in)]
    page = dave.get(f"/audit?text={server.seen[:-1]}&kind=signin").text
    none = dave.get("/audit?text=203.0.113.99").text

    assert all("<dt>From</dt>" in page for page in pages)
    assert f"{SOCKET}</bdi>" in pages[0]
    assert f"{server.seen}</bdi>" in pages[1]
    assert f"/audit/{signed_in.number}" in page
    assert "No matching records" in none


def test_the_client_address_is_only_on_audit_pages(
    server: BillingServerBehindProxy, dave: HttpBrowser
) -> None:
    """It is in no cookie and not on the pages of requests and grants."""
    request = server.billing.request_approval("refund", {"customer": "C-quiet", "amount": 5})
    decide(dave, request, "approve")

    pages = [dave.get(below).text for below in (f"/approvals/{request}", "/history", "/grants")]
    assert not any(CLIENT_ADDRESS in page for page in (*pages, dave.cookie()))
