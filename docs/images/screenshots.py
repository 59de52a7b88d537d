"""
Take the pictures of docs/dashboard.md: `python -m docs.images.screenshots [NAME …]`.

tests/dashboard/test_accessibility.py looks through the same scenes. After a change of a page, take
the pictures again and look at each.
"""

import base64
import struct
import sys
import tempfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec
from playwright.sync_api import Browser, Page, expect

from gatepost.policy.approvals.approval_request import DisplayedParty, GrantScope
from gatepost.policy.script_reviews.script import Script
from gatepost.policy.script_reviews.store import SUBJECT, ScriptApprovals
from gatepost.runtime.process_reports import (
    DEPLOYMENT,
    ProcessReport,
    ReportedKeys,
    ToolTimes,
)
from gatepost.runtime.process_reports import SUBJECT as PROCESSES
from gatepost.upstreams.catalogue import Catalogue, Change, Definition, LeftOut
from gatepost.upstreams.management_audit import ManagementActor
from gatepost.upstreams.registration_changes import AgentChanges, ServerChanges
from tests.dashboard.billing_server import (
    INVOICE,
    NOTES,
    BillingServer,
    WebUser,
    open_billing_server,
    signed_in,
)
from tests.support.endpoint import a_caller
from tests.support.programs import chromium

WIDE_SCREEN: dict[str, Any] = {"viewport": {"width": 1080, "height": 720}}
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}}
ALICE = DisplayedParty(subject="alice", name="Alice Archer")
CLAUDE_CODE = {"name": "claude-code", "title": "Claude Code", "version": "2.1.328"}
SCRIPT_BEFORE = 'def main(args):\n    rows = call("list_invoices", month = args["month"])\n'
SCRIPT_AFTER = SCRIPT_BEFORE + '    call("send_invoice", to = args["to"])\n    return len(rows)\n'
CLEAN_UP = 'def main(folder):\n    return call("delete_folder", path = folder)\n'

Scene = tuple[str, Page]
"""A name and the page as it stands."""
DARK: dict[str, Any] = {"color_scheme": "dark"}
FOLDER = Path(__file__).parent
STEADY, PALETTE = ((FOLDER / name).read_text() for name in ("steady.js", "palette.js"))
HEIGHTS, MAX_BYTES, COLOURS = (1_500, 1_000, 800), 60_000, 64

SERIES: tuple[tuple[str, dict[str, Any], frozenset[str] | None], ...] = (
    ("", {}, None),
    (
        "-phone",
        PHONE,
        frozenset(
            {
                "waiting",
                "request",
                "edit-error",
                "history",
                "audit",
                "tools",
                "usage",
                "upstreams",
                "operations",
            }
        ),
    ),
    (
        "-dark",
        DARK,
        frozenset({"waiting", "request", "file", "usage", "signin", "upstreams", "operations"}),
    ),
)
"""What is added to the names, what is different about the browser, and which scenes; None: all."""


def main(wanted: Collection[str]) -> int:
    """Take those pictures, or all; 1 when one is too large."""
    large: list[str] = []
    with chromium() as browser:
        for suffix, browser_options, only in SERIES:
            names = {f"{name}{suffix}" for name in only} if only is not None else None
            if wanted and names is not None and not names & set(wanted):
                continue
            with (
                tempfile.TemporaryDirectory() as folder,
                open_billing_server(Path(folder)) as billing,
            ):
                large += _series(billing, browser, suffix, browser_options, names, wanted)
    for name in large:
        sys.stdout.write(f"{name} is larger than {MAX_BYTES} bytes\n")
    return 1 if large else 0


def _series(
    billing: BillingServer,
    browser: Browser,
    suffix: str,
    browser_options: dict[str, Any],
    names: Collection[str] | None,
    wanted: Collection[str],
) -> list[str]:
    large: list[str] = []
    for scene, page in scenes(billing, browser, **browser_options):
        name = f"{scene}{suffix}"
        if (names is not None and name not in names) or (wanted and name not in wanted):
            continue
        picture = b""
        for height in HEIGHTS:
            picture = with_palette(browser, screenshot(page, height))
            if len(picture) <= MAX_BYTES:
                break
        (FOLDER / f"dashboard-{name}.png").write_bytes(picture)
        sys.stdout.write(f"{name}: {len(picture)}\n")
        if len(picture) > MAX_BYTES:
            large.append(name)
    return large


def screenshot(page: Page, max_height: int) -> bytes:
    """Take a screenshot of the page from its top, at most *max_height* pixels high."""
    page.evaluate(STEADY)
    height = int(page.evaluate("document.documentElement.scrollHeight"))
    width = int(page.evaluate("window.innerWidth"))
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, max_height)}
    return page.screenshot(full_page=True, clip=clip, animations="disabled")  # type: ignore[arg-type]


def with_palette(browser: Browser, picture: bytes) -> bytes:
    """Convert a picture to one with a palette (PNG, colour type 3)."""
    page = browser.new_page()
    data = base64.b64encode(picture).decode()
    width, height, palette, rows = page.evaluate(PALETTE, [data, COLOURS])
    page.close()
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    body = zlib.compress(base64.b64decode(rows), 9)
    parts = ((b"IHDR", head), (b"PLTE", bytes(palette)), (b"IDAT", body), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def scenes(billing: BillingServer, browser: Browser, **options: Any) -> Iterator[Scene]:
    """Yield each scene; *options* has the options of the browser that differ (as in playwright)."""
    browser_options = {**WIDE_SCREEN, **options}
    yield from _outside(billing, browser, browser_options)
    with signed_in(billing, browser, "dave", **browser_options) as dave:
        yield from _empty(dave)
        yield from _requests(billing, dave, browser, browser_options)
        yield from _endings(billing, dave)
        yield from _lists(billing, dave)
    with signed_in(billing, browser, "alice", **browser_options) as alice:
        yield "upstreams-empty", alice.open("/upstreams")
        _upstreams(billing)
        page = alice.open("/upstreams")
        for details in page.locator("details").all():
            details.evaluate("details => { details.open = true }")
        yield "upstreams", page
    with signed_in(billing, browser, "olga", **browser_options) as olga:
        _processes(billing)
        yield "operations", olga.open("/operations")


def _processes(billing: BillingServer) -> None:
    """Store two replicas, of which one has another version and does not reach an issuer."""
    now, entries = (
        billing.now(),
        billing.server.services.records.for_tenant(DEPLOYMENT).entries(PROCESSES),
    )
    for number, version, state in ((0, "0.1.0", "ready"), (1, "0.2.0", "connect")):
        report = ProcessReport(
            process=f"p-{number}",
            host=f"gatepost-{number}",
            pid=17,
            version=version,
            started_at=now - 7_200,
            written_at=now,
            stores={"database": "ok", "shared": "ok" if number == 0 else "unavailable"},
            streams=1_204,
            issuers=(
                ReportedKeys("https://id.example.com", "ready", 540.0),
                ReportedKeys("https://login.example.net", state, None if number else 7_900.0),
            ),
            refusals={"no_credentials": 312, "invalid_token": 4, "foreign_host": 1},
            tokens={"wrong_audience": 3, "expired": 1},
            tools=(
                ToolTimes("send_invoice", (0,) * 10 + (3, 2, 0, 0, 0, 0, 0), 16.2),
                ToolTimes("find_customer", (0, 40, 5) + (0,) * 14, 0.11),
            ),
        )
        value = msgspec.msgpack.encode(report)
        billing.server.run(entries.put(report.process, value, now=now, expires_at=now + 60))


def _upstreams(billing: BillingServer) -> None:
    """Add a server that works, with a change that waits, one that fails, and an agent."""
    upstreams, now = billing.server.services.upstreams.services, billing.now()
    actor = ManagementActor(operator="operator")
    described = {"crm": "Customers and orders", "search": "Search of the intranet"}
    by_tenant = {}
    for name, text in described.items():
        url = f"https://{name}.example.com/mcp"
        changes = ServerChanges(name=name, url=url, description=text, status="disabled")
        by_tenant[name] = billing.server.run(upstreams.administration.add("acme", changes, actor))
    crm = by_tenant["crm"].id
    # After its registration, or it would be fetched again.
    catalogue = _catalogue(crm, fetched_at=now + 2)
    billing.server.run(upstreams.store.catalogues.put("acme", catalogue))
    active = ServerChanges(status="active")
    billing.server.run(upstreams.administration.change(by_tenant["crm"], active, actor))
    breaker = upstreams.calls.health.breaker_for("acme", by_tenant["search"].id)
    for _ in range(5):
        breaker.failed("unreachable", "search refused the connection.", now - 3_700)
    agent = AgentChanges(
        name="Support", client_id="support-bot", capabilities=({"ref": f"mcp:{crm}"},)
    )
    billing.server.run(upstreams.agents.add("acme", agent, actor))


def _catalogue(server_id: str, fetched_at: float) -> Catalogue:
    """Return one accepted tool, one that was left out, and a change that waits for review."""
    find = {"name": "find_customer", "description": "Find a customer by name."}
    key = "find_customer"
    accepted = Definition(section="tools", key=key, name=key, value=find, digest="a" * 64)
    changed = Change(
        section="tools",
        key="delete_customer",
        before={"description": "Delete a draft."},
        after={"description": "Delete a customer \u202efor good."},
        digest="d" * 64,
    )
    return Catalogue(
        server_id=server_id,
        fetched_at=fetched_at,
        definitions=(accepted,),
        left_out=(LeftOut(section="tools", key="export", reason="its schema is not an object"),),
        changes=(changed,),
    )


def _outside(
    billing: BillingServer, browser: Browser, browser_options: dict[str, Any]
) -> Iterator[Scene]:
    with signed_in(billing, browser, **browser_options) as anonymous:
        yield "signin", anonymous.open()
    with signed_in(billing, browser, "erin", **browser_options) as erin:
        yield "no-role", erin.open()
    with signed_in(billing, browser, "bob", **browser_options) as bob:
        bob.open().get_by_role("button", name="Sign out").click()
        expect(bob.page.get_by_role("heading", name="You are signed out")).to_be_visible()
        yield "signed-out", bob.page


def _empty(dave: WebUser) -> Iterator[Scene]:
    yield "waiting-empty", dave.open()
    yield "grants-empty", dave.open("/grants")
    yield "history-empty", dave.open("/history?tool=nothing-like-this")
    yield "not-found", dave.open("/approvals/none")


def _requests(
    billing: BillingServer, dave: WebUser, browser: Browser, browser_options: dict[str, Any]
) -> Iterator[Scene]:
    invoice = billing.request_approval_over_mcp(CLAUDE_CODE, "send_invoice", INVOICE)
    billing.write("notes/release.md", NOTES)
    changed = NOTES.replace("Two bugs", "Seven bugs").replace("start\n", "start\n- Dark pages\n")
    write = billing.request_approval(
        "workspace_write", {"path": "notes/release.md", "content": changed}
    )
    payment = {"customer": "C-1042", "amount": 740.0, "reason": "Delivered twice."}
    two = billing.request_approval("refund", payment)
    _submit(billing)
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
    yield "edit-error", page
    yield "file", dave.open(f"/approvals/{write}")
    yield "script", dave.open(f"/approvals/{_script(billing)}")
    billing.decides("carol", two)
    yield "two-people", dave.open(f"/approvals/{two}")
    with signed_in(billing, browser, "carol", **browser_options) as carol:
        theirs = billing.request_approval("refund", payment | {"amount": 12.0}, "carol")
        yield "own-call", carol.open(f"/approvals/{theirs}")
        page = dave.open(f"/approvals/{theirs}")
        billing.decides("alice", theirs)
        expect(page.get_by_text("approved this request in the meantime")).to_be_visible()
        yield "meanwhile", page
    refused = _refused(billing)
    with signed_in(billing, browser, "alice", **browser_options) as alice:
        yield "script-rejected", alice.open(f"/approvals/{refused}")


def _endings(billing: BillingServer, dave: WebUser) -> Iterator[Scene]:
    used = billing.request_approval("refund", {"customer": "C-7", "amount": 20.0})
    billing.decides("dave", used, comment="For October only.")
    billing.call("refund", {"customer": "C-7", "amount": 20.0})
    yield "used", dave.open(f"/approvals/{used}")
    approved = billing.request_approval("refund", {"customer": "C-8", "amount": 25.0})
    billing.decides("dave", approved)
    yield "approved", dave.open(f"/approvals/{approved}")
    rejected = billing.request_approval("refund", {"customer": "C-9", "amount": 30.0})
    billing.decides("dave", rejected, reason="This customer has not paid yet.\nAsk me next week.")
    yield "rejected", dave.open(f"/approvals/{rejected}")
    late = billing.request_approval("refund", {"customer": "C-10", "amount": 40.0})
    with billing.later(301):
        dave.open(f"/approvals/{late}")
        yield "expired", dave.page
    gone = billing.request_approval("refund", {"customer": "C-11", "amount": 45.0})
    page = dave.open(f"/approvals/{gone}?edit=yes")
    billing.decides("alice", gone)
    expect(page.get_by_text("approved this request in the meantime")).to_be_visible()
    # As a form that is sent at the same moment: the page has disabled the button.
    page.locator("#approve-edited").evaluate(
        "button => { button.disabled = false; button.click() }"
    )
    expect(page.get_by_role("alert")).to_be_visible()
    yield "too-late", page


def _lists(billing: BillingServer, dave: WebUser) -> Iterator[Scene]:
    for_hours = GrantScope(until=billing.now() + 7_150)
    for_some = GrantScope(uses=20, when="arguments.amount < 50.0")
    for subject, grant_form in (("erin", for_hours), ("carol", for_some)):
        request = billing.request_approval("refund", {"customer": "C-12", "amount": 1.0}, subject)
        billing.decides("dave", request, grant=grant_form)
    yield "grants", dave.open("/grants")
    for name in ("Mueller", "Schmidt", "Lopez"):
        billing.call("find_customer", {"name": name})
    billing.call("refund", {"customer": "C-1"})
    yield "history", dave.open("/history")
    yield "audit", dave.open("/audit")
    yield "audit-empty", dave.open("/audit?text=nothing-like-this")
    yield "record", dave.open(f"/audit/{billing.record('call', 'refund')}")
    yield "tools", dave.open("/tools?scopes=billing%3Aread+files%3Aread")
    yield "usage", dave.open("/usage")


def _scripts(billing: BillingServer) -> ScriptApprovals:
    return ScriptApprovals(billing.server.services.records.for_tenant("acme").entries(SUBJECT))


def _submit(billing: BillingServer) -> None:
    """Submit a script that was approved and has changed."""
    before = Script("monthly_report", SCRIPT_BEFORE.encode(), "workspace")
    after = Script("monthly_report", SCRIPT_AFTER.encode(), "workspace")
    billing.server.run(_scripts(billing).approve(before, by=ALICE))
    billing.server.run(
        _scripts(billing).request([after], caller=a_caller(subject="erin"), max_waiting=10)
    )


def _refused(billing: BillingServer) -> str:
    """Reject a script and return where it is shown."""
    script = Script("clean_up", CLEAN_UP.encode(), "workspace")
    billing.server.run(
        _scripts(billing).request([script], caller=a_caller(subject="erin"), max_waiting=10)
    )
    billing.decides(
        "alice", f"script:{script.digest}", reason="Ask for each folder before it goes."
    )
    return f"script-{script.digest}"


def _script(billing: BillingServer) -> str:
    """Return where the script is reviewed."""
    (review,) = billing.server.run(_scripts(billing).waiting())
    return f"script-{review.digest}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
