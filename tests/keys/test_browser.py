"""The pages in a real browser: a person signs in, consents and arrives at the client."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx2
import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect

from gatepost_keys.issuer import IssuerSettings, app
from tests.support.programs import WITHIN_MS, chromium, in_a_browser
from tests.support.sign_in import code_challenge

pytestmark = in_a_browser


class Callback(BaseHTTPRequestHandler):
    """The client's end of the redirect."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>back</title>")

    def log_message(self, *_: object) -> None:
        """Discard the message."""


@contextmanager
def served(server: HTTPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


@pytest.fixture(scope="module")
def callback() -> Iterator[str]:
    with served(HTTPServer(("127.0.0.1", 0), Callback)) as port:
        yield f"http://127.0.0.1:{port}/callback"


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/dev-as"
    settings = IssuerSettings(issuer=url, algorithm="ES256")
    server = uvicorn.Server(uvicorn.Config(app(settings), log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield url
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Yield a page whose test fails if the browser reports an error."""
    context = browser.new_context()
    context.set_default_timeout(WITHIN_MS)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    context.close()
    assert [text for text in complaints if "favicon" not in text and "404" not in text] == []


def request(issuer: str, callback: str, name: str = "Billing Agent", **more: str) -> str:
    """Return the address to which a newly registered client sends the browser."""
    body = {
        "redirect_uris": [callback],
        "token_endpoint_auth_method": "none",
        "client_name": name,
    }
    client = httpx2.post(f"{issuer}/register", json=body).json()
    query = {
        "response_type": "code",
        "client_id": client["client_id"],
        "redirect_uri": callback,
        "scope": "files:read files:write",
        "state": "s",
        "code_challenge": code_challenge("v" * 64),
        "code_challenge_method": "S256",
    }
    return str(httpx2.URL(f"{issuer}/authorize", params=query | more))


def test_a_person_signs_in_and_allows_with_the_mouse(
    page: Page, issuer: str, callback: str
) -> None:
    """The browser blocks nothing and logs no error."""
    page.goto(request(issuer, callback))
    page.get_by_role("button", name="Bob Bright").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Allow Billing Agent to act for you?")
    page.get_by_role("button", name="Allow").click()
    page.wait_for_url(f"{callback}?**")

    assert page.title() == "back"
    assert "code=" in page.url
    assert "iss=" in page.url


def test_a_person_signs_in_and_denies_with_the_keyboard(
    page: Page, issuer: str, callback: str
) -> None:
    """Tab reaches every control in reading order."""
    page.goto(request(issuer, callback))
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Deny").wait_for()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{callback}?**")

    assert "error=access_denied" in page.url


def test_another_person_can_sign_in_from_the_consent_page(
    page: Page, issuer: str, callback: str
) -> None:
    """The link leads to the sign-in page, and then to the consent of the same request."""
    page.goto(request(issuer, callback))
    page.get_by_role("button", name="Alice Archer").click()
    page.get_by_role("link", name="Another user").click()
    page.get_by_role("button", name="Dave Dunn").click()

    expect(page.get_by_text("dave@acme.example")).to_be_visible()


def test_a_foreign_page_cannot_frame_the_pages(
    browser: Browser, issuer: str, callback: str
) -> None:
    """The browser names the frame as destination, and the server sends no page."""
    page = browser.new_page()
    page.goto(callback)
    page.set_content(f'<iframe src="{request(issuer, callback)}"></iframe>'.replace("&", "&amp;"))
    body = page.frame_locator("iframe").locator("body")

    expect(body).to_contain_text("The pages of this issuer cannot be embedded")
    expect(body).not_to_contain_text("Who are you")
    page.close()


def test_the_pages_fit_a_phone_and_have_enough_contrast(
    browser: Browser, issuer: str, callback: str
) -> None:
    """No page scrolls sideways, even with a hostile name; the contrast is at least 4.5."""
    # Without motion, so that a change of the scheme shows its colours at once.
    context = browser.new_context(device_scale_factor=2, reduced_motion="reduce")
    page = context.new_page()
    page.goto(request(issuer, callback, "W" * 80, scope="files:read " + "x" * 200))
    findings = page_measurements(page, "signin")
    page.get_by_role("button", name="Alice Archer").click()
    expect(page.get_by_role("button", name="Allow")).to_be_visible()
    findings |= page_measurements(page, "consent")
    page.goto(f"{issuer}/authorize?client_id=unknown")
    findings |= page_measurements(page, "refusal")
    page.goto(issuer)
    findings |= page_measurements(page, "front")
    context.close()

    assert len(findings) == 16
    assert {name: value for name, value in findings.items() if value != [False, []]} == {}


def page_measurements(page: Page, name: str) -> dict[str, object]:
    """Return what `measure` finds of a page, on a phone and a desktop, light and dark."""
    findings = {}
    for width in (360, 1280):
        for scheme in ("light", "dark"):
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme)
            findings[f"{name}-{scheme}-{width}"] = measure(page)
            store_screenshot(page, f"{name}-{scheme}-{width}")
    return findings


def store_screenshot(page: Page, name: str) -> None:
    """Store a picture of the page if the environment names a folder (`GATEPOST_SHOTS`)."""
    if folder := os.environ.get("GATEPOST_SHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def measure(page: Page) -> object:
    """Return whether the page scrolls sideways, and which texts lack contrast (WCAG 1.4.3)."""
    return page.evaluate(
        """() => {
        const part = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
        const light = c => .2126 * part(c[0]) + .7152 * part(c[1]) + .0722 * part(c[2]);
        const rgb = s => s.match(/[\\d.]+/g).map(Number);
        const behind = e => {
          for (; e; e = e.parentElement) {
            const c = rgb(getComputedStyle(e).backgroundColor);
            if (c.length < 4 || c[3] > 0) return c;
          }
          return [255, 255, 255];
        };
        const faint = [];
        for (const e of document.querySelectorAll('body *')) {
          if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
          const a = light(rgb(getComputedStyle(e).color)), b = light(behind(e));
          const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
          if (ratio < 4.5) faint.push(`${e.className} ${e.innerText}: ${ratio.toFixed(2)}`);
        }
        const root = document.documentElement;
        return [root.scrollWidth > root.clientWidth, faint];
        }"""
    )
