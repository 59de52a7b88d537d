"""The documentation site: it builds without a warning, and works from its files alone."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.architecture.source import ROOT
from tests.support.programs import chromium, in_a_browser

DOCS = ROOT / "docs"
_, NEEDS_BROWSER = in_a_browser
PAGE_OVERFLOWS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.mark.parametrize("module", ["gatepost", "gatepost.sandbox", "gatepost.workspace"])
def test_the_api_page_has_every_public_name(module: str) -> None:
    """Each name is there once."""
    page = (DOCS / "reference/api.md").read_text(encoding="utf-8")
    named = re.findall(rf"^\.\. auto\w+:: {re.escape(module)}\.(\w+)$", page, re.MULTILINE)

    assert sorted(named) == sorted(import_module(module).__all__)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site from nothing, as `make lint` does, and return its folder."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--fail-on-warning", "--doctree-dir", str(folder / "doctrees")]
    command = [sys.executable, "-m", "sphinx", *options, str(DOCS), str(folder / "site")]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.mark.slow
@pytest.mark.browser
@NEEDS_BROWSER
def test_the_search_of_the_site_works_without_a_server(site: Path, browser: Browser) -> None:
    """It makes no request to another host."""
    page = browser.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"file://{site}/index.html")
    page.locator(".sidebar-search").fill("idempotency key")
    page.keyboard.press("Enter")
    expect(page.locator("#search-results a[href^='retries.html']").first).to_be_visible()
    page.close()

    assert [url for url in requests if not url.startswith("file://")] == []


@pytest.mark.slow
@pytest.mark.browser
@NEEDS_BROWSER
def test_every_page_fits_on_a_phone(site: Path, browser: Browser) -> None:
    """Only tables and code blocks scroll sideways."""
    page = browser.new_page(viewport={"width": 390, "height": 844})
    wide = []
    for file in sorted(site.rglob("*.html")):
        page.goto(f"file://{file}")
        if page.evaluate(PAGE_OVERFLOWS):
            wide.append(str(file.relative_to(site)))
    page.close()

    assert wide == []
