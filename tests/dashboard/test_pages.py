"""The pages as any client of HTTP sees them: who sees what, and what a form does."""

import json
import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest

from gatepost.policy.approvals.stored_request import key_of_use
from gatepost.storage.idempotency import IdempotencyRecord
from gatepost_authz.errors import InvalidToken
from tests.dashboard.billing_server import INVOICE, NOTES, BillingServer, open_billing_server
from tests.dashboard.conftest import HttpBrowser
from tests.support.measuring import eventually


@pytest.fixture(scope="module")
def billing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BillingServer]:
    with open_billing_server(tmp_path_factory.mktemp("pages")) as running:
        yield running


@pytest.fixture(scope="module")
def dave(billing: BillingServer) -> Iterator[HttpBrowser]:
    with billing.server.user_browser("dave") as user_browser:
        yield user_browser


@pytest.fixture(scope="module")
def bob(billing: BillingServer) -> Iterator[HttpBrowser]:
    """Yield the browser of an approver of another tenant."""
    with billing.server.user_browser("bob") as user_browser:
        yield user_browser


def fields_of(page: str) -> dict[str, str]:
    """Return the hidden fields of a page's forms."""
    pairs = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page)
    return {name: unescape(value) for name, value in pairs}


def decide(user_browser: HttpBrowser, request: str, verb: str, **form: str) -> int:
    """Look at a request and send its form; the status."""
    fields = fields_of(user_browser.get(f"/approvals/{request}").text)
    return user_browser.post(f"/approvals/{request}/{verb}", fields | form).status_code


def test_requests_of_another_tenant_are_not_found(
    billing: BillingServer, dave: HttpBrowser, bob: HttpBrowser
) -> None:
    """No page shows them, and no form decides them."""
    request = billing.request_approval("refund", {"customer": "C-100", "amount": 5})
    fields = fields_of(dave.get(f"/approvals/{request}").text)
    for below in (f"/approvals/{request}", f"/approvals/{request}/arguments"):
        assert dave.get(below).status_code == 200
        assert bob.get(below).status_code == 404
    for verb in ("approve", "edit", "reject"):
        ours = {"seen": fields["seen"]}
        assert bob.post(f"/approvals/{request}/{verb}", ours).status_code in {404, 409}
    assert "C-100" not in bob.get("").text + bob.get("/history").text + bob.get("/audit").text
    assert "refund" not in bob.get("/usage").text
    assert billing.state_of(request) == "waiting"
    assert decide(dave, request, "reject") == 303


def test_a_form_for_a_request_that_the_page_did_not_show_is_refused(
    billing: BillingServer, dave: HttpBrowser
) -> None:
    """A form names the version that its page showed; a missing or other version is 409."""
    request = billing.request_approval("refund", {"customer": "C-101", "amount": 5})
    for seen in ("", "0" * 16):
        answer = dave.post(f"/approvals/{request}/approve", {"seen": seen})
        assert answer.status_code == 409
        assert "not what you saw" in answer.text
    assert billing.state_of(request) == "waiting"
    assert decide(dave, request, "approve") == 303
    assert decide(dave, request, "approve") == 409


HOSTILE_TEXT = '"><script>x</script><img src=x onerror=x>{{ 7777*7777 }}'


def test_untrusted_text_does_not_become_markup(billing: BillingServer, dave: HttpBrowser) -> None:
    """The text is in argument names and values, in reasons and in search queries."""
    request = billing.request_approval(
        "refund", {"customer": HOSTILE_TEXT, "amount": 5, "reason": HOSTILE_TEXT}
    )
    assert decide(dave, request, "reject", reason=HOSTILE_TEXT) == 303
    pages = [
        dave.get(below, **{})
        for below in (
            f"/approvals/{request}",
            "/history",
            "/audit",
            f"/audit/{billing.record('approval', 'refund')}",
        )
    ]
    pages += [
        dave.http.get(f"/dashboard/{page}", params={name: HOSTILE_TEXT})
        for page, name in (("history", "tool"), ("audit", "text"), ("tools", "scopes"))
    ]
    for answer in pages:
        assert answer.status_code == 200
        assert "<script>x" not in answer.text
        assert "<img src=x" not in answer.text
        assert str(7777 * 7777) not in answer.text


NAMES: list[tuple[Any, str]] = [
    ({"name": "claude-code", "title": "Claude Code", "version": "1"}, "Claude Code"),
    ({"name": "claude-code", "version": "1"}, "claude-code"),
    ({"name": "a" * 64}, "a" * 64),
    ({"name": "a" * 65}, ""),
    ({"name": "with glpat-" + "x1" * 10}, "with [REDACTED:GITLAB_TOKEN]"),
    ({"name": 7}, ""),
    ({}, ""),
    ("claude-code", ""),
]


@pytest.mark.parametrize(("client_name", "label"), NAMES)
def test_the_self_declared_client_name_is_marked_as_such(
    billing: BillingServer, dave: HttpBrowser, client_name: Any, label: str
) -> None:
    """It is shortened, redacted and shown beside the id that the token proves."""
    request = billing.request_approval_over_mcp(
        client_name,
        "refund",
        {"customer": f"{len(str(client_name))} {client_name}"[:40], "amount": 5},
    )
    page, inbox = (
        re.sub(r"<[^>]*>", "", dave.get(below).text) for below in (f"/approvals/{request}", "")
    )
    (stored,) = [
        waiting
        for waiting in billing.server.run(billing.server.services.approvals.waiting("acme"))
        if waiting.id == request
    ]
    assert decide(dave, request, "reject") == 303

    assert stored.caller.client_name == label
    assert str(stored.caller.client_id) in page
    assert (f"calls itself {label}" in page) is (f"calls itself {label}" in inbox) is bool(label)


def test_secret_arguments_are_on_no_page_and_in_no_file(
    billing: BillingServer, dave: HttpBrowser
) -> None:
    """This holds before and after an edit."""
    request = billing.request_approval("send_invoice", INVOICE)
    pages = [
        dave.get(f"/approvals/{request}{below}").text for below in ("", "?edit=yes", "/arguments")
    ]
    assert decide(dave, request, "edit", **{"argument.to": "x@y.example"}) == 303
    pages += [dave.get(f"/approvals/{request}").text, dave.get("/audit").text]

    assert not any(str(INVOICE["mail_token"]) in page for page in pages)
    assert json.loads(pages[2])["mail_token"] == "[REDACTED:MAIL_TOKEN]"


def test_the_page_shows_how_a_call_would_change_a_file(
    billing: BillingServer, dave: HttpBrowser
) -> None:
    """The comparison is line by line; a new file is marked as new."""
    billing.write("notes/plan.md", NOTES)
    old = billing.request_approval(
        "workspace_write", {"path": "notes/plan.md", "content": NOTES.replace("less", "more")}
    )
    new = billing.request_approval("workspace_write", {"path": "notes/new.md", "content": "x"})
    page = dave.get(f"/approvals/{old}").text

    assert "1 line removed" in page
    assert re.search(r'class="gone".*?- Two bugs less', page, re.DOTALL)
    assert re.search(r'class="new".*?- Two bugs more', page, re.DOTALL)
    assert "The call creates it" in dave.get(f"/approvals/{new}").text


def test_the_page_shows_how_a_call_would_change_a_note(
    billing: BillingServer, dave: HttpBrowser
) -> None:
    """The rules of the vault apply: the folder, and front matter that stays."""
    billing.write("vault/plan.md", "---\nowner: erin\n---\nTwo bugs less\n")
    arguments = {"path": "plan", "content": "Two bugs more", "front_matter": {"state": "new"}}
    page = dave.get(f"/approvals/{billing.request_approval('vault_write', arguments)}").text

    assert re.search(r'class="gone".*?Two bugs less', page, re.DOTALL)
    assert re.search(r'class="new".*?state: new', page, re.DOTALL)
    assert "owner: erin" in page


def test_the_page_shows_how_a_third_party_tool_would_change_a_file(
    billing: BillingServer, dave: HttpBrowser
) -> None:
    """The tool itself names the file and its new content, or why it cannot."""
    billing.write("letters/first.txt", "Dear Ada,")
    page, refused = (
        dave.get(
            "/approvals/"
            + billing.request_approval("extend_letter", {"name": "first.txt", "paragraph": text})
        ).text
        for text in ("Yours, Erin", "rubbish")
    )

    assert "Dear Ada," in page
    assert re.search(r'class="new".*?Yours, Erin', page, re.DOTALL)
    assert "That is no paragraph." in refused


def test_the_history_is_filtered_and_paged(billing: BillingServer, dave: HttpBrowser) -> None:
    """Filters are state, tool and person; every request is on exactly one page."""
    for at in range(27):
        request = billing.request_approval("refund", {"customer": f"P-{at}", "amount": 1})
        billing.decides("carol" if at % 2 else "dave", request, reason=f"reason-{at}")
        billing.forget_limits()
    first = dave.get("/history?state=rejected&person=carol%20chen&tool=REFUND").text
    reasons = re.findall(r"reason-(\d+)", first)
    assert reasons == [str(at) for at in range(25, 0, -2)]

    every = dave.get("/history?state=rejected&tool=refund").text
    (older,) = re.findall(r'<a href="/dashboard(/history\?[^"]+before=[^"]+)">', every)
    pages = re.findall(r"reason-(\d+)", every + dave.get(unescape(older)).text)
    assert sorted(map(int, pages)) == list(range(27))
    assert "No matching requests" in dave.get("/history?tool=nothing").text


ACCESS_SENTENCES = [
    # scopes                         tool             what is said
    ("billing:read", "find_customer", "Has all scopes. Calls run without approval."),
    ("billing:write", "send_invoice", "Has all scopes. Every call needs approval."),
    ("billing:read", "send_invoice", "Missing scope billing:write. The client can request it."),
    ("", "whoami", "Has all scopes. Calls run without approval."),
]


@pytest.mark.parametrize(("scopes", "tool", "sentence"), ACCESS_SENTENCES)
def test_the_page_of_tools_says_who_may_call_and_why_not(
    dave: HttpBrowser, scopes: str, tool: str, sentence: str
) -> None:
    """The rules are those of calls."""
    page = dave.get(f"/tools?scopes={scopes}").text
    (row,) = re.findall(rf"<tr>(?:(?!</tr>).)*>{tool}<.*?</tr>", page, re.DOTALL)

    assert sentence in row


def test_a_recent_caller_can_be_selected_on_the_tools_page(
    billing: BillingServer, dave: HttpBrowser
) -> None:
    """The scopes of the caller's own token decide; the link does not contain their id."""
    billing.call("find_customer", {"name": "x"})
    page = dave.get("/tools").text
    (key,) = re.findall(r'<option value="([0-9a-f]{16})">Erin Ek', page)
    judged = dave.get(f"/tools?caller={key}").text

    assert "<bdi>Erin Ek</bdi> has" in judged
    assert "Missing scope billing:close" in judged


def test_a_search_for_rare_records_continues_page_by_page(
    billing: BillingServer, dave: HttpBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page says how far it has searched; no record is skipped or repeated."""
    for number in range(5):
        for kind in ("rare", "usual"):
            billing.call("find_customer", {"name": f"{kind} {number}"})
            # A reader merges what was written: else few segments may hold all of it.
            dave.get("/audit")
    whole = re.findall(r'href="/dashboard/audit/(\d+)"', dave.get("/audit?text=rare+").text)
    monkeypatch.setattr("gatepost.dashboard.audit.READ_SEGMENTS", 1)
    page, matches, steps = dave.get("/audit?text=rare+").text, list[str](), 0
    while older := re.findall(r'href="/dashboard(/audit\?[^"]*before=[^"]*)"', page):
        assert "have not been searched yet" in page
        matches += re.findall(r'href="/dashboard/audit/(\d+)"', page)
        page, steps = dave.get(unescape(older[-1])).text, steps + 1

    assert len(whole) == 5
    assert matches + re.findall(r'href="/dashboard/audit/(\d+)"', page) == whole
    assert steps > 5
    assert "have not been searched yet" not in page


def test_the_page_of_a_record_says_whether_its_hash_is_valid(
    billing: BillingServer, dave: HttpBrowser
) -> None:
    """The search finds the record, and an unknown number is 404."""
    billing.call("find_customer", {"name": "needle in a haystack"})
    assert "needle" in dave.get(f"/audit/{billing.record('call', 'find_customer')}").text
    page = dave.get("/audit?text=needle+in+a&kind=call").text
    (number,) = re.findall(r'href="/dashboard/audit/(\d+)"', page)

    assert ">valid<" in dave.get(f"/audit/{number}").text
    assert dave.get("/audit/999999").status_code == 404
    assert dave.get("/audit/0").status_code == 404
    assert dave.get("/audit/x").status_code == 404


def test_the_usage_page_counts_calls_by_outcome(billing: BillingServer, dave: HttpBrowser) -> None:
    """It has a chart and a table, without inline style or script."""
    billing.call("refund", {"customer": "C-1"})
    page = dave.get("/usage?span=week").text

    assert re.search(
        r'<svg class="chart" [^>]*role="img" aria-label="Calls in the last 7 days', page
    )
    assert "validation 1" in page
    assert "Show as table" in page
    assert " style=" not in page
    assert "<style" not in page


def test_the_usage_page_lists_reasons_of_refused_tokens(
    billing: BillingServer, dave: HttpBrowser
) -> None:
    """It shows the tenant's own refusals by reason, with advice."""

    async def refuse(tenant: str, reason: str) -> None:
        error = InvalidToken(reason).with_details(tenant=tenant)
        billing.server.services.refusals.by_gate({"type": "http", "client": ("10.9.8.7", 1)}, error)

    billing.server.run(refuse("acme", "lives_too_long"))
    billing.server.run(refuse("zeta", "sender_constrained"))
    eventually(lambda: "lives_too_long" in dave.get("/usage").text, within=10)
    page = dave.get("/usage").text

    assert "Shorten the lifetime of access tokens" in page
    assert "sender_constrained" not in page


def test_the_page_of_a_request_describes_a_call_that_has_begun(
    billing: BillingServer, dave: HttpBrowser
) -> None:
    """During the call and after its server is gone, the page does not offer the call again."""
    request = billing.request_approval("refund", {"customer": "C-begun", "amount": 5})
    billing.decides("dave", request)
    claims, name, now = (
        billing.server.services.records.for_tenant("acme").idempotency,
        key_of_use(request),
        10.0**10,
    )
    runs = IdempotencyRecord(
        key=name, digest=name, holder="h", leased_until=now, expires_at=2 * now
    )
    assert billing.server.run(claims.begin(runs, now=1.0)) is None

    page = dave.get(f"/approvals/{request}").text
    assert "The call is being made with this approval." in page
    assert "can make this call" not in page
    billing.server.run(claims.renew(name, "h", 1.0))
    page = dave.get(f"/approvals/{request}").text
    assert "The call had begun, and its outcome is unknown" in page
    assert "The call ran" not in page
    assert "outcome unknown" in dave.get("/history?tool=refund").text
    trail = dave.get("/audit?kind=approval&tool=refund").text
    assert "unknown" in trail
    number = billing.record("approval", "refund")
    assert "its outcome is unknown" in dave.get(f"/audit/{number}").text


def test_further_waiting_requests_are_on_the_next_page(
    billing: BillingServer, dave: HttpBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first page stays live, and each request is on one of the pages."""
    monkeypatch.setattr("gatepost.policy.approvals.request_lists.PAGE", 1)
    requests = [
        billing.request_approval("refund", {"customer": f"C-{n}", "amount": 5}) for n in (301, 302)
    ]
    seen, below, live = [], "", []
    while True:
        page = dave.get(below).text
        seen += re.findall(r'<h2><a href="[^"]*/approvals/([^"]+)"', page)
        live.append("sse-connect" in page)
        link = re.search(r'href="[^"]*(\?after=[^"]+)"', page)
        if link is None:
            break
        below = unescape(link[1])
    assert set(requests) <= set(seen)
    assert len(seen) == len(set(seen)) == len(live)
    assert live == [True, *[False] * (len(live) - 1)]
    assert dave.get("?after=nothing").status_code == 200
    for request in requests:
        assert decide(dave, request, "reject") == 303
