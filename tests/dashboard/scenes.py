"""Every page and state of the dashboard, staged one after the other."""

from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Browser, Page, expect

from gatepost.policy.approvals.request import GrantTerms
from gatepost.policy.approvals.scripts import SUBJECT, Script, ScriptApprovals, ScriptApprover
from tests.dashboard.studio import Studio, Visitor, visiting

WIDE: dict[str, Any] = {"viewport": {"width": 1080, "height": 720}}
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}}
DARK: dict[str, Any] = {"color_scheme": "dark"}
ALICE = ScriptApprover(subject="alice", name="Alice Archer")
INVOICE = {
    "to": "lena@mueller.example",
    "lines": [
        {"item": "Consulting, October", "pieces": 12, "price": 110.0},
        {"item": "Travel", "pieces": 1, "price": 88.4},
    ],
    "text": "Dear Lena,\n\nplease find the invoice for October attached.\n\n"
    "Kind regards\nAcme\u202e\u200b",
    "mail_token": "known-to-nobody-but-the-agent",
}
NOTES = "# Release notes\n\n- Faster start\n- Two bugs less\n\nThanks to everybody.\n"
BEFORE = 'def main(args):\n    rows = call("list_invoices", month = args["month"])\n'
AFTER = BEFORE + '    call("send_invoice", to = args["to"])\n    return len(rows)\n'
CLEAN_UP = 'def main(folder):\n    return call("delete_folder", path = folder)\n'

Scene = tuple[str, Page]
"""A name and the page as it stands."""


def scenes(company: Studio, browser: Browser, **more: Any) -> Iterator[Scene]:
    """Each scene; what is different about the browser (as playwright has it) is in *more*."""
    look = {**WIDE, **more}
    yield from _outside(company, browser, look)
    with visiting(company, browser, "dave", **look) as dave:
        yield from _empty(dave)
        yield from _requests(company, dave, browser, look)
        yield from _endings(company, dave)
        yield from _lists(company, dave)


def _outside(company: Studio, browser: Browser, look: dict[str, Any]) -> Iterator[Scene]:
    with visiting(company, browser, **look) as guest:
        yield "signin", guest.open()
    with visiting(company, browser, "erin", **look) as erin:
        yield "no-role", erin.open()
    with visiting(company, browser, "bob", **look) as bob:
        bob.open().get_by_role("button", name="Sign out").click()
        expect(bob.page.get_by_role("heading", name="You are signed out")).to_be_visible()
        yield "signed-out", bob.page


def _empty(dave: Visitor) -> Iterator[Scene]:
    yield "waiting-empty", dave.open()
    yield "grants-empty", dave.open("/grants")
    yield "history-empty", dave.open("/history?tool=nothing-like-this")
    yield "not-found", dave.open("/approvals/none")


def _requests(
    company: Studio, dave: Visitor, browser: Browser, look: dict[str, Any]
) -> Iterator[Scene]:
    invoice = company.asks("send_invoice", INVOICE)
    company.write("notes/release.md", NOTES)
    changed = NOTES.replace("Two bugs", "Seven bugs").replace("start\n", "start\n- Dark pages\n")
    write = company.asks("workspace_write", {"path": "notes/release.md", "content": changed})
    payment = {"customer": "C-1042", "amount": 740.0, "reason": "Delivered twice."}
    two = company.asks("refund", payment)
    _submit(company)
    yield "waiting", dave.open()
    yield "request", dave.open(f"/approvals/{invoice}")
    page = dave.open(f"/approvals/{invoice}")
    page.get_by_text("Allow more calls like this one").click()
    yield "grant", page
    yield "edit", dave.open(f"/approvals/{invoice}?edit=yes")
    page = dave.page
    page.get_by_label("lines", exact=True).fill('[{"item": "Travel", "pieces": 1,')
    page.get_by_label("to", exact=True).fill("accounts@mueller.example")
    page.get_by_role("button", name="Approve with these arguments").click()
    expect(page.get_by_role("alert")).to_be_visible()
    yield "edit-mistake", page
    yield "file", dave.open(f"/approvals/{write}")
    yield "script", dave.open(f"/approvals/{_script(company)}")
    company.decides("carol", two)
    yield "two-people", dave.open(f"/approvals/{two}")
    with visiting(company, browser, "carol", **look) as carol:
        theirs = company.asks("refund", payment | {"amount": 12.0}, "carol")
        yield "own-call", carol.open(f"/approvals/{theirs}")
        page = dave.open(f"/approvals/{theirs}")
        company.decides("alice", theirs)
        expect(page.get_by_text("approved this request in the meantime")).to_be_visible()
        yield "meanwhile", page
    refused = _refused(company)
    with visiting(company, browser, "alice", **look) as alice:
        yield "script-rejected", alice.open(f"/approvals/{refused}")


def _endings(company: Studio, dave: Visitor) -> Iterator[Scene]:
    used = company.asks("refund", {"customer": "C-7", "amount": 20.0})
    company.decides("dave", used)
    company.call("refund", {"customer": "C-7", "amount": 20.0})
    yield "used", dave.open(f"/approvals/{used}")
    approved = company.asks("refund", {"customer": "C-8", "amount": 25.0})
    company.decides("dave", approved)
    yield "approved", dave.open(f"/approvals/{approved}")
    rejected = company.asks("refund", {"customer": "C-9", "amount": 30.0})
    company.decides("dave", rejected, reason="This customer has not paid yet.\nAsk me next week.")
    yield "rejected", dave.open(f"/approvals/{rejected}")
    late = company.asks("refund", {"customer": "C-10", "amount": 40.0})
    with company.later(301):
        dave.open(f"/approvals/{late}")
        yield "expired", dave.page
    gone = company.asks("refund", {"customer": "C-11", "amount": 45.0})
    page = dave.open(f"/approvals/{gone}?edit=yes")
    company.decides("alice", gone)
    expect(page.get_by_text("approved this request in the meantime")).to_be_visible()
    # As whoever sends it at the same moment: the page lets nobody press it any more.
    page.locator("#approve-edited").evaluate(
        "button => { button.disabled = false; button.click() }"
    )
    expect(page.get_by_role("alert")).to_be_visible()
    yield "too-late", page


def _lists(company: Studio, dave: Visitor) -> Iterator[Scene]:
    for_hours = GrantTerms(until=company.now() + 7_150)
    for_some = GrantTerms(uses=20, when="arguments.amount < 50.0")
    for subject, terms in (("erin", for_hours), ("carol", for_some)):
        one = company.asks("refund", {"customer": "C-12", "amount": 1.0}, subject)
        company.decides("dave", one, grant=terms)
    yield "grants", dave.open("/grants")
    for name in ("Mueller", "Schmidt", "Lopez"):
        company.call("find_customer", {"name": name})
    company.call("refund", {"customer": "C-1"})
    yield "history", dave.open("/history")
    yield "audit", dave.open("/audit")
    yield "audit-empty", dave.open("/audit?text=nothing-like-this")
    yield "record", dave.open(f"/audit/{company.record('call', 'refund')}")
    yield "tools", dave.open("/tools?scopes=billing%3Aread+files%3Aread")
    yield "usage", dave.open("/usage")


def _scripts(company: Studio) -> ScriptApprovals:
    return ScriptApprovals(company.site.services.records.of("acme").entries(SUBJECT))


def _submit(company: Studio) -> None:
    """A script that was approved has changed."""
    before = Script("monthly_report", BEFORE.encode(), "workspace")
    after = Script("monthly_report", AFTER.encode(), "workspace")
    company.site.run(_scripts(company).approve(before, by=ALICE))
    company.site.run(_scripts(company).submit([after], by="erin", most=10))


def _refused(company: Studio) -> str:
    """Where a script is found that was rejected."""
    script = Script("clean_up", CLEAN_UP.encode(), "workspace")
    company.site.run(_scripts(company).submit([script], by="erin", most=10))
    company.decides(
        "alice", f"script:{script.digest}", reason="Ask for each folder before it goes."
    )
    return f"script-{script.digest}"


def _script(company: Studio) -> str:
    """Where it is reviewed."""
    (review,) = company.site.run(_scripts(company).waiting())
    return f"script-{review.digest}"
