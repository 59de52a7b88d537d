"""From which address people decide and sign in, on record and on the pages."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from gatepost.audit.search import AuditRecord, AuditSearch
from gatepost.storage.audit import AuditQuery
from tests.dashboard.billing_server import BillingServer, open_billing_server
from tests.dashboard.conftest import HttpBrowser
from tests.dashboard.test_pages import decide, fields_of

SOCKET, FAR = "127.0.0.1", "203.0.113.9"


class BillingServerBehindProxy(NamedTuple):
    """A company, and the address that it knows of who says that they come from `FAR`."""

    company: BillingServer
    seen: str


@pytest.fixture(scope="module", params=["behind a proxy", "alone"])
def house(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BillingServerBehindProxy]:
    trusted = request.param == "behind a proxy"
    root = tmp_path_factory.mktemp("whence")
    with open_billing_server(root, proxies=(f"{SOCKET}/32",) if trusted else ()) as running:
        yield BillingServerBehindProxy(running, FAR if trusted else SOCKET)


@pytest.fixture
def dave(house: BillingServerBehindProxy) -> Iterator[HttpBrowser]:
    """An approver at a browser of his own."""
    with house.company.server.guest() as guest:
        guest.http.headers["x-forwarded-for"] = FAR
        guest.sign_in("dave")
        yield guest


def newest(company: BillingServer, kind: str) -> AuditRecord:
    """The newest record of that kind."""
    trail = AuditSearch(company.server.services.records)
    found: list[AuditRecord] = company.server.run(
        trail.search("acme", AuditQuery(kind=kind, limit=1))
    )
    return found[0]


def whence(company: BillingServer, kind: str) -> tuple[str, str, str]:
    """What the newest record of that kind says was done, by whom, and from where."""
    one = newest(company, kind)
    assert one.caller is not None
    return one.outcome, one.caller.subject, one.caller.peer


@pytest.mark.requirement("AU10")
def test_a_sign_in_and_a_sign_out_say_from_where(
    house: BillingServerBehindProxy, dave: HttpBrowser
) -> None:
    """As the edge knows it: what a stranger's fields say of it counts for nothing."""
    assert whence(house.company, "signin") == ("signed_in", "dave", house.seen)
    dave.post("/sign-out")
    assert whence(house.company, "signin") == ("signed_out", "dave", house.seen)


VERBS = {"approve": "approved", "reject": "rejected", "edit": "approved"}


@pytest.mark.requirement("AU10")
@pytest.mark.parametrize("verb", VERBS)
def test_a_decision_says_from_where(
    house: BillingServerBehindProxy, dave: HttpBrowser, verb: str
) -> None:
    """Whoever decided; of whom it was about there is no address on it."""
    request = house.company.asks("refund", {"customer": f"C-{verb}", "amount": 5})
    form = {"argument.amount": "4"} if verb == "edit" else {}

    assert decide(dave, request, verb, **form) == 303
    assert whence(house.company, "approval") == (VERBS[verb], "dave", house.seen)
    about = newest(house.company, "approval").about
    assert about is not None
    assert (about.subject, about.peer) == ("erin", "")


@pytest.mark.requirement("AU10")
def test_a_grant_and_its_end_say_from_where(
    house: BillingServerBehindProxy, dave: HttpBrowser
) -> None:
    """A grant lets calls pass that nobody looks at, so who gave it and whence matters more."""
    request = house.company.asks("refund", {"customer": "C-grant", "amount": 5})
    assert decide(dave, request, "approve", uses="3") == 303
    assert whence(house.company, "grant") == ("granted", "dave", house.seen)
    page = dave.get("/grants").text
    grant = page.partition("/grants/")[2].partition("/")[0]
    dave.post(f"/grants/{grant}/revoke", fields_of(page))
    assert whence(house.company, "grant") == ("revoked", "dave", house.seen)


@pytest.mark.requirement("AU10")
def test_the_pages_show_and_find_it(house: BillingServerBehindProxy, dave: HttpBrowser) -> None:
    """On the page of its record, and by any part of it in the search."""
    house.company.call("find_customer", {"name": "somewhere"})
    call = newest(house.company, "call")
    signed_in = newest(house.company, "signin")
    shown = [dave.get(f"/audit/{one.number}").text for one in (call, signed_in)]
    found = dave.get(f"/audit?text={house.seen[:-1]}&kind=signin").text
    none = dave.get("/audit?text=203.0.113.99").text

    assert all("<dt>From</dt>" in page for page in shown)
    assert f"{SOCKET}</bdi>" in shown[0]
    assert f"{house.seen}</bdi>" in shown[1]
    assert f"/audit/{signed_in.number}" in found
    assert "No matching records" in none


def test_nobody_else_learns_it(house: BillingServerBehindProxy, dave: HttpBrowser) -> None:
    """It is for the record alone: in no cookie, and not on the page of what was decided."""
    request = house.company.asks("refund", {"customer": "C-quiet", "amount": 5})
    decide(dave, request, "approve")

    pages = [dave.get(below).text for below in (f"/approvals/{request}", "/history", "/grants")]
    assert not any(FAR in one for one in (*pages, dave.cookie()))
