"""Scripts that agents, callers and providers store never run in a browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect
from pydantic import Field
from starlette.responses import HTMLResponse

from gatepost import CallContext, Pack
from gatepost.config.settings import Config, ToolsSettings
from gatepost_keys.mint import TokenSubject as User
from tests.dashboard.billing_server import CLI_SECRET, BillingServer, WebUser
from tests.dashboard.conftest import open_dashboard_server
from tests.support.issuers import AsgiServer
from tests.support.programs import chromium, in_a_browser

INJECTION = "document.title='owned'"
MARKUP = (
    f"</textarea></script></title><script>{INJECTION}</script>"
    f'"><img src=x onerror="{INJECTION}"><svg/onload="{INJECTION}">'
    f"' onfocus='{INJECTION}' autofocus x='"
    f'<iframe srcdoc="<script>parent.{INJECTION}</script>"></iframe>'
    f'<a href="javascript:{INJECTION}" id="lure">x</a>'
    f'<div hx-get="/dashboard/sign-out" hx-trigger="load" hx-on:htmx:load="{INJECTION}"></div>'
    f'<form id=hijack action="https://evil.example"></form><base href="https://evil.example/">'
    "<style>*{display:none}</style><meta http-equiv=refresh content='0;url=//evil.example'>"
    "{{ 7777 * 7777 }}{% raw %}${7777*7777}\u202e\u0000"
)
"""Everything that has been markup, script or a template somewhere."""

pack = Pack("hostile")


@pack.tool(
    title=MARKUP.replace("\u0000", ""),
    scopes={"hostile:write"},
    read_only=False,
    destructive=True,
    approval=True,
)
async def hostile(
    ctx: CallContext,
    text: Annotated[str, Field(description=MARKUP)],
    more: Annotated[dict[str, str], Field(description="Names are hostile as well.")],
) -> str:
    """Return the text."""
    return text


pytestmark = [pytest.mark.slow, *in_a_browser]

NAME = f'<img src=x onerror="{INJECTION}"><script>{INJECTION}</script>'
SUBJECT = f'\'"><svg onload="{INJECTION}">'
"""A caller's id as an issuer might give it; ids are printable and that is all they are."""
USERS = (User(username="dave", name=NAME, email=NAME, tenant="acme", roles=("approver", "admin")),)
ARGUMENTS = {"text": MARKUP, "more": {MARKUP: MARKUP, "__proto__": "x"}}


def settings(config: Config, root: Path) -> Config:
    return msgspec.structs.replace(
        config,
        tools=ToolsSettings(load=(__name__,)),
        workspace=msgspec.structs.replace(config.workspace, root=str(root / "workspaces")),
    )


@pytest.fixture(scope="module")
def billing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BillingServer]:
    """Yield a server with hostile tools, which hostile people call with hostile arguments."""
    root = tmp_path_factory.mktemp("hostile")
    options = {"users": USERS, "cli_secret": CLI_SECRET, "scopes": ("hostile:write",)}
    with open_dashboard_server(
        root, change=lambda config: settings(config, root), **options
    ) as running:
        yield BillingServer(running)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def dave(billing: BillingServer, browser: Browser) -> Iterator[WebUser]:
    context = browser.new_context()
    # Before any script of a page: whatever the policy stops, and whatever asks a person, is kept.
    context.add_init_script(
        "window.stopped = [];"
        "document.addEventListener('securitypolicyviolation', event =>"
        " window.stopped.push(event.violatedDirective + ' ' + event.blockedURI));"
        "window.alert = window.confirm = window.prompt = () => window.stopped.push('asked');"
    )
    yield WebUser(billing, context, "dave")
    context.close()


def request_approval(billing: BillingServer, **changes: str) -> str:
    answer = billing.call("hostile", ARGUMENTS | changes, SUBJECT, scopes="hostile:write")
    assert answer.status_code == 503, answer.text
    waiting = billing.server.run(billing.server.services.approvals.waiting("acme"))
    return str(waiting[-1].id)


def assert_harmless(page: Page) -> None:
    """Assert that no hostile code ran, reached the page or was tried."""
    assert page.title() != "owned"
    assert page.evaluate("window.stopped") == []
    planted = "img[src=x], svg[onload], iframe, #lure, #hijack, base, meta[http-equiv], [onerror]"
    assert page.locator(planted).count() == 0
    assert page.locator("style").count() == 0
    assert page.locator("main").is_visible()
    assert page.locator("script:not([src])").count() == 0
    assert page.locator("[hx-get*='sign-out']").count() == 0


def open_page(dave: WebUser, below: str) -> Page:
    page = dave.open(below)
    page.wait_for_load_state("load")
    assert_harmless(page)
    return page


@pytest.mark.requirement("A7")
def test_every_page_shows_stored_markup_as_text(billing: BillingServer, dave: WebUser) -> None:
    """The markup is in tool titles, argument names and values, ids and user names."""
    identity = request_approval(billing)
    places = [
        link.get_attribute("href") or ""
        for link in open_page(dave, "").get_by_role("navigation").get_by_role("link").all()
    ]
    below = [location.removeprefix("/dashboard") for location in places]
    assert len(below) >= 6
    for location in [*below, f"/approvals/{identity}"]:
        open_page(dave, location)
    content = open_page(dave, f"/approvals/{identity}").locator("main").inner_text()

    assert "onerror" in content
    assert "{{ 7777 * 7777 }}" in content
    assert str(7777 * 7777) not in content
    assert NAME in dave.page.locator(".who").inner_text()


def test_live_updates_show_stored_markup_as_text(billing: BillingServer, dave: WebUser) -> None:
    """htmx inserts the update into a page that is already open."""
    page = open_page(dave, "")
    before = page.locator(".request").count()
    request_approval(billing, text=MARKUP + " again")
    page.wait_for_function(
        "count => document.querySelectorAll('.request').length > count", arg=before
    )
    assert_harmless(page)


def test_markup_in_decisions_and_reasons_is_shown_as_text(
    billing: BillingServer, dave: WebUser
) -> None:
    """Other approvers see the reason, and edited values are shown again."""
    identity = request_approval(billing, text=MARKUP + " to be refused")
    page = open_page(dave, f"/approvals/{identity}")
    page.locator(
        "form[action$='/reject'] textarea, form[action$='/reject'] input[name=reason]"
    ).fill(MARKUP.replace("\u0000", ""))
    page.locator("form[action$='/reject'] button").last.click()
    expect(page.get_by_role("heading", name="Rejected")).to_be_visible()
    assert_harmless(page)
    for location in (f"/approvals/{identity}", "/history", "/audit"):
        open_page(dave, location)


QUERIES = ["q", "page", "before", "tool", "kind", "subject", "next", "from", "until", "state"]


@pytest.mark.parametrize("path", ["/history", "/audit", "/tools", "/usage", "/sign-in", "/nowhere"])
def test_markup_in_query_parameters_is_not_executed(dave: WebUser, path: str) -> None:
    """The test sends every parameter that a page might repeat."""
    payload = "%3Cimg%20src%3Dx%20onerror%3Ddocument.title%3D1%3E%22%27"
    page = dave.open(f"{path}?" + "&".join(f"{name}={payload}" for name in QUERIES))

    assert page.evaluate("window.stopped") == []
    assert page.locator("img[src=x]").count() == 0
    assert page.title() != "1"


FRAMES = [("/openapi.json", True), ("/dashboard/sign-in", False), ("/dashboard/nowhere", False)]


@pytest.mark.parametrize(("path", "framed"), FRAMES)
def test_pages_cannot_be_framed_by_other_sites(
    billing: BillingServer, browser: Browser, path: str, framed: bool
) -> None:
    """A foreign page may frame public documents only (clickjacking)."""
    body = f'<iframe src="{billing.server.origin}{path}"></iframe>'
    foreign = AsgiServer(HTMLResponse(body)).start()
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(foreign.url)
        assert page.frames[1].url.startswith("chrome-error:") is not framed
    finally:
        context.close()
        foreign.stop()


def test_the_content_security_policy_blocks_inserted_markup(dave: WebUser) -> None:
    """Markup that the test inserts by hand runs no script and loads no image."""
    page = open_page(dave, "")
    page.evaluate(
        """() => {
          document.body.insertAdjacentHTML(
            'beforeend', '<img src=x onerror="document.title=1"><img src="https://evil.example/x">'
          );
          const script = document.createElement('script');
          script.textContent = "document.title = 'owned'";
          document.body.append(script);
          document.body.setAttribute('style', 'display:none');
        }"""
    )
    page.wait_for_function("window.stopped.length >= 4")

    stopped = " ".join(page.evaluate("window.stopped"))
    assert page.title() not in {"owned", "1"}
    assert all(word in stopped for word in ("script-src", "img-src", "style-src"))
